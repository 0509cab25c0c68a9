//! The way of a step to a worker: arrival, admission, placement, the worker's queue, dispatch.

use std::cmp::Reverse;

use crate::action::{Action, Dispatch, RejectReason};
use crate::admission::Applicant;
use crate::event::{EventError, StepArrived};
use crate::machine::Core;
use crate::order::{Candidate, OrderKey};
use crate::placement::{Ask, Choice, Scene};
use crate::priority::engine_priority;
use crate::step::{Attempt, Step, StepState};
use crate::timer::Timer;
use crate::trajectory::Trajectory;
use crate::worker::{Queued, Seat, Worker, WorkerState};
use crate::{Micros, StepId, WorkerId};

impl Core {
    pub(crate) fn step_arrived(&mut self, arrived: StepArrived) -> Result<(), EventError> {
        let StepArrived {
            step: id,
            trajectory,
            group,
            prompt_tokens,
            chain,
            pinned_worker,
        } = arrived;
        if self.steps.contains(id) {
            return Err(EventError::DuplicateStep(id));
        }
        self.greet(trajectory, group);
        self.arrivals += 1;
        self.counters.arrived += 1;
        self.steps.insert(
            id,
            Step {
                id,
                trajectory,
                seq: self.arrivals,
                arrived_at: self.now,
                prompt_tokens,
                context_before: 0,
                pinned: pinned_worker,
                chain,
                state: StepState::Arrived,
                key: OrderKey::default(),
                queued_at: None,
                reason: "",
                overdue: false,
                attempts: 0,
                failed_on: Vec::new(),
                attempt: None,
            },
        );
        let mut waits = false;
        let mut context_before = 0;
        if let Some(trajectory) = self.trajectories.get_mut(trajectory) {
            trajectory.live.push(id);
            trajectory.tally.enter(StepState::Arrived);
            context_before = trajectory.context_tokens;
            // The prompt is the context of now; what it says is an estimate until the worker has counted.
            trajectory.context_tokens = trajectory.context_tokens.max(prompt_tokens);
            waits = trajectory.tally.count(StepState::Aborting) > 0;
        }
        if let Some(step) = self.steps.get_mut(id) {
            step.context_before = context_before;
        }
        self.renew_footprint(trajectory);
        if waits {
            self.set_state(id, StepState::HeldPredecessor);
            self.arm_hold(id, self.now, self.policy.abort_wait_ms);
        } else {
            self.admit(id);
        }
        Ok(())
    }

    /// Gives a held or new step to admission.
    pub(crate) fn admit(&mut self, id: StepId) {
        self.timers.disarm(Timer::Hold(id));
        if !self.has_usable_worker() {
            self.no_worker(id);
            return;
        }
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let Some(trajectory) = self.trajectories.get(step.trajectory) else {
            return;
        };
        let rule = self.policy.admission.variant();
        let applicant = self.applicant(trajectory);
        // A step that had a worker before is not sent back to the queue: its failed attempt has waited there.
        let passes = step.attempts > 0 || rule.passes(&applicant);
        if passes || (self.applicants.is_empty() && self.fits_somewhere(&applicant)) {
            self.place(id);
            return;
        }
        let key = self.applicant_key(step, trajectory);
        let since = step.arrived_at;
        self.applicants.insert(Queued { key, step: id });
        if let Some(step) = self.steps.get_mut(id) {
            step.key = key;
        }
        self.set_state(id, StepState::HeldAdmission);
        self.arm_hold(id, since, self.policy.max_hold_ms);
    }

    /// Lets the head of the applicants in if it fits on some worker; false when nothing changed.
    pub(crate) fn admit_head(&mut self) -> bool {
        let Some(&head) = self.applicants.first() else {
            return false;
        };
        if !self.may_enter(head.step) {
            return false;
        }
        self.let_in(head);
        true
    }

