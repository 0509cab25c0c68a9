//! A makespan that no schedule on so many GPUs beats, whatever the degrees of its workers.
//!
//! Two things take their time in any schedule: the trajectory that is longest when it runs alone on the fastest worker,
//! its tools included; and all work, at the best throughput that a GPU can have. Every new token is prefilled once (a
//! group's common prompt once in all), every output token is decoded in the best batch, and reads its context.
//!
//! The best batch is no larger than its KV: a step reads no more of the trajectories' own context than a worker holds, so
//! all that is read takes so many steps at least. With a price β for a token of own context, a step of b sequences that
//! read K tokens costs at least `α b + κ K + β K'`, K' of them own, when α is the least of `(t(b) - β C) / b` over all
//! batches and degrees. Each β gives a bound; the sum over all work is concave in β, and the highest is taken.

use std::collections::{BTreeMap, BTreeSet};

use crate::costs::Costs;
use crate::segment::Segment;
use crate::spec::Truth;
use crate::workload::{Script, Workload};

/// Thirds that the price of KV is narrowed down by: any price gives a bound, this many the highest to within 1e-9.
const PRICE_SEARCH: usize = 52;

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

/// What a workload takes at least, in numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    /// Prompt tokens that have to be computed, and their pairs with what stands before them.
    prefilled: f64,
    pairs: f64,
    /// Tokens that decode steps give; the first of an answer comes with the prefill.
    decoded: f64,
    /// Context tokens that they read, and those of them that no sibling shares.
    read: f64,
    own: f64,
}

impl Work {
    fn of(workload: &Workload) -> Self {
        let mut work = Self::default();
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
                work.prefilled += new;
                work.pairs += new * (computed as f64 + new / 2.0);
                let decoded = (turn.output - 1) as f64;
                let read = decoded * prompt as f64 + decoded * (decoded - 1.0).max(0.0) / 2.0;
                work.decoded += decoded;
                work.read += read;
                work.own += read - decoded * shared as f64;
                computed = prompt + turn.output - 1;
            }
        }
        work
    }

    /// GPU-seconds, each kind of work at the degree where it is cheapest.
    fn gpu_s(self, degrees: &[(u32, &Truth, Costs)]) -> f64 {
        let least = |of: &dyn Fn(f64, &Truth, &Costs) -> f64| {
            let each = degrees
                .iter()
                .map(|(degree, truth, costs)| of(f64::from(*degree), truth, costs));
            each.fold(f64::INFINITY, f64::min)
        };
        let fixed = self.prefilled * least(&|gpus, _, costs| gpus * costs.prefill_token_s)
            + self.pairs * least(&|gpus, _, costs| gpus * costs.prefill_pair_s)
            + self.read * least(&|gpus, _, costs| gpus * costs.context_token_s);
        let decode = |price: f64| {
            let token = least(&|gpus, truth, costs| {
                let paid = price * truth.kv_tokens as f64 / gpus;
                gpus * costs.least_token_s(truth.slots, paid)
            });
            self.decoded * token + self.own * price
        };
        // Past this price, all of the shortest step is paid for, and the other degrees' as well.
        let mut low = 0.0;
        let mut high = degrees
            .iter()
            .map(|(degree, truth, costs)| {
                f64::from(*degree) * costs.step_s(truth.slots as usize, 0)
                    / truth.kv_tokens.max(1) as f64
            })
            .fold(0.0, f64::max);
        for _ in 0..PRICE_SEARCH {
            let third = (high - low) / 3.0;
            if decode(low + third) < decode(high - third) {
                low += third;
            } else {
                high -= third;
            }
        }
        fixed + decode(f64::midpoint(low, high)).max(decode(0.0))
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
    let work = match allowed.as_slice() {
        [] => f64::INFINITY,
        degrees => Work::of(workload).gpu_s(degrees),
    };
    Bound {
        longest_alone_s: longest,
        work_s: work / f64::from(gpus.max(1)),
    }
}
