//! What a predictor says of remaining lengths, from perfect to harmful.
//!
//! *Calibrated* means `E[actual | estimate] = estimate`, whatever the lengths' distribution: the predictor sees the
//! logarithm of the truth through normal noise and answers with the posterior mean under the lengths that trajectories of
//! that age really have. Its noise falls with the step, since later steps know more, and half of its variance stays with
//! the trajectory: who is misjudged once is misjudged again.

use heddle_core::estimate::LogNormal;
use serde::{Deserialize, Serialize};

use crate::draw::{Purpose, normal, uniform};
use crate::workload::Workload;

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

/// Points that stand for the distribution of lengths of one age.
const ATOMS: usize = 128;
/// Spread that a predictor without information claims: that of a good one.
const CLAIMED_SIGMA: f64 = 0.3;

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

/// All that a predictor will say in a run, made beforehand: it does not depend on the schedule.
#[derive(Debug)]
pub struct Predictions {
    /// Index of the first step of each trajectory in `estimates`.
    starts: Vec<usize>,
    estimates: Vec<Estimate>,
}

impl Predictions {
    /// What `kind` says of `workload`; nothing for [`Prediction::None`].
    pub fn new(workload: &Workload, kind: Prediction, seed: u64) -> Option<Self> {
        if kind == Prediction::None
            || (kind == Prediction::Recorded && workload.forecasts().is_none())
        {
            return None;
        }
        let mut starts = Vec::with_capacity(workload.scripts().len());
        let mut remaining = Vec::with_capacity(workload.steps());
        for script in workload.scripts() {
            starts.push(remaining.len());
            let mut left = script.output();
            for turn in &script.turns {
                remaining.push(left as f64);
                left -= turn.output;
            }
        }
        let estimates = match kind {
            Prediction::Recorded => workload.forecasts().unwrap_or_default().concat(),
            Prediction::None | Prediction::Oracle => remaining
                .iter()
                .map(|&mean| Estimate { mean, sigma: 0.0 })
                .collect(),
            _ => {
                let ages = Ages::new(workload, &remaining, &starts);
                let mut estimates = Vec::with_capacity(remaining.len());
                for (trajectory, script) in workload.scripts().iter().enumerate() {
                    for step in 0..script.turns.len() {
                        let place = (seed, trajectory as u64, step as u64);
                        let age = &ages.0[age_of(step)];
                        let left = remaining[starts[trajectory] + step];
                        estimates.push(age.estimate(kind, left, step, place));
                    }
                }
                estimates
            }
        };
        Some(Self { starts, estimates })
    }

    /// What is said of a trajectory before its step of this number (from 0).
    pub fn before_step(&self, trajectory: usize, step: usize) -> Estimate {
        self.estimates[self.starts[trajectory] + step]
    }
}

/// Steps of about the same number are one age: 0, 1, 2, 3, 4-5, 6-7, 8-11, 12-15, 16-23 and so on.
fn age_of(step: usize) -> usize {
    if step < 4 {
        return step;
    }
    let octave = step.ilog2() as usize;
    2 * octave + (step >> (octave - 1) & 1)
}

/// Remaining lengths of all trajectories that reach an age.
struct Age {
    sorted: Vec<f64>,
    /// Logarithms of quantiles of `sorted`, and the lengths.
    atoms: Vec<(f64, f64)>,
}

struct Ages(Vec<Age>);

impl Ages {
    fn new(workload: &Workload, remaining: &[f64], starts: &[usize]) -> Self {
        let mut by_age: Vec<Vec<f64>> = Vec::new();
        for (script, &start) in workload.scripts().iter().zip(starts) {
            for step in 0..script.turns.len() {
                let age = age_of(step);
                if by_age.len() <= age {
                    by_age.resize_with(age + 1, Vec::new);
                }
                by_age[age].push(remaining[start + step]);
            }
        }
        Self(
            by_age
                .into_iter()
                .map(|mut lengths| {
                    lengths.sort_unstable_by(f64::total_cmp);
                    let n = lengths.len();
                    let count = n.min(ATOMS);
                    let atoms = (0..count)
                        .map(|i| lengths[((2 * i + 1) * n / (2 * count)).min(n - 1)])
                        .map(|length| (length.ln(), length))
                        .collect();
                    Age {
                        sorted: lengths,
                        atoms,
                    }
                })
                .collect(),
        )
    }
}

impl Age {
    fn estimate(
        &self,
        kind: Prediction,
        left: f64,
        step: usize,
        place: (u64, u64, u64),
    ) -> Estimate {
        let (seed, trajectory, turn) = place;
        match kind {
            Prediction::None | Prediction::Oracle | Prediction::Recorded => Estimate {
                mean: left,
                sigma: 0.0,
            },
            Prediction::Calibrated { first, least } => {
                self.posterior(left, noise_at(first, least, step), place)
            }
            Prediction::Biased {
                first,
                least,
                factor,
            } => {
                let fair = self.posterior(left, noise_at(first, least, step), place);
                Estimate {
                    mean: (fair.mean * factor).max(1.0),
                    ..fair
                }
            }
            Prediction::Noise => {
                let at = uniform(seed, Purpose::Stranger, trajectory, turn);
                let stranger = (at * self.sorted.len() as f64) as usize;
                Estimate {
                    mean: self.sorted[stranger.min(self.sorted.len() - 1)],
                    sigma: CLAIMED_SIGMA,
                }
            }
            Prediction::Adversarial => {
                let below = self.sorted.partition_point(|&length| length < left);
                Estimate {
                    mean: self.sorted[self.sorted.len() - 1 - below],
                    sigma: CLAIMED_SIGMA,
                }
            }
        }
    }

    /// Mean of the length, and spread of its logarithm, given the logarithm seen through normal noise.
    fn posterior(
        &self,
        left: f64,
        noise: f64,
        (seed, trajectory, step): (u64, u64, u64),
    ) -> Estimate {
        if noise <= 0.0 {
            return Estimate {
                mean: left,
                sigma: 0.0,
            };
        }
        let lasting = normal(seed, Purpose::LastingError, trajectory, 0);
        let passing = normal(seed, Purpose::PassingError, trajectory, step);
        let observed = left.ln() + noise * (lasting + passing) * std::f64::consts::FRAC_1_SQRT_2;
        let log_weight = |log: f64| -((observed - log) / noise).powi(2) / 2.0;
        let most = self
            .atoms
            .iter()
            .map(|&(log, _)| log_weight(log))
            .fold(f64::NEG_INFINITY, f64::max);
        let (mut mass, mut mean, mut log_mean, mut log_square) = (0.0, 0.0, 0.0, 0.0);
        for &(log, length) in &self.atoms {
            let weight = (log_weight(log) - most).exp();
            mass += weight;
            mean += weight * length;
            log_mean += weight * log;
            log_square += weight * log * log;
        }
        log_mean /= mass;
        let variance = (log_square / mass - log_mean * log_mean).max(0.0);
        Estimate {
            mean: (mean / mass).max(1.0),
            sigma: variance.sqrt().min(5.0),
        }
    }
}

fn noise_at(first: f64, least: f64, step: usize) -> f64 {
    (first / ((step + 1) as f64).sqrt()).max(least)
}

impl From<Estimate> for LogNormal {
    fn from(estimate: Estimate) -> Self {
        Self::with_mean(estimate.mean, estimate.sigma)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Script, Turn};

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

    #[test]
    fn ages_grow_with_steps() {
        let ages: Vec<usize> = [0, 1, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16]
            .map(age_of)
            .to_vec();
        assert_eq!(ages, [0, 1, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8]);
    }
}
