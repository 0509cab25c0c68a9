//! Trajectories by predicted length, longest first. Ties keep the caller's order, so that a plan is
//! a function of its input.

use super::SolveError;

/// Lengths and sigmas in rank order, and which input each rank is.
pub(super) struct Ranking {
    /// Lengths, descending.
    pub lengths: Vec<f64>,
    /// Sigma of each rank; empty when all are zero.
    pub sigmas: Vec<f64>,
    /// Input index of each rank.
    pub order: Vec<u32>,
}

impl Ranking {
    pub(super) fn new(lengths: &[f64], sigmas: &[f64]) -> Result<Self, SolveError> {
        if lengths.is_empty() {
            return Err(SolveError::NoLengths);
        }
        if u32::try_from(lengths.len()).is_err() {
            return Err(SolveError::TooManyLengths(lengths.len()));
        }
        if !sigmas.is_empty() && sigmas.len() != lengths.len() {
            return Err(SolveError::SigmaCount {
                sigmas: sigmas.len(),
                lengths: lengths.len(),
            });
        }
        for (field, values) in [("lengths", lengths), ("sigmas", sigmas)] {
            if let Some(index) = values
                .iter()
                .position(|value| !(value.is_finite() && *value >= 0.0))
            {
                return Err(SolveError::BadNumber {
                    field,
                    index,
                    value: values[index],
                });
            }
        }
        // Non-negative floats order like their bits; inverted, the longest comes first and equal
        // ones keep the input order.
        let mut keys: Vec<(u64, u32)> = (0..)
            .zip(lengths)
            .map(|(index, length)| (!(length + 0.0).to_bits(), index))
            .collect();
        keys.sort_unstable();
        let order: Vec<u32> = keys.iter().map(|&(_, index)| index).collect();
        let ranked = keys.iter().map(|&(key, _)| f64::from_bits(!key)).collect();
        let sigmas = if sigmas.iter().all(|&sigma| sigma == 0.0) {
            Vec::new()
        } else {
            order.iter().map(|&index| sigmas[index as usize]).collect()
        };
        Ok(Self {
            lengths: ranked,
            sigmas,
            order,
        })
    }

    /// Ranks at which the DP may cut, from 0 to n. Trajectories shorter than `threshold` are
    /// merged, in rank order, into blocks of at least `threshold` tokens together (short-trajectory
    /// aggregation, paper §5.2).
    pub(super) fn cuts(&self, threshold: f64) -> Vec<usize> {
        let n = self.lengths.len();
        let long = self.lengths.partition_point(|&length| length >= threshold);
        let mut cuts: Vec<usize> = (0..=long).collect();
        let mut block = 0.0;
        for rank in long..n {
            block += self.lengths[rank];
            if block >= threshold || rank + 1 == n {
                cuts.push(rank + 1);
                block = 0.0;
            }
        }
        cuts
    }
}
