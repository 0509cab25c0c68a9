//! The way of a step to placement: arrival, the wait for an aborting predecessor, admission, and the bounds of waits.

use std::hint::black_box;

use crate::action::RejectReason;
use crate::admission::Applicant;
use crate::event::{EventError, StepArrived};
use crate::fleet::Place;
use crate::machine::Core;
use crate::order::OrderKey;
use crate::step::{Step, StepState};
use crate::trajectory::Trajectory;
use crate::worker::Queued;
use crate::{Micros, StepId};

impl Core {
    pub(crate) fn step_arrived(&mut self, arrived: StepArrived) -> Result<(), EventError> {
        let (id, trajectory) = (arrived.step, arrived.trajectory);
        self.fetch_for(&arrived);
        self.take_in(arrived)?;
        let waits = self
            .trajectories
            .get(trajectory)
            .is_some_and(|trajectory| trajectory.tally.count(StepState::Aborting) > 0);
        if waits {
            self.set_state(id, StepState::HeldPredecessor);
            self.arm_hold(id, self.now, self.policy.abort_wait_ms);
        } else {
            self.admit(id);
        }
        Ok(())
    }

    /// Reads what the arrival will need, one beside the other: where they are needed, each would be a wait for memory by itself.
    fn fetch_for(&self, arrived: &StepArrived) {
        let trajectory = self.trajectories.get(arrived.trajectory);
        let group = arrived.group.and_then(|group| self.groups.get(group));
        // Behind other applicants it is not placed now.
        let placed = !arrived.chain.is_empty() && self.applicants.is_empty();
        let known = placed.then(|| self.memory.prefixes.known(&arrived.chain));
        black_box((
            trajectory.map(|trajectory| trajectory.steps),
            group.map(|group| group.members),
            known,
        ));
    }

    /// Makes a step and its trajectory known. The step is left in `Arrived`: the caller sends it on.
    pub(crate) fn take_in(&mut self, arrived: StepArrived) -> Result<(), EventError> {
        let StepArrived {
            step: id,
            trajectory,
            group,
            prompt_tokens,
            chain,
            pinned_worker,
            bound,
        } = arrived;
        if self.steps.contains(id) {
            return Err(EventError::DuplicateStep(id));
        }
        self.greet(trajectory, group);
        self.drop_request_of(trajectory);
        self.arrivals += 1;
        self.counters.arrived += 1;
        let mut context_before = 0;
        if let Some(trajectory) = self.trajectories.get_mut(trajectory) {
            trajectory.live.push(id);
            trajectory.tally.enter(StepState::Arrived);
            context_before = trajectory.context_tokens;
            // The prompt is the context of now; what it says is an estimate until the worker has counted.
            trajectory.context_tokens = trajectory.context_tokens.max(prompt_tokens);
        }
        self.steps.insert(
            id,
            Step {
                id,
                trajectory,
                seq: self.arrivals,
                arrived_at: self.now,
                prompt_tokens,
                context_before,
                pinned: pinned_worker,
                bound,
                chain,
                state: StepState::Arrived,
                key: OrderKey::default(),
                queued_at: None,
                reason: "",
                overdue: false,
                hold_timer: None,
                attempts: 0,
                failed_on: Vec::new(),
                attempt: None,
            },
        );
        self.renew_footprint(trajectory);
        Ok(())
    }

    /// Gives a held or new step to admission.
    pub(crate) fn admit(&mut self, id: StepId) {
        if self
            .steps
            .get(id)
            .is_some_and(|step| step.state != StepState::Arrived)
        {
            self.disarm_hold(id);
        }
        if self.workers.alive() == 0 {
            self.no_worker(id);
            return;
        }
        if self.waits_for_move(id) {
            return;
        }
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let Some(trajectory) = self.trajectories.get(step.trajectory) else {
            return;
        };
        let rule = self.policy.admission.variant();
        let mut applicant = self.applicant(trajectory);
        if self.is_set_aside(step, trajectory, &applicant) {
            let trajectory = trajectory.id;
            self.set_aside(trajectory);
            applicant.admitted = false;
        }
        let (Some(step), rule) = (self.steps.get(id), rule) else {
            return;
        };
        let Some(trajectory) = self.trajectories.get(step.trajectory) else {
            return;
        };
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
        self.arm_patience(id, since, self.policy.max_hold_ms);
    }

