//! From a worker's queue to its engine: keys, seats, sending over the slots, taking from others' queues.

use std::cmp::Reverse;

use crate::action::{Action, Dispatch};
use crate::machine::Core;
use crate::order::{Candidate, OrderKey};
use crate::placement::Choice;
use crate::priority::engine_priority;
use crate::step::{Attempt, Step, StepState};
use crate::trajectory::Trajectory;
use crate::worker::{Queued, Seat, Worker};
use crate::{StepId, WorkerId};

impl Core {
    /// Where a held step belongs: overdue ones first, by arrival; then by the order of the policy.
    pub(crate) fn key(&self, step: &Step, trajectory: &Trajectory) -> OrderKey {
        let order = self.policy.order.variant();
        let measure = if step.overdue {
            0
        } else {
            order.measure(&self.candidate(trajectory))
        };
        OrderKey {
            in_turn: !step.overdue,
            measure,
            seq: step.seq,
        }
    }

    /// Sends a placed step if its worker has a seat that nobody waits for and others are not worth waiting for; else puts it
    /// into the worker's queue.
    pub(crate) fn enqueue(&mut self, id: StepId, choice: Choice) {
        let Some(worker) = self.workers.get(choice.worker) else {
            return;
        };
        let sends = !self.paused
            && worker.queue.is_empty()
            && worker.has_free_slot(self.policy.backlog)
            && !(self.steps.get(id)).is_some_and(|step| self.may_gather(worker, step));
        let may_starve = self.policy.order.variant().may_starve();
        let max_wait = if sends || !may_starve {
            0
        } else {
            self.patience_us(self.policy.max_wait_ms)
        };
        let Some(step) = self.steps.get_mut(id) else {
            return;
        };
        step.reason = choice.reason;
        if sends {
            self.dispatch(id, choice.worker, false);
            return;
        }
        let since = step.arrived_at;
        step.overdue |= may_starve && since.saturating_add(max_wait) <= self.now;
        let overdue = step.overdue;
        self.set_state(id, StepState::HeldSlot);
        self.enter_queue(id, choice.worker);
        if may_starve && !overdue {
            self.arm_hold_at(id, since.saturating_add(max_wait));
        }
    }

    fn enter_queue(&mut self, id: StepId, worker: WorkerId) {
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let Some(trajectory) = self.trajectories.get(step.trajectory) else {
            return;
        };
        let key = self.key(step, trajectory);
        if let Some(step) = self.steps.get_mut(id) {
            step.key = key;
            step.queued_at = Some(worker);
        }
        let now = self.now;
        if let Some(worker) = self.workers.get_mut(worker)
            && worker.queue.insert(Queued { key, step: id })
        {
            worker.readied_at = now;
            self.queued += 1;
        }
        self.touched.push(worker);
    }

    /// Takes a held step out of whatever queue it is in.
    pub(crate) fn leave_queue(&mut self, id: StepId) {
        let Some(step) = self.steps.get_mut(id) else {
            return;
        };
        if !StepState::HELD.contains(&step.state) {
            return;
        }
        self.timers.holds.set(id, &mut step.hold_timer, None);
        let queued = Queued {
            key: step.key,
            step: id,
        };
        match step.state {
            StepState::HeldAdmission => {
                self.applicants.remove(&queued);
            }
            StepState::HeldNoWorker => {
                self.unplaced.remove(&id);
            }
            StepState::HeldSlot => {
                if let Some(worker) = step
                    .queued_at
                    .take()
                    .and_then(|id| self.workers.get_mut(id))
                    && worker.queue.remove(&queued)
                {
                    worker.note_idle(self.now);
                    self.queued -= 1;
                    if worker.queue.is_empty() {
                        self.timers.gatherings.disarm(worker.id);
                    }
                }
            }
            _ => {}
        }
    }

