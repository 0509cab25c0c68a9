//! Everything that will be said in a run, worked out beforehand.

use super::age::Ages;
use super::{Estimate, Prediction};
use crate::workload::Workload;

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
                        let left = remaining[starts[trajectory] + step];
                        estimates.push(ages.of(step).estimate(kind, left, step, place));
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
