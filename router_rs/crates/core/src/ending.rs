//! How attempts and steps end: first byte, abort, failed attempt, end.
//!
//! Invariant: a seat is given back exactly once, by [`Core::release_seat`], on the life of the worker that it was
//! taken on.

use std::cmp::Reverse;

use crate::action::{ExpireReason, RejectReason};
use crate::event::{EventError, FailureKind, Outcome, StepEnded};
use crate::machine::Core;
use crate::step::{Attempt, Step, StepState};
use crate::worker::{Seat, WorkerState};
use crate::{StepId, TrajectoryId, WorkerId};

impl Core {
    pub(crate) fn first_byte(&mut self, id: StepId) -> Result<(), EventError> {
        let step = self.steps.get_mut(id).ok_or(EventError::UnknownStep(id))?;
        if step.state != StepState::Dispatched {
            self.counters.stale_events += 1;
            return Ok(());
        }
        if let Some(attempt) = &mut step.attempt {
            attempt.first_byte_at = Some(self.now);
            if let Some(worker) = self.workers.get_mut(attempt.worker)
                && worker.generation == attempt.generation
            {
                worker.clear_suspicion();
            }
        }
        self.set_state(id, StepState::Streaming);
        Ok(())
    }

    pub(crate) fn step_aborting(&mut self, id: StepId) -> Result<(), EventError> {
        let step = self.steps.get(id).ok_or(EventError::UnknownStep(id))?;
        if matches!(step.state, StepState::Aborting | StepState::Rejected) {
            return Ok(());
        }
        self.leave_queue(id);
        self.set_state(id, StepState::Aborting);
        Ok(())
    }

    pub(crate) fn attempt_failed(
        &mut self,
        id: StepId,
        worker: WorkerId,
        generation: u64,
        kind: FailureKind,
    ) -> Result<(), EventError> {
        let step = self.steps.get_mut(id).ok_or(EventError::UnknownStep(id))?;
        let running = matches!(
            step.state,
            StepState::Dispatched
                | StepState::Streaming
                | StepState::Withdrawn
                | StepState::Aborting
        );
        let same = step
            .attempt
            .is_some_and(|a| (a.worker, a.generation) == (worker, generation));
        if !(running && same) {
            self.counters.stale_events += 1;
            return Ok(());
        }
        let state = step.state;
        let attempts = step.attempts;
        if !step.failed_on.contains(&worker) {
            step.failed_on.push(worker);
        }
        self.counters.attempts_failed += 1;
        self.release_seat(id);
        if let Some(step) = self.steps.get_mut(id) {
            step.attempt = None;
        }
        if kind == FailureKind::Unreachable {
            self.suspect(worker, generation);
        }
        if state == StepState::Aborting {
            return Ok(());
        }
        if attempts >= self.policy.max_attempts {
            self.reject(id, RejectReason::AttemptsExhausted);
        } else {
            self.place(id);
        }
        Ok(())
    }

    /// Keeps new steps off a worker that could not be reached, and gives its queue to others if there are any.
    fn suspect(&mut self, id: WorkerId, generation: u64) {
        let Some(place) = self.workers.place_of(id) else {
            return;
        };
        let worker = self.workers.at(place);
        if worker.generation != generation || worker.state == WorkerState::Down {
            return;
        }
        self.workers.suspect(place, self.now);
        let usable = self.workers.usable_state();
        let others = self.workers.iter().any(|other| {
            other.id != id && other.state == usable && self.now >= other.suspect_until
        });
        if others {
            self.replace_queue(id);
        }
    }

    /// Places the queue of a worker anew.
    pub(crate) fn replace_queue(&mut self, worker: WorkerId) {
        let Some(worker) = self.workers.get(worker) else {
            return;
        };
        let steps: Vec<StepId> = worker.queue.iter().map(|queued| queued.step).collect();
        for &step in &steps {
            self.leave_queue(step);
        }
        for step in steps {
            self.place(step);
        }
    }

    /// Gives back the seat of a step's attempt, if it still has one.
    pub(crate) fn release_seat(&mut self, id: StepId) {
        let Some(attempt) = self
            .steps
            .get_mut(id)
            .and_then(|step| step.attempt.as_mut())
        else {
            return;
        };
        if !std::mem::take(&mut attempt.seated) {
            return;
        }
        let seat = Seat {
            level: attempt.level,
            seq: Reverse(attempt.seq),
            step: id,
        };
        let worker = attempt.worker;
        let now = self.now;
        if let Some(at) = self.workers.get_mut(worker) {
            at.unseat(&seat);
            at.note_idle(now);
            at.note_seat(now);
            self.touched.push(worker);
        }
    }