    /// True when admission would let this applicant in now.
    pub(crate) fn may_enter(&self, id: StepId) -> bool {
        let Some(step) = self.steps.get(id) else {
            return false;
        };
        let Some(trajectory) = self.trajectories.get(step.trajectory) else {
            return false;
        };
        let applicant = self.applicant(trajectory);
        // Another step may have given the trajectory its home in the meantime.
        self.policy.admission.variant().passes(&applicant) || self.fits_somewhere(&applicant)
    }

    /// Takes an applicant out of the queue and places it.
    pub(crate) fn let_in(&mut self, applicant: Queued) {
        self.applicants.remove(&applicant);
        self.timers.disarm(Timer::Hold(applicant.step));
        self.place(applicant.step);
    }

    fn applicant(&self, trajectory: &Trajectory) -> Applicant {
        Applicant {
            admitted: self.home_of(trajectory).is_some(),
            footprint: self.footprint(trajectory),
            backlog: self.policy.backlog,
            kv_headroom: self.policy.kv_headroom,
        }
    }

    fn fits_somewhere(&self, applicant: &Applicant) -> bool {
        let rule = self.policy.admission.variant();
        let usable = self.usable_state();
        self.workers
            .values()
            .any(|worker| worker.state == usable && rule.fits(worker, applicant))
    }

    fn applicant_key(&self, step: &Step, trajectory: &Trajectory) -> OrderKey {
        let mut key = self.key(step, trajectory);
        if self.policy.admission.variant().longest_first() {
            key.measure = u64::MAX - trajectory.remaining;
        }
        key
    }

    fn key(&self, step: &Step, trajectory: &Trajectory) -> OrderKey {
        let measure = self.policy.order.variant().measure(&candidate(trajectory));
        OrderKey {
            in_turn: !step.overdue,
            measure,
            seq: step.seq,
        }
    }

    /// The state of workers that can be used: draining ones only while no other is there.
    pub(crate) fn usable_state(&self) -> WorkerState {
        if self
            .workers
            .values()
            .any(|worker| worker.state == WorkerState::Active)
        {
            WorkerState::Active
        } else {
            WorkerState::Draining
        }
    }

    pub(crate) fn has_usable_worker(&self) -> bool {
        self.workers
            .values()
            .any(|worker| worker.state != WorkerState::Down)
    }

    /// Holds a step for a worker to come, or rejects it.
    fn no_worker(&mut self, id: StepId) {
        let wait = self.policy.worker_wait_ms.saturating_mul(1000);
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let since = step.arrived_at;
        if since.saturating_add(wait) <= self.now {
            self.reject(id, RejectReason::NoWorker);
            return;
        }
        self.unplaced.insert(id);
        self.set_state(id, StepState::HeldNoWorker);
        self.arm_hold(id, since, self.policy.worker_wait_ms);
    }

    /// Chooses a worker for a step and sends it there, or queues it there.
    pub(crate) fn place(&mut self, id: StepId) {
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut memory = std::mem::take(&mut self.memory);
        let choice = self.choose(id, &mut candidates, &mut memory);
        self.candidates = candidates;
        self.memory = memory;
        match choice {
            Some(choice) => {
                self.give_home(id, choice.worker);
                self.enqueue(id, choice);
            }
            None => self.no_worker(id),
        }
    }

