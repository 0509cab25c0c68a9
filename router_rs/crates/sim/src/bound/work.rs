//! All work at the best throughput of each kind of work, for itself.
//!
//! Every new token is prefilled once (a group's common prompt once in all), every output token is decoded in the best
//! batch, and reads its context.
//!
//! The best batch is no larger than its KV: a step reads no more of the trajectories' own context than a worker holds, so
//! all that is read takes so many steps at least. With a price β for a token of own context, a step of b sequences that
//! read K tokens costs at least `α b + κ K + β K'`, K' of them own, when α is the least of `(t(b) - β C) / b` over all
//! batches and degrees. Each β gives a bound; the sum over all work is concave in β, and the highest is taken.

use std::collections::BTreeSet;

use super::Degree;
use crate::workload::Workload;

/// Thirds that the price of KV is narrowed down by: any price gives a bound, this many the highest to within 1e-9.
const PRICE_SEARCH: usize = 52;

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
            // One of a group computes the common prompt; no schedule has to do it twice.
            let shared = workload.shared_prompt(index);
            let mut computed = shared.min(script.prompt - 1);
            if script.group.is_some_and(|group| seen.insert(group)) {
                let common = workload.common_prompt(index) as f64;
                work.prefilled += common;
                work.pairs += common.powi(2) / 2.0;
            }
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

    /// GPU-seconds, each kind of work at the degree where it is cheapest, and the price of a token of own context in a
    /// step.
    fn gpu_s(self, degrees: &[Degree]) -> (f64, f64) {
        let least = |of: &dyn Fn(&Degree) -> f64| {
            let each = degrees.iter().map(of);
            each.fold(f64::INFINITY, f64::min)
        };
        let fixed = self.prefilled * least(&|one| one.gpus * one.costs.prefill_token_s)
            + self.pairs * least(&|one| one.gpus * one.costs.prefill_pair_s)
            + self.read * least(&|one| one.gpus * one.costs.context_token_s);
        let decode = |price: f64| {
            let token = least(&|one| {
                let paid = price * one.kv_tokens / one.gpus;
                one.gpus * one.costs.least_token_s(one.slots, paid)
            });
            self.decoded * token + self.own * price
        };
        // Past this price, all of the shortest step is paid for, and the other degrees' as well.
        let mut low = 0.0;
        let mut high = degrees
            .iter()
            .map(|one| one.gpus * one.costs.step_s(one.slots as usize, 0) / one.kv_tokens.max(1.0))
            .fold(0.0, f64::max);
        for _ in 0..PRICE_SEARCH {
            let third = (high - low) / 3.0;
            if decode(low + third) < decode(high - third) {
                low += third;
            } else {
                high -= third;
            }
        }
        let price = f64::midpoint(low, high);
        if decode(price) > decode(0.0) {
            (fixed + decode(price), price)
        } else {
            (fixed + decode(0.0), 0.0)
        }
    }
}

/// GPU-seconds of all of it, and the price of a token of own context in a step at which they are the most.
pub(super) fn gpu_s(workload: &Workload, degrees: &[Degree]) -> (f64, f64) {
    Work::of(workload).gpu_s(degrees)
}