    pub(crate) fn step_ended(&mut self, ended: &StepEnded) -> Result<(), EventError> {
        let id = ended.step;
        if !self.steps.contains(id) {
            return Err(EventError::UnknownStep(id));
        }
        self.leave_queue(id);
        self.release_seat(id);
        let Some(step) = self.steps.remove(id) else {
            return Err(EventError::UnknownStep(id));
        };
        self.counters.ended[ended.outcome as usize] += 1;
        if ended.outcome == Outcome::Done {
            self.learn(&step, ended);
        }
        let Some(trajectory) = self.trajectories.get_mut(step.trajectory) else {
            return Ok(());
        };
        let trajectory_id = trajectory.id;
        trajectory.live.remove(id);
        trajectory.tally.leave(step.state);
        let phase = trajectory.phase_now();
        let finished = trajectory.finishing && trajectory.tally.total() == 0;
        let unblocked =
            step.state == StepState::Aborting && trajectory.tally.count(StepState::Aborting) == 0;
        self.set_phase(trajectory_id, phase);
        if ended.outcome == Outcome::Done {
            self.renew_estimate(trajectory_id);
            self.rekey_held(trajectory_id);
        }
        self.renew_footprint(trajectory_id);
        if matches!(ended.outcome, Outcome::ClientError | Outcome::Rejected) {
            self.take_context_back(trajectory_id, &step);
        }
        if finished {
            self.expire(trajectory_id, ExpireReason::Finished);
            return Ok(());
        }
        self.note_gap(trajectory_id);
        if unblocked {
            self.release_successors(trajectory_id);
        }
        Ok(())
    }

    /// A prompt that was refused holds no KV: the trajectory's context is again what it was before.
    fn take_context_back(&mut self, id: TrajectoryId, step: &Step) {
        if let Some(trajectory) = self.trajectories.get_mut(id)
            && trajectory.live.is_empty()
            && trajectory.context_tokens == step.prompt_tokens
        {
            trajectory.context_tokens = step.context_before;
            self.renew_footprint(id);
        }
    }

    /// Lets the steps on that waited for an abort.
    fn release_successors(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get(id) else {
            return;
        };
        if trajectory.tally.count(StepState::HeldPredecessor) == 0 {
            return;
        }
        let live = trajectory.live.clone();
        for &step in live.iter() {
            if self
                .steps
                .get(step)
                .is_some_and(|step| step.state == StepState::HeldPredecessor)
            {
                self.admit(step);
            }
        }
    }

    /// What a complete answer teaches: progress, context, growth, the worker's speed.
    fn learn(&mut self, step: &Step, ended: &StepEnded) {
        let now = self.now;
        let prompt = if ended.prompt_tokens > 0 {
            ended.prompt_tokens
        } else {
            step.prompt_tokens
        };
        let context = prompt.saturating_add(ended.output_tokens);
        let Some(trajectory) = self.trajectories.get_mut(step.trajectory) else {
            return;
        };
        trajectory.generated = trajectory.generated.saturating_add(ended.output_tokens);
        trajectory.steps += 1;
        trajectory.context_tokens = context;
        let Some(attempt) = &step.attempt else { return };
        if trajectory
            .home
            .is_some_and(|home| home.worker == attempt.worker)
        {
            trajectory.resident_tokens = context;
            let weights = self.workers.get(attempt.worker).map(|w| w.weights);
            trajectory.resident_weights = weights.unwrap_or(0);
        }
        let service = now.saturating_sub(attempt.dispatched_at);
        let growth = if step.context_before > 0 {
            context.saturating_sub(step.context_before)
        } else {
            0
        };
        self.estimator
            .step_seen(service, ended.output_tokens, growth);
        self.learn_speed(attempt, ended, prompt);
        self.verify_move(step.trajectory, attempt.worker, ended);
    }

    /// Compares the time of a step with the belief about its worker.
    fn learn_speed(&mut self, attempt: &Attempt, ended: &StepEnded, prompt: u64) {
        let Some(worker) = self.workers.get_mut(attempt.worker) else {
            return;
        };
        if worker.generation != attempt.generation || worker.state == WorkerState::Down {
            return;
        }
        worker.clear_suspicion();
        if attempt.disturbed || ended.output_tokens == 0 {
            return;
        }
        // This seat was given back before.
        let batch_now = (worker.seats() + 1).min(worker.slots as usize);
        let batch = f64::midpoint(f64::from(attempt.batch), batch_now as f64);
        let token_us = worker.token_us(batch);
        let whole = self.now.saturating_sub(attempt.dispatched_at) as f64;
        let streamed = attempt
            .first_byte_at
            .map_or(0.0, |at| self.now.saturating_sub(at) as f64);
        // An answer that was not streamed has its first byte at its end: then the whole time counts, with prefill.
        if streamed > 0.05 * whole && ended.output_tokens > 1 {
            worker
                .belief
                .observe(streamed, token_us * (ended.output_tokens - 1) as f64);
        } else {
            let uncached = prompt.saturating_sub(ended.cached_tokens);
            let believed =
                worker.belief.prefill_us(uncached) + token_us * ended.output_tokens as f64;
            worker.belief.observe(whole, believed);
        }
        let scale = worker.belief.scale();
        self.workers.speed_seen(self.now, scale);
    }
}
