//! The paper's premise (§5.2): a group takes `longest x T x F(size)`, whoever else is in it.
//!
//! With a step profile, `T` is the step time at batch 1 and `F(s)` the step time at batch `s` over
//! it, at the mean context of the workload; beyond the slots a group takes turns, so `F` grows with
//! `s / slots`. It still knows no KV capacity, no prefill, no tool gaps and no uncertainty: see
//! [`super::simulated_cost`] for a cost that agrees with a cluster.

use super::cost::GroupCost;
use super::profile::DegreeProfile;
use super::{Profile, SolveError, Workload};

/// Seconds a token by group size: a table, then a straight line.
struct Pace {
    by_size: Vec<f64>,
    slope_beyond: f64,
}

impl Pace {
    fn at(&self, size: usize) -> f64 {
        match self.by_size.get(size - 1) {
            Some(&pace) => pace,
            None => {
                self.by_size[self.by_size.len() - 1]
                    + self.slope_beyond * (size - self.by_size.len()) as f64
            }
        }
    }
}

/// `longest x T x F(size)` over ranked lengths.
pub(super) struct SizeOnlyCost<'a> {
    lengths: &'a [f64],
    paces: Vec<Pace>,
}

impl<'a> SizeOnlyCost<'a> {
    pub(super) fn new(
        lengths: &'a [f64],
        profile: &Profile,
        degrees: &[u32],
        workload: &Workload,
    ) -> Result<Self, SolveError> {
        // A trajectory's context over its life, averaged over all tokens of the workload.
        let (sum, squares) = lengths
            .iter()
            .fold((0.0, 0.0), |(sum, squares), l| (sum + l, squares + l * l));
        let grown = if sum > 0.0 {
            (1.0 + workload.input_per_output) * squares / sum / 2.0
        } else {
            0.0
        };
        let context = workload.context_tokens + grown;
        let paces = degrees
            .iter()
            .map(|&degree| {
                Ok(match profile.degree(degree)? {
                    DegreeProfile::Factors { t, f } => Pace {
                        by_size: f.iter().map(|factor| t * factor).collect(),
                        slope_beyond: 0.0,
                    },
                    DegreeProfile::Steps(steps) => {
                        let by_size: Vec<f64> = (1..=steps.slots.min(lengths.len().max(1) as u32))
                            .map(|batch| steps.step_seconds(f64::from(batch), context))
                            .collect();
                        let slope_beyond = by_size[by_size.len() - 1] / by_size.len() as f64;
                        Pace {
                            by_size,
                            slope_beyond,
                        }
                    }
                })
            })
            .collect::<Result<_, SolveError>>()?;
        Ok(Self { lengths, paces })
    }
}

impl GroupCost for SizeOnlyCost<'_> {
    fn ranks(&self) -> usize {
        self.lengths.len()
    }

    fn shapes(&self) -> usize {
        self.paces.len()
    }

    #[inline]
    fn cost(&self, shape: usize, head: usize, tail: usize) -> f64 {
        if head == tail {
            0.0
        } else {
            self.lengths[head] * self.paces[shape].at(tail - head)
        }
    }
}
