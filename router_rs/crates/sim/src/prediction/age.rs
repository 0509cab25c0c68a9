//! What a predictor can say of trajectories of one age: the lengths that they really have, seen through its noise.

use super::{Estimate, Prediction};
use crate::draw::{Purpose, normal, uniform};
use crate::workload::Workload;

/// Points that stand for the distribution of lengths of one age.
const ATOMS: usize = 128;
/// Spread that a predictor without information claims: that of a good one.
const CLAIMED_SIGMA: f64 = 0.3;

/// Steps of about the same number are one age: 0, 1, 2, 3, 4-5, 6-7, 8-11, 12-15, 16-23 and so on.
fn age_of(step: usize) -> usize {
    if step < 4 {
        return step;
    }
    let octave = step.ilog2() as usize;
    2 * octave + (step >> (octave - 1) & 1)
}

/// Remaining lengths of all trajectories that reach an age.
pub(super) struct Age {
    sorted: Vec<f64>,
    /// Logarithms of quantiles of `sorted`, and the lengths.
    atoms: Vec<(f64, f64)>,
}

/// By age.
pub(super) struct Ages(Vec<Age>);

impl Ages {
    pub fn new(workload: &Workload, remaining: &[f64], starts: &[usize]) -> Self {
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

    /// The age of trajectories at their step of this number (from 0).
    pub fn of(&self, step: usize) -> &Age {
        &self.0[age_of(step)]
    }
}

impl Age {
    /// What `kind` says of a trajectory with `left` tokens to come. `place`: seed, trajectory and step of the draws.
    pub fn estimate(
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

#[cfg(test)]
mod tests {
    use super::age_of;

    #[test]
    fn ages_grow_with_steps() {
        let ages: Vec<usize> = [0, 1, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16]
            .map(age_of)
            .to_vec();
        assert_eq!(ages, [0, 1, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8]);
    }
}
