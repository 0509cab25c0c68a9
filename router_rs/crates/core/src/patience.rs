//! How long a step may be passed by others.
//!
//! Predictions err, and tools take what they take: who is passed for being short may have minutes to go. One that is let in
//! when nearly all others have ended is then what all wait for. So nobody is passed for longer than all work still takes: a
//! bound of minutes in a long rollout, less in a short one, and less and less towards the end.
//!
//! To let those that wait in one after the other costs a context each time that is computed again, its own or that of who
//! makes room. The bound is no less than keeps that to a share of the time.

use crate::machine::Core;
use crate::worker::Worker;
use crate::{Micros, StepId};

/// Share of the time that may go into computing contexts again for taking turns.
const TURNS_SHARE: f64 = 0.1;
/// A wait is made longer by no less than one part in so many: so it is looked at a few times, however often the rest changes.
const LEAST_LONGER: u64 = 8;

impl Core {
    /// Bounds the wait of a step that others may pass: it began at `since`, and lasts no longer than `most_ms`.
    pub(crate) fn arm_patience(&mut self, id: StepId, since: Micros, most_ms: u64) {
        self.arm_hold_at(id, since.saturating_add(self.patience_us(most_ms)));
    }

    /// The bound of such a wait has come: true when it is later now, and armed so. More work has arrived, or is expected.
    pub(crate) fn is_patient(&mut self, id: StepId, since: Micros, most_ms: u64) -> bool {
        let at = since.saturating_add(self.patience_us(most_ms));
        let waited_us = self.now.saturating_sub(since);
        let is_later = at > self.now.saturating_add(waited_us / LEAST_LONGER);
        if is_later {
            self.arm_hold_at(id, at);
        }
        is_later
    }

    /// Microseconds for which a step may be passed by others, `most_ms` at most.
    pub(crate) fn patience_us(&self, most_ms: u64) -> Micros {
        let (mut tokens_per_us, mut again_us, mut count) = (0.0, 0.0, 0.0);
        for &place in self.workers.takers() {
            let worker: &Worker = self.workers.at(place);
            let context = worker.mean_context();
            tokens_per_us += worker.full_throughput(context);
            again_us += worker.belief.prefill_us(context as u64);
            count += 1.0;
        }
        let limit = most_ms.saturating_mul(1000);
        if count == 0.0 {
            return limit;
        }
        let rest_us = self.active.total_weight() as f64 / tokens_per_us;
        let waiting = (self.applicants.len() + self.queued) as f64 / count;
        let turns_us = waiting * again_us / count;
        let bound_us = (self.policy.wait_share * rest_us).max(turns_us / TURNS_SHARE);
        limit.min(bound_us as Micros)
    }
}