    fn choose(
        &self,
        id: StepId,
        candidates: &mut Vec<WorkerId>,
        memory: &mut crate::placement::Memory,
    ) -> Option<Choice> {
        let step = self.steps.get(id)?;
        let trajectory = self.trajectories.get(step.trajectory)?;
        let usable = self.usable_state();
        if let Some(worker) = step.pinned.and_then(|pinned| self.workers.get(&pinned))
            && worker.state != WorkerState::Down
            && !step.failed_on.contains(&worker.id)
        {
            return Some(Choice {
                worker: worker.id,
                reason: "pinned",
            });
        }
        // The best class that is not empty: fresh, then failed before, then suspect, then both.
        candidates.clear();
        let mut best = u8::MAX;
        for worker in self
            .workers
            .values()
            .filter(|worker| worker.state == usable)
        {
            let suspect = u8::from(self.now < worker.suspect_until);
            let class = 2 * suspect + u8::from(step.failed_on.contains(&worker.id));
            if class < best {
                best = class;
                candidates.clear();
            }
            if class == best {
                candidates.push(worker.id);
            }
        }
        let ask = self.ask(step, trajectory);
        let applicant = self.applicant(trajectory);
        if !applicant.admitted {
            let rule = self.policy.admission.variant();
            let fits = |id: &WorkerId| {
                self.workers
                    .get(id)
                    .is_some_and(|w| rule.fits(w, &applicant))
            };
            if candidates.iter().any(fits) {
                candidates.retain(fits);
            }
        }
        if candidates.is_empty() {
            return None;
        }
        Some(
            self.policy
                .placement
                .variant()
                .choose(&self.scene(), &ask, candidates, memory),
        )
    }

