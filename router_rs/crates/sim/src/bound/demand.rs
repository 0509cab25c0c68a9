//! What a workload asks for, step by step, in the numbers that the joint bound needs.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::workload::Workload;

/// One step, in tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    /// Prompt tokens that have to be computed even if all KV before them is there, and their pairs with what stands
    /// before.
    pub new: f64,
    pub pairs: f64,
    /// Tokens that decode steps give; the first of an answer comes with the prefill.
    pub decoded: f64,
    /// Context tokens that these steps read, all together.
    pub read: f64,
    /// Context at its first decode step.
    pub first_context: f64,
    /// Prompt tokens that siblings have in common with it.
    pub shared: f64,
}

impl Ask {
    /// Context tokens that its decode steps read and no sibling shares, all together.
    pub fn own_read(&self) -> f64 {
        self.read - self.decoded * self.shared
    }

    /// Context at its last decode step.
    pub fn last_context(&self) -> f64 {
        self.first_context + (self.decoded - 1.0).max(0.0)
    }

    /// Tokens by which the contexts of its decode steps are below `context`, all together.
    pub fn below(&self, context: f64) -> f64 {
        let most = context - self.first_context;
        let steps = most.ceil().clamp(0.0, self.decoded);
        steps * most - steps * (steps - 1.0).max(0.0) / 2.0
    }
}

/// All steps of all trajectories.
#[derive(Debug)]
pub(super) struct Demand {
    pub asks: Vec<Ask>,
    /// Steps of each trajectory, and the seconds in which it needs no worker: its start and its tools.
    pub trajectories: Vec<(Range<usize>, f64)>,
    /// Prompt tokens that one of each group computes for all, and their pairs.
    pub common: f64,
    pub common_pairs: f64,
    /// Least context of any decode step.
    pub least_context: f64,
}

impl Demand {
    pub fn of(workload: &Workload) -> Self {
        let mut demand = Self {
            asks: Vec::with_capacity(workload.steps()),
            trajectories: Vec::with_capacity(workload.scripts().len()),
            common: 0.0,
            common_pairs: 0.0,
            least_context: f64::INFINITY,
        };
        let mut met = BTreeSet::new();
        for (index, script) in workload.scripts().iter().enumerate() {
            let shared = workload.shared_prompt(index);
            // Whoever comes first computes what all share; in the time of any one, a sibling may have done it.
            let mut computed = shared.min(script.prompt - 1);
            if script.group.is_some_and(|group| met.insert(group)) {
                let common = workload.common_prompt(index) as f64;
                demand.common += common;
                demand.common_pairs += common.powi(2) / 2.0;
            }
            let first = demand.asks.len();
            for (turn, prompt) in script.turns.iter().zip(script.prompts()) {
                let new = (prompt - computed) as f64;
                let decoded = (turn.output - 1) as f64;
                let ask = Ask {
                    new,
                    pairs: new * (computed as f64 + new / 2.0),
                    decoded,
                    read: decoded * prompt as f64 + decoded * (decoded - 1.0).max(0.0) / 2.0,
                    first_context: prompt as f64,
                    shared: shared as f64,
                };
                demand.asks.push(ask);
                if turn.output > 1 {
                    demand.least_context = demand.least_context.min(prompt as f64);
                }
                computed = prompt + turn.output - 1;
            }
            let idle_s = script.start_s + script.tool_s();
            let steps = first..demand.asks.len();
            demand.trajectories.push((steps, idle_s));
        }
        if demand.least_context.is_infinite() {
            demand.least_context = 0.0;
        }
        demand
    }
}
