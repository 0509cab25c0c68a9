//! A makespan that no schedule on so many GPUs beats, whatever the degrees of its workers.
//!
//! Two things take their time in any schedule: the trajectory that is longest when it runs alone on the fastest worker,
//! its tools included; and all work, at the best throughput that a GPU can have. Every new token is prefilled once (a
//! group's common prompt once in all), every output token is decoded in the best batch, and reads its context.

use std::collections::{BTreeMap, BTreeSet};

use crate::costs::Costs;
use crate::segment::Segment;
use crate::spec::Truth;
use crate::workload::{Script, Workload};

/// Seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// The longest trajectory alone.
    pub longest_alone_s: f64,
    /// All work over the throughput of all GPUs.
    pub work_s: f64,
}

impl Bound {
    /// The later of the two.
    pub fn seconds(&self) -> f64 {
        self.longest_alone_s.max(self.work_s)
    }
}

/// Seconds of a trajectory alone on a worker, its start and tools included, with its own KV all the time. `known`:
/// tokens of its prompt that a sibling may have computed before.
pub fn alone_s(script: &Script, costs: &Costs, known: u64) -> f64 {
    let mut seconds = script.start_s + script.tool_s();
    let mut computed = known.min(script.prompt.saturating_sub(1));
    for (turn, prompt) in script.turns.iter().zip(script.prompts()) {
        seconds += costs.prefill_s([(prompt - computed, computed)].into_iter());
        seconds += decode_alone_s(costs, prompt, turn.output);
        computed = prompt + turn.output - 1;
    }
    seconds
}

/// Seconds from the first to the last of `output` tokens behind a prompt, alone.
pub fn decode_alone_s(costs: &Costs, prompt: u64, output: u64) -> f64 {
    let segment = Segment {
        start: 0.0,
        first_step: costs.step_s(1, prompt),
        growth: costs.context_token_s,
        steps: output,
    };
    segment.duration(output - 1)
}

/// Least GPU-seconds of each kind of work, each at the degree where it is cheapest.
#[derive(Debug, Clone, Copy)]
struct Rates {
    decoded_token: f64,
    context_token: f64,
    prefilled_token: f64,
    prefilled_pair: f64,
}

impl Rates {
    fn of(degree: u32, truth: &Truth, costs: &Costs) -> Self {
        let gpus = f64::from(degree);
        Self {
            decoded_token: gpus * costs.least_token_s(truth.slots),
            context_token: gpus * costs.context_token_s,
            prefilled_token: gpus * costs.prefill_token_s,
            prefilled_pair: gpus * costs.prefill_pair_s,
        }
    }

    fn least(self, other: Self) -> Self {
        Self {
            decoded_token: self.decoded_token.min(other.decoded_token),
            context_token: self.context_token.min(other.context_token),
            prefilled_token: self.prefilled_token.min(other.prefilled_token),
            prefilled_pair: self.prefilled_pair.min(other.prefilled_pair),
        }
    }

    /// GPU-seconds that a workload takes at least.
    fn work_s(self, workload: &Workload) -> f64 {
        let mut seconds = 0.0;
        let mut seen = BTreeSet::new();
        for (index, script) in workload.scripts().iter().enumerate() {
            // The first of a group computes the common prompt; no schedule has to do it twice.
            let shared = workload.shared_prompt(index);
            let known = script
                .group
                .filter(|_| shared > 0)
                .is_some_and(|group| !seen.insert(group));
            let mut computed = if known {
                shared.min(script.prompt - 1)
            } else {
                0
            };
            for (turn, prompt) in script.turns.iter().zip(script.prompts()) {
                let new = (prompt - computed) as f64;
                let pairs = new * (computed as f64 + new / 2.0);
                seconds += new * self.prefilled_token + pairs * self.prefilled_pair;
                // The first token comes with the prefill; each later one reads all before it.
                let decoded = (turn.output - 1) as f64;
                let read = decoded * prompt as f64 + decoded * (decoded - 1.0).max(0.0) / 2.0;
                seconds += decoded * self.decoded_token + read * self.context_token;
                computed = prompt + turn.output - 1;
            }
        }
        seconds
    }
}

/// The bound for `gpus` GPUs that may be cut into workers of any degree in `truth`, with times multiplied by `slowdown`.
pub fn lower_bound(
    workload: &Workload,
    truth: &BTreeMap<u32, Truth>,
    gpus: u32,
    slowdown: f64,
) -> Bound {
    let allowed: Vec<(u32, &Truth, Costs)> = truth
        .iter()
        .filter(|(degree, _)| **degree <= gpus)
        .map(|(degree, truth)| (*degree, truth, truth.costs.slowed(slowdown)))
        .collect();
    let mut members = BTreeMap::new();
    for group in workload.scripts().iter().filter_map(|script| script.group) {
        *members.entry(group).or_insert(0) += 1;
    }
    let fastest = |(index, script): (usize, &Script)| {
        let has_siblings = script.group.is_some_and(|group| members[&group] > 1);
        let known = if has_siblings {
            workload.shared_prompt(index)
        } else {
            0
        };
        let all = allowed
            .iter()
            .map(|(_, _, costs)| alone_s(script, costs, known));
        all.fold(f64::INFINITY, f64::min)
    };
    let scripts = workload.scripts().iter().enumerate();
    let longest = scripts.map(fastest).fold(0.0, f64::max);
    let rates = allowed
        .iter()
        .map(|(degree, truth, costs)| Rates::of(*degree, truth, costs))
        .reduce(Rates::least);
    Bound {
        longest_alone_s: longest,
        work_s: rates.map_or(f64::INFINITY, |rates| rates.work_s(workload))
            / f64::from(gpus.max(1)),
    }
}