    fn scene(&self) -> Scene<'_> {
        Scene {
            now: self.now,
            workers: &self.workers,
            by_degree: &self.by_degree,
            active: &self.active,
            plan: self.plan.as_ref(),
            policy: &self.policy,
            duty: self.estimator.duty(),
            step_tokens: self.estimator.step_tokens(),
        }
    }

    fn ask<'a>(&'a self, step: &'a Step, trajectory: &Trajectory) -> Ask<'a> {
        let group = trajectory.group.and_then(|group| self.groups.get(group));
        Ask {
            trajectory: trajectory.id,
            remaining: trajectory.remaining,
            home: self.home_of(trajectory).map(|worker| worker.id),
            resident_tokens: trajectory.resident_tokens,
            footprint: self.footprint(trajectory),
            sibling_home: group.and_then(|group| group.last_home),
            informed: trajectory.prediction.is_some() || trajectory.generated > 0,
            prompt_tokens: step.prompt_tokens,
            chain: &step.chain,
        }
    }

    fn give_home(&mut self, id: StepId, worker: WorkerId) {
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let Some(trajectory) = self.trajectories.get(step.trajectory) else {
            return;
        };
        let blank = trajectory.prediction.is_none() && trajectory.generated == 0;
        let (id, group) = (trajectory.id, trajectory.group);
        if blank && let Some(group) = group.and_then(|group| self.groups.get_mut(group)) {
            group.last_home = Some(worker);
        }
        self.settle_home(id, worker);
    }

    /// Sends a placed step if its worker has a seat and nobody waits for it, else puts it into the worker's queue.
    fn enqueue(&mut self, id: StepId, choice: Choice) {
        let Some(worker) = self.workers.get(&choice.worker) else {
            return;
        };
        let sends = worker.queue.is_empty() && worker.has_free_slot(self.policy.backlog);
        let may_starve = self.policy.order.variant().may_starve();
        let max_wait = self.policy.max_wait_ms.saturating_mul(1000);
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
            self.arm_hold(id, since, self.policy.max_wait_ms);
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
        if let Some(worker) = self.workers.get_mut(&worker)
            && worker.queue.insert(Queued { key, step: id })
        {
            self.queued += 1;
        }
        self.touched.push(worker);
    }

    /// Takes a held step out of whatever queue it is in.
    pub(crate) fn leave_queue(&mut self, id: StepId) {
        self.timers.disarm(Timer::Hold(id));
        let Some(step) = self.steps.get_mut(id) else {
            return;
        };
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
                    .and_then(|id| self.workers.get_mut(&id))
                    && worker.queue.remove(&queued)
                {
                    self.queued -= 1;
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
                if let Some(at) = self.workers.get_mut(&worker) {
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
        loop {
            let Some(worker) = self.workers.get(&id) else {
                return;
            };
            let Some(&head) = worker.queue.first() else {
                break;
            };
            if worker.seats() < worker.slots as usize + self.policy.backlog as usize {
                self.send_head(id, head, false);
            } else if let Some(victim) = self.victim_for(worker, head) {
                if let Some(worker) = self.workers.get_mut(&id) {
                    worker.running.remove(&victim);
                    worker.preempted.insert(victim);
                }
                if let Some(attempt) = self
                    .steps
                    .get_mut(victim.step)
                    .and_then(|s| s.attempt.as_mut())
                {
                    attempt.disturbed = true;
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
        (u16::from(level) >= u16::from(lowest.level) + u16::from(self.policy.preempt_levels))
            .then_some(lowest)
    }

    fn level_of(&self, step: &Step, trajectory: &Trajectory) -> u8 {
        let levels = self.policy.priority_levels;
        if step.overdue {
            return levels - 1;
        }
        self.policy
            .order
            .variant()
            .level(&candidate(trajectory), levels)
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
        let here = self.workers.get(&id)?;
        if here.state != self.usable_state()
            || self.now < here.suspect_until
            || !here.has_free_slot(self.policy.backlog)
        {
            return None;
        }
        let scene = self.scene();
        let rule = self.policy.placement.variant();
        let mut best: Option<(WorkerId, Queued)> = None;
        for other in self.workers.values().filter(|other| other.id != id) {
            let Some(&head) = other.queue.first() else {
                continue;
            };
            if best.is_some_and(|(_, first)| first <= head) {
                continue;
            }
            let Some(step) = self.steps.get(head.step) else {
                continue;
            };
            let Some(trajectory) = self.trajectories.get(step.trajectory) else {
                continue;
            };
            let bound = step.pinned.is_some() || step.failed_on.contains(&id);
            if !bound && rule.reconsiders(&scene, &self.ask(step, trajectory), other.id, id) {
                best = Some((other.id, head));
            }
        }
        best
    }

    fn dispatch(&mut self, id: StepId, worker: WorkerId, over: bool) {
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
        let Some(at) = self.workers.get_mut(&worker) else {
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

    /// The wait of a held step has reached its bound.
    pub(crate) fn hold_expired(&mut self, id: StepId) {
        let Some(step) = self.steps.get_mut(id) else {
            return;
        };
        self.counters.holds_expired += 1;
        match step.state {
            StepState::HeldPredecessor => self.admit(id),
            StepState::HeldAdmission => {
                let applicant = Queued {
                    key: step.key,
                    step: id,
                };
                self.let_in(applicant);
            }
            StepState::HeldSlot => {
                step.overdue = true;
                self.requeue(id);
            }
            StepState::HeldNoWorker => {
                self.unplaced.remove(&id);
                self.reject(id, RejectReason::NoWorker);
            }
            _ => {}
        }
    }

    /// Bounds the wait of a queued step anew after the policy changed.
    pub(crate) fn bound_wait(&mut self, id: StepId) {
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let since = step.arrived_at;
        match step.state {
            StepState::HeldSlot if step.overdue => {}
            StepState::HeldSlot if !self.policy.order.variant().may_starve() => {
                self.timers.disarm(Timer::Hold(id));
            }
            StepState::HeldSlot => self.arm_hold(id, since, self.policy.max_wait_ms),
            StepState::HeldAdmission => self.arm_hold(id, since, self.policy.max_hold_ms),
            StepState::HeldNoWorker => self.arm_hold(id, since, self.policy.worker_wait_ms),
            _ => {}
        }
    }

    pub(crate) fn arm_hold(&mut self, id: StepId, since: Micros, bound_ms: u64) {
        let at = since
            .saturating_add(bound_ms.saturating_mul(1000))
            .max(self.now);
        self.timers.arm(Timer::Hold(id), at);
    }
}

fn candidate(trajectory: &Trajectory) -> Candidate {
    Candidate {
        attained: trajectory.generated,
        turns: trajectory.turns,
        remaining: trajectory.remaining,
    }
}
