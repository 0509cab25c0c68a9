//! Steps that a worker prefills together.
//!
//! An engine prefills before it decodes, and a prefill batch takes at least one reading of the weights, however few its
//! tokens are. While it lasts, nobody decodes: agents that append 200 tokens a step keep an engine of 70 others from
//! decoding for a quarter of its time. So a step of few new tokens is held for the next to come and share its batch, where
//! that is worth more to those that decode than the wait costs those that are held.
//!
//! Worth is the part of the reading that the tokens held do not fill, times the running over the held. The next is expected
//! as soon as one of the running ends, since as many come as go; where that takes longer than it is worth nobody is held, so
//! a worker at low load, or with long answers, gathers nothing. If nobody comes, those held are sent when they have waited as
//! long as it was worth: at most twice the cost of having known.

use crate::machine::Core;
use crate::step::Step;
use crate::worker::Worker;
use crate::{Micros, WorkerId};

impl Core {
    /// True for a step that may be held on `worker`, which has a seat for it, until another comes.
    pub(crate) fn may_gather(&self, worker: &Worker, step: &Step) -> bool {
        self.gathered_us(worker, step)
            .is_some_and(|new_us| self.worth_us(worker, new_us, 1) > 0.0)
    }

    /// Microseconds of prefill of a step that may share its batch: of its tokens that are not on `worker` yet. None for one
    /// that fills a batch, or has waited enough.
    fn gathered_us(&self, worker: &Worker, step: &Step) -> Option<f64> {
        // Asked of every arrival: nearly all that goes on is told by the worker alone.
        if step.attempts > 0 || step.overdue || self.worth_us(worker, 0.0, 1) <= 0.0 {
            return None;
        }
        let there = (self.trajectories.get(step.trajectory))
            .filter(|trajectory| trajectory.home.is_some_and(|home| home.worker == worker.id))
            .map_or(0, |trajectory| self.resident_tokens(trajectory));
        let new_us = (worker.belief).prefill_us(step.prompt_tokens.saturating_sub(there));
        (new_us < worker.belief.token_us(1.0, 0.0)).then_some(new_us)
    }

    /// Microseconds for which it is worth to wait for one more when `held` steps with `new_us` of prefill are; 0 where nobody
    /// is expected in that time.
    fn worth_us(&self, worker: &Worker, new_us: f64, held: usize) -> f64 {
        let running = worker.running.len() as f64;
        let spare_us = worker.belief.token_us(1.0, 0.0) - new_us;
        let worth_us = self.policy.gather_weight * spare_us * running / held as f64;
        let next_us = self.estimator.step_tokens() * worker.token_us(running) / running;
        if next_us < worth_us { worth_us } else { 0.0 }
    }

    /// Until when the head of the queue of `worker` is held for another to come; none where it is not, or has no seat.
    fn gathering_ends_at(&self, worker: &Worker) -> Option<Micros> {
        if worker.queue.is_empty() {
            return None;
        }
        let seats = worker.slots as usize + self.policy.backlog as usize;
        let free = seats.saturating_sub(worker.seats());
        let (mut new_us, mut held) = (0.0, 0);
        for queued in worker.queue.iter().take(free) {
            new_us += self.gathered_us(worker, self.steps.get(queued.step)?)?;
            held += 1;
            if self.worth_us(worker, new_us, held) <= 0.0 {
                return None;
            }
        }
        let worth_us = self.worth_us(worker, new_us, held.max(1)) as Micros;
        let wait_us = worth_us.min(self.policy.gather_most_ms.saturating_mul(1000));
        (held > 0 && wait_us > 0).then(|| worker.readied_at.saturating_add(wait_us))
    }

    /// True while the queue of a worker is held for another to come; a timer looks again when that ends.
    pub(crate) fn gathers(&mut self, id: WorkerId) -> bool {
        let ends = (self.workers.get(id))
            .and_then(|worker| self.gathering_ends_at(worker))
            .filter(|&ends| ends > self.now);
        match ends {
            Some(at) => self.timers.gatherings.arm(id, at),
            None => self.timers.gatherings.disarm(id),
        }
        ends.is_some()
    }
}