    /// Puts a held step where its key belongs now; does nothing to a step that is not in a queue.
    pub(crate) fn requeue(&mut self, id: StepId) {
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let Some(trajectory) = self.trajectories.get(step.trajectory) else {
            return;
        };
        let old = Queued {
            key: step.key,
            step: id,
        };
        match (step.state, step.queued_at) {
            (StepState::HeldSlot, Some(worker)) => {
                let key = self.key(step, trajectory);
                if let Some(at) = self.workers.get_mut(worker) {
                    at.queue.remove(&old);
                    at.queue.insert(Queued { key, step: id });
                }
                if let Some(step) = self.steps.get_mut(id) {
                    step.key = key;
                }
                self.touched.push(worker);
            }
            (StepState::HeldAdmission, _) => {
                let key = self.applicant_key(step, trajectory);
                self.applicants.remove(&old);
                self.applicants.insert(Queued { key, step: id });
                if let Some(step) = self.steps.get_mut(id) {
                    step.key = key;
                }
            }
            _ => {}
        }
    }

    /// Fills the free seats of a worker from its queue, then over its slots where that makes the engine preempt, then
    /// from the queues of others.
    pub(crate) fn pump(&mut self, id: WorkerId) {
        if self.paused || self.gathers(id) {
            return;
        }
        loop {
            let Some(worker) = self.workers.get(id) else {
                return;
            };
            let Some(&head) = worker.queue.first() else {
                break;
            };
            if worker.seats() < worker.slots as usize + self.policy.backlog as usize {
                self.send_head(id, head, false);
            } else if let Some(victim) = self.victim_for(worker, head) {
                if let Some(worker) = self.workers.get_mut(id) {
                    worker.running.remove(&victim);
                    worker.preempted.insert(victim);
                }
                if let Some(attempt) = self
                    .steps
                    .get_mut(victim.step)
                    .and_then(|s| s.attempt.as_mut())
                {
                    attempt.disturbed = true;
                    attempt.put_aside = true;
                }
                self.counters.preemptions += 1;
                self.send_head(id, head, true);
            } else {
                return;
            }
        }
        self.steal_for(id);
    }

    fn send_head(&mut self, worker: WorkerId, head: Queued, over: bool) {
        self.leave_queue(head.step);
        self.dispatch(head.step, worker, over);
    }

    /// The running step that the engine would put aside for the head of the queue, if the head outranks it clearly.
    ///
    /// Source: SGLang's `PrefillAdder.preempt_to_schedule`: lowest priority first, newest first, above a threshold.
    fn victim_for(&self, worker: &Worker, head: Queued) -> Option<Seat> {
        let order = self.policy.order.variant();
        if !order.preempts() || !worker.has_priority {
            return None;
        }
        if worker.over_sent(self.policy.backlog) >= self.policy.max_over_send as usize {
            return None;
        }
        let step = self.steps.get(head.step)?;
        let level = self.level_of(step, self.trajectories.get(step.trajectory)?);
        let lowest = *worker.running.first()?;
        // Not twice: what it generated is computed again each time, and it has waited once already.
        let attempt = self.steps.get(lowest.step)?.attempt.as_ref()?;
        let outranked =
            u16::from(level) >= u16::from(lowest.level) + u16::from(self.policy.preempt_levels);
        (outranked && !attempt.put_aside).then_some(lowest)
    }

    fn level_of(&self, step: &Step, trajectory: &Trajectory) -> u8 {
        let levels = self.policy.priority_levels;
        if step.overdue {
            return levels - 1;
        }
        self.policy
            .order
            .variant()
            .level(&self.candidate(trajectory), levels)
    }

    /// Takes held steps from other workers' queues while this one has free slots and the placement finds it better.
    fn steal_for(&mut self, id: WorkerId) {
        if !self.policy.placement.variant().steals() {
            return;
        }
        while self.queued > 0 {
            let Some((from, head)) = self.better_here(id) else {
                return;
            };
            let Some(step) = self.steps.get(head.step) else {
                return;
            };
            let trajectory = step.trajectory;
            debug_assert_eq!(step.queued_at, Some(from), "a queued step knows its queue");
            self.leave_queue(head.step);
            if let Some(step) = self.steps.get_mut(head.step) {
                step.reason = "free_slot";
            }
            self.settle_home(trajectory, id);
            self.counters.stolen += 1;
            self.dispatch(head.step, id, false);
        }
    }

