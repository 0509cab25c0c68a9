//! What a predictor says of remaining lengths, from perfect to harmful.
//!
//! *Calibrated* means `E[actual | estimate] = estimate`, whatever the lengths' distribution: the predictor sees the
//! logarithm of the truth through normal noise and answers with the posterior mean under the lengths that trajectories of
//! that age really have. Its noise falls with the step, since later steps know more, and half of its variance stays with
//! the trajectory: who is misjudged once is misjudged again.

mod age;
mod table;

use heddle_core::estimate::LogNormal;
use serde::{Deserialize, Serialize};

pub use table::Predictions;

/// Kinds of predictors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Prediction {
    /// None: the core's own estimate from what it has seen.
    None,
    /// The truth.
    #[default]
    Oracle,
    /// Right on average at every estimate. The noise on the logarithm is `first` before the first step and falls with
    /// the root of the step's number to `least`.
    Calibrated {
        /// Noise before the first step.
        first: f64,
        /// Least noise.
        least: f64,
    },
    /// Calibrated, times `factor`.
    Biased {
        /// Noise before the first step.
        first: f64,
        /// Least noise.
        least: f64,
        /// Above 1 for too long.
        factor: f64,
    },
    /// The remaining length of some other trajectory of that age, claimed with confidence: no information at all.
    Noise,
    /// The longest are called the shortest and the other way round.
    Adversarial,
    /// What a real predictor said before each step: the workload's forecasts, and none where it has none.
    Recorded,
}

/// An expected remaining length and the spread of its logarithm, as the core takes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Tokens.
    pub mean: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
}

impl Prediction {
    /// Checks the numbers; the message names the field.
    pub fn validate(&self) -> Result<(), String> {
        let (first, least, factor) = match *self {
            Self::None | Self::Oracle | Self::Noise | Self::Adversarial | Self::Recorded => {
                return Ok(());
            }
            Self::Calibrated { first, least } => (first, least, 1.0),
            Self::Biased {
                first,
                least,
                factor,
            } => (first, least, factor),
        };
        if !(first.is_finite() && (0.0..=5.0).contains(&least) && (least..=5.0).contains(&first)) {
            return Err(format!(
                "prediction: must have 0 <= least <= first <= 5, not {least} and {first}"
            ));
        }
        if !(factor.is_finite() && factor > 0.0) {
            return Err(format!("prediction.factor: {factor} is not above 0"));
        }
        Ok(())
    }
}

impl From<Estimate> for LogNormal {
    fn from(estimate: Estimate) -> Self {
        Self::with_mean(estimate.mean, estimate.sigma)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::{Purpose, normal};
    use crate::workload::{Script, Turn, Workload};

    /// Lengths with a heavy tail that no lognormal describes: two populations.
    fn workload() -> Workload {
        let scripts = (0..4000u64)
            .map(|i| {
                let z = normal(99, Purpose::Stranger, i, 0);
                let output = if i % 5 == 0 {
                    (9.5 + 0.5 * z).exp()
                } else {
                    (6.0 + 0.8 * z).exp()
                };
                let turn = Turn {
                    input: 0,
                    output: output as u64 + 2,
                    tool_s: 0.0,
                };
                Script {
                    prompt: 10,
                    group: None,
                    start_s: 0.0,
                    turns: vec![turn; 2],
                }
            })
            .collect();
        Workload::new(scripts).unwrap()
    }

    #[test]
    fn calibrated_estimates_are_right_on_average_wherever_they_fall() {
        let workload = workload();
        let kind = Prediction::Calibrated {
            first: 1.0,
            least: 0.4,
        };
        let predictions = Predictions::new(&workload, kind, 5).unwrap();
        let mut pairs: Vec<(f64, f64)> = (0..4000)
            .map(|i| {
                (
                    predictions.before_step(i, 0).mean,
                    workload.scripts()[i].output() as f64,
                )
            })
            .collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (quarter, bin) in pairs.chunks(1000).enumerate() {
            let said: f64 = bin.iter().map(|pair| pair.0).sum();
            let was: f64 = bin.iter().map(|pair| pair.1).sum();
            assert!(
                (was / said - 1.0).abs() < 0.12,
                "quarter {quarter}: said {said}, was {was}"
            );
        }
        let spread = pairs[3999].0 / pairs[0].0;
        assert!(
            spread > 10.0,
            "estimates must tell long from short: {spread}"
        );
    }

    #[test]
    fn later_steps_know_more() {
        let workload = workload();
        let kind = Prediction::Calibrated {
            first: 1.0,
            least: 0.1,
        };
        let predictions = Predictions::new(&workload, kind, 5).unwrap();
        let error = |step: usize| -> f64 {
            let one = |i: usize| {
                let left = workload.scripts()[i].output() as f64 / (1.0 + step as f64);
                (predictions.before_step(i, step).mean / left).ln().abs()
            };
            (0..4000).map(one).sum()
        };
        assert!(error(1) < 0.9 * error(0));
    }

    #[test]
    fn noise_says_nothing_and_the_adversary_the_opposite() {
        let workload = workload();
        let concordance = |kind| {
            let predictions = Predictions::new(&workload, kind, 5).unwrap();
            let (mut agree, mut all) = (0.0, 0.0);
            for i in 0..3999 {
                let said =
                    predictions.before_step(i, 0).mean - predictions.before_step(i + 1, 0).mean;
                let was = workload.scripts()[i].output() as f64
                    - workload.scripts()[i + 1].output() as f64;
                if said != 0.0 && was != 0.0 {
                    all += 1.0;
                    agree += f64::from(u8::from(said * was > 0.0));
                }
            }
            agree / all
        };
        assert!((concordance(Prediction::Noise) - 0.5_f64).abs() < 0.03);
        assert!(concordance(Prediction::Adversarial) < 0.01);
        assert!(concordance(Prediction::Oracle) > 0.99);
        let fair = concordance(Prediction::Calibrated {
            first: 1.0,
            least: 0.4,
        });
        assert!((0.7..0.95).contains(&fair), "{fair}");
    }

    #[test]
    fn recorded_forecasts_are_told_as_they_are_and_must_fit_the_scripts() {
        let workload = workload();
        assert!(Predictions::new(&workload, Prediction::Recorded, 0).is_none());
        let said: Vec<Vec<Estimate>> = (0..4000)
            .map(|i| {
                let one = |step| Estimate {
                    mean: f64::from(10 * i + step + 1),
                    sigma: 0.5,
                };
                vec![one(0), one(1)]
            })
            .collect();
        let told = workload.clone().with_forecasts(said.clone()).unwrap();
        let predictions = Predictions::new(&told, Prediction::Recorded, 0).unwrap();
        assert_eq!(predictions.before_step(7, 1), said[7][1]);
        assert!(workload.clone().with_forecasts(said[1..].to_vec()).is_err());
        let mut short = said.clone();
        short[3].pop();
        assert_eq!(
            workload
                .clone()
                .with_forecasts(short)
                .unwrap_err()
                .trajectory,
            3
        );
        let mut wild = said;
        wild[5][0].mean = f64::NAN;
        assert_eq!(workload.with_forecasts(wild).unwrap_err().trajectory, 5);
    }
}