    /// True for the first attempt of a trajectory's only step when its home has too little KV for all that lies there.
    fn is_set_aside(&self, step: &Step, trajectory: &Trajectory, applicant: &Applicant) -> bool {
        let Some(home) = self.home_of(trajectory) else {
            return false;
        };
        if step.attempts > 0 || step.pinned.is_some() || trajectory.tally.total() > 1 {
            return false;
        }
        let rule = self.policy.admission.variant();
        // Looked at first without the search for its place.
        rule.sets_aside(home, 0, applicant) && {
            let larger = home.holders.before(trajectory.id, trajectory.committed);
            rule.sets_aside(home, larger.weight, applicant)
        }
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
        self.disarm_hold(applicant.step);
        self.place(applicant.step);
    }

    pub(crate) fn applicant(&self, trajectory: &Trajectory) -> Applicant {
        Applicant {
            admitted: self.home_of(trajectory).is_some(),
            footprint: self.footprint(trajectory),
            remaining: trajectory.remaining,
            fits_nowhere: self.workers.largest_kv() < trajectory.context_tokens,
            backlog: self.policy.backlog,
            kv: self.kv_rule(),
        }
    }

    fn fits_somewhere(&self, applicant: &Applicant) -> bool {
        let fits = |&place: &Place| self.fits_at(place, applicant);
        !self.paused && self.workers.takers().iter().any(fits)
    }

    /// True when the worker there takes the applicant now.
    pub(crate) fn fits_at(&self, place: Place, applicant: &Applicant) -> bool {
        let (rule, worker) = (self.policy.admission.variant(), self.workers.at(place));
        rule.fits(worker, applicant)
            || rule
                .gives_way_at(worker, applicant)
                .is_some_and(|at| at <= self.now)
    }

    /// When an idle worker will take the head of the applicants, if nothing happens before.
    pub(crate) fn next_room(&self) -> Option<Micros> {
        let head = self.applicants.first().filter(|_| !self.paused)?;
        let step = self.steps.get(head.step)?;
        let applicant = self.applicant(self.trajectories.get(step.trajectory)?);
        let rule = self.policy.admission.variant();
        let takers = self.workers.takers().iter();
        takers
            .filter_map(|&place| rule.gives_way_at(self.workers.at(place), &applicant))
            .filter(|&at| at > self.now)
            .min()
    }

    pub(crate) fn applicant_key(&self, step: &Step, trajectory: &Trajectory) -> OrderKey {
        let mut key = self.key(step, trajectory);
        if self.policy.admission.variant().longest_first() {
            key.measure = u64::MAX - self.urgency(trajectory);
        }
        key
    }

    /// The wait of a held step has reached its bound.
    pub(crate) fn hold_expired(&mut self, id: StepId) {
        let Some(step) = self.steps.get_mut(id) else {
            return;
        };
        step.hold_timer = None;
        let (state, since) = (step.state, step.arrived_at);
        let most_ms = match state {
            StepState::HeldAdmission => Some(self.policy.max_hold_ms),
            StepState::HeldSlot => Some(self.policy.max_wait_ms),
            _ => None,
        };
        if most_ms.is_some_and(|most_ms| self.is_patient(id, since, most_ms)) {
            return;
        }
        self.counters.holds_expired += 1;
        let Some(step) = self.steps.get_mut(id) else {
            return;
        };
        match state {
            StepState::HeldPredecessor => self.admit(id),
            StepState::HeldMigration => {
                let trajectory = step.trajectory;
                self.call_off_move_of(trajectory);
            }
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
                self.disarm_hold(id);
            }
            StepState::HeldSlot => self.arm_patience(id, since, self.policy.max_wait_ms),
            StepState::HeldAdmission => self.arm_patience(id, since, self.policy.max_hold_ms),
            StepState::HeldNoWorker => self.arm_hold(id, since, self.policy.worker_wait_ms),
            _ => {}
        }
    }

    pub(crate) fn arm_hold(&mut self, id: StepId, since: Micros, bound_ms: u64) {
        self.arm_hold_at(id, since.saturating_add(bound_ms.saturating_mul(1000)));
    }

    pub(crate) fn arm_hold_at(&mut self, id: StepId, at: Micros) {
        let at = at.max(self.now);
        if let Some(step) = self.steps.get_mut(id) {
            self.timers.holds.set(id, &mut step.hold_timer, Some(at));
        }
    }

    pub(crate) fn disarm_hold(&mut self, id: StepId) {
        if let Some(step) = self.steps.get_mut(id) {
            self.timers.holds.set(id, &mut step.hold_timer, None);
        }
    }
}