    /// The first in order among the heads of other queues that would rather run on `id`.
    fn better_here(&self, id: WorkerId) -> Option<(WorkerId, Queued)> {
        let here = self.workers.get(id)?;
        if here.state != self.workers.usable_state()
            || self.now < here.suspect_until
            || !here.has_free_slot(self.policy.backlog)
        {
            return None;
        }
        let scene = self.scene();
        let rule = self.policy.placement.variant();
        let mut best: Option<(WorkerId, Queued)> = None;
        for other in self.workers.iter().filter(|other| other.id != id) {
            let Some(&head) = other.queue.first() else {
                continue;
            };
            let gathers = self.timers.gatherings.at(other.id).is_some();
            if gathers || best.is_some_and(|(_, first)| first <= head) {
                continue;
            }
            let Some(step) = self.steps.get(head.step) else {
                continue;
            };
            let Some(trajectory) = self.trajectories.get(step.trajectory) else {
                continue;
            };
            let bound = step.pinned.is_some() || step.failed_on.contains(&id);
            if !bound && rule.reconsiders(&scene, &self.ask(step, trajectory), other, here) {
                best = Some((other.id, head));
            }
        }
        best
    }

    /// The engines are paused, or go on. What runs there meanwhile says nothing of their speed.
    pub(crate) fn pause_dispatch(&mut self, paused: bool) {
        self.paused = paused;
        if paused {
            for id in self.steps.sorted_ids() {
                if let Some(attempt) = self.steps.get_mut(id).and_then(|s| s.attempt.as_mut()) {
                    attempt.disturbed = true;
                }
            }
        } else {
            self.touched.extend_from_slice(self.workers.ids());
            self.links_freed = true;
            self.reconsider_all();
        }
    }

    fn candidate(&self, trajectory: &Trajectory) -> Candidate {
        Candidate {
            attained: trajectory.generated,
            turns: trajectory.turns,
            remaining: self.urgency(trajectory),
        }
    }

    /// Remaining length by which a trajectory comes before others: as predicted, or the same for all of which no
    /// prediction is in force. What a trajectory has generated so far, and ended siblings, of which the short ones end
    /// first, tell too little: by them, who came late would start late, and be the last to end if it is long.
    pub(crate) fn urgency(&self, trajectory: &Trajectory) -> u64 {
        match self.prediction_of(trajectory) {
            Some(_) => trajectory.remaining,
            None => self.policy.prior_mean_tokens as u64,
        }
    }

    pub(crate) fn dispatch(&mut self, id: StepId, worker: WorkerId, over: bool) {
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let Some(trajectory) = self.trajectories.get_mut(step.trajectory) else {
            return;
        };
        trajectory.turns += u64::from(step.attempts == 0);
        let Some(trajectory) = self.trajectories.get(step.trajectory) else {
            return;
        };
        let level = self.level_of(step, trajectory);
        self.dispatches += 1;
        let seq = self.dispatches;
        let Some(at) = self.workers.get_mut(worker) else {
            return;
        };
        at.seat(Seat {
            level,
            seq: Reverse(seq),
            step: id,
        });
        let generation = at.generation;
        let seats = at.seats() as u32;
        let (batch, queued) = (seats.min(at.slots), seats > at.slots);
        let Some(step) = self.steps.get_mut(id) else {
            return;
        };
        step.attempts += 1;
        step.attempt = Some(Attempt {
            worker,
            generation,
            level,
            seq,
            dispatched_at: self.now,
            first_byte_at: None,
            batch,
            disturbed: over || queued,
            put_aside: false,
            seated: true,
        });
        let (attempt, reason) = (step.attempts, step.reason);
        let priority = engine_priority(level, self.policy.priority_spacing);
        self.set_state(id, StepState::Dispatched);
        self.counters.dispatched += 1;
        let dispatch = Dispatch {
            step: id,
            worker,
            generation,
            priority,
            level,
            attempt,
            reason,
        };
        self.actions.push_back(Action::Dispatch(dispatch));
    }
}
