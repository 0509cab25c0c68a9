//! The state machine: its parts, and the four calls that drive it.
//!
//! Invariant: after every `handle` and `handle_timeout` the core is settled. No step is left in `Arrived`, and unless
//! dispatch is paused or steps are gathered no worker has both a free slot and a queue, and the head of the admission queue does not fit anywhere.

use std::collections::{BTreeSet, VecDeque};

use crate::action::{Action, ExpireReason, Reject, RejectReason};
use crate::counters::Counters;
use crate::estimate::Estimator;
use crate::event::{Event, EventError, Outcome};
use crate::fleet::{Fleet, Place};
use crate::group::Groups;
use crate::id_map::IdMap;
use crate::journal::Journal;
use crate::migration::Ledger;
use crate::placement::Memory;
use crate::plan::{Plan, PlanSpec};
use crate::policy::Policy;
use crate::rank::Ranking;
use crate::step::{Step, StepState};
use crate::timer::{Timer, Timers};
use crate::trajectory::{Phase, Trajectory};
use crate::trust::Trust;
use crate::worker::Queued;
use crate::{Micros, StepId, TrajectoryId, WorkerId};

/// The decision core.
#[derive(Debug, Default)]
pub struct Core {
    pub(crate) now: Micros,
    pub(crate) policy: Policy,
    pub(crate) plan: Option<Plan>,
    pub(crate) workers: Fleet,
    pub(crate) lives: u64,
    pub(crate) steps: IdMap<StepId, Step>,
    pub(crate) trajectories: IdMap<TrajectoryId, Trajectory>,
    pub(crate) groups: Groups,
    pub(crate) active: Ranking,
    pub(crate) estimator: Estimator,
    pub(crate) trust: Trust,
    /// Steps held by admission.
    pub(crate) applicants: BTreeSet<Queued>,
    /// Steps that found no worker.
    pub(crate) unplaced: BTreeSet<StepId>,
    pub(crate) timers: Timers,
    pub(crate) memory: Memory,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) counters: Counters,
    /// Trajectories in each phase, in the order of [`Phase::ALL`].
    pub(crate) phases: [u64; Phase::ALL.len()],
    /// Steps in queues of workers.
    pub(crate) queued: usize,
    /// Workers whose queue or seats changed since the core was settled.
    pub(crate) touched: Vec<WorkerId>,
    /// Moves of KV that have not ended.
    pub(crate) ledger: Ledger,
    /// Trajectories whose KV may have to be moved, to be looked at when the core is settled.
    pub(crate) reconsidered: Vec<TrajectoryId>,
    /// Trajectories whose steps wait for a transfer that is over.
    pub(crate) unmoved: Vec<TrajectoryId>,
    /// A transfer has ended since requests were looked at.
    pub(crate) links_freed: bool,
    /// The engines are paused: steps wait in their queues.
    pub(crate) paused: bool,
    pub(crate) arrivals: u64,
    pub(crate) dispatches: u64,
    /// Reused by placement, so that a decision does not allocate.
    pub(crate) candidates: Vec<Place>,
    journal: Option<Journal>,
}

impl Core {
    /// A core without workers.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// Begins to write down every event; see [`crate::journal`].
    #[must_use]
    pub fn with_journal(mut self) -> Self {
        self.journal = Some(Journal::new(&self.policy));
        self
    }

    /// Something happened at `now`. An error leaves the state as it was.
    pub fn handle(&mut self, now: Micros, event: Event) -> Result<(), EventError> {
        if let Some(journal) = &mut self.journal {
            journal.event(now, &event);
        }
        self.advance(now);
        self.counters.events += 1;
        let taken = match event {
            Event::WorkerUp(up) => self.worker_up(&up),
            Event::WorkerDraining { worker, generation } => {
                self.worker_draining(worker, generation);
                Ok(())
            }
            Event::WorkerDown { worker, generation } => {
                self.worker_down(worker, generation);
                Ok(())
            }
            Event::WorkerRemoved { worker, generation } => {
                self.worker_removed(worker, generation);
                Ok(())
            }
            Event::LoadReport {
                worker,
                generation,
                running,
                waiting,
                kv_used,
            } => {
                self.load_report(worker, generation, running, waiting, kv_used);
                Ok(())
            }
            Event::StepArrived(arrived) => self.step_arrived(arrived),
            Event::StepAdopted(adopted) => self.step_adopted(&adopted),
            Event::FirstByte { step } => self.first_byte(step),
            Event::StepAborting { step } => self.step_aborting(step),
            Event::AttemptFailed {
                step,
                worker,
                generation,
                kind,
            } => self.attempt_failed(step, worker, generation, kind),
            Event::StepEnded(ended) => self.step_ended(&ended),
            Event::Predicted {
                trajectory,
                mean,
                sigma,
                gap_us,
            } => self.predicted(trajectory, mean, sigma, gap_us),
            Event::TrajectoryExpected {
                trajectory,
                group,
                mean,
                sigma,
            } => self.trajectory_expected(trajectory, group, mean, sigma),
            Event::InstallPlan(spec) => self.install_plan(&spec),
            Event::SetPolicy(policy) => self.set_policy(*policy),
            Event::MigrationAsked {
                trajectory,
                to,
                within_us,
            } => self.migration_asked(trajectory, to, within_us),
            Event::DispatchPaused { paused } => {
                self.pause_dispatch(paused);
                Ok(())
            }
            Event::MigrationLanded { migration, tokens } => {
                self.migration_landed(migration, tokens);
                Ok(())
            }
            Event::MigrationFailed { migration, why } => {
                self.migration_failed(migration, why);
                Ok(())
            }
            Event::WeightsUpdated {
                worker,
                generation,
                weights,
            } => {
                self.weights_updated(worker, generation, weights);
                Ok(())
            }
            Event::TrajectoryFinished { trajectory } => self.trajectory_finished(trajectory),
        };
        if taken.is_err() {
            self.counters.refused_events += 1;
        }
        self.settle();
        taken
    }

    /// The next thing to do. Poll until `None` after every `handle` and `handle_timeout`.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`Core::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.timers.next()
    }

    /// Time has passed; early and repeated calls do no harm.
    pub fn handle_timeout(&mut self, now: Micros) {
        if let Some(journal) = &mut self.journal {
            journal.timeout(now);
        }
        self.advance(now);
        while let Some(timer) = self.timers.pop_due(self.now) {
            match timer {
                Timer::Hold(step) => self.hold_expired(step),
                Timer::Gap(trajectory) => self.gap_expired(trajectory),
                Timer::Move(migration) => self.move_expired(migration),
                Timer::PlanExpiry => self.plan = None,
                Timer::Gathering(worker) => self.touched.push(worker),
                Timer::Room => {} // who was held is looked at whenever the core is settled
            }
            self.settle();
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Totals since the core was made.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What was written down since the last call; empty when journalling is off.
    pub fn take_journal(&mut self) -> Vec<u8> {
        self.journal.as_mut().map(Journal::take).unwrap_or_default()
    }

    /// True when the journal reached its bound and stopped.
    pub fn journal_is_truncated(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_truncated)
    }

    fn advance(&mut self, now: Micros) {
        if now < self.now {
            self.counters.clock_backwards += 1;
        }
        self.now = self.now.max(now);
    }

    /// Fills seats and lets applicants in until nothing more can be done, then looks at moves of KV.
    fn settle(&mut self) {
        self.release_unmoved();
        self.settle_steps();
        self.settle_moves();
        self.timers.room = self.next_room();
    }

    fn settle_steps(&mut self) {
        loop {
            while let Some(worker) = self.touched.pop() {
                self.pump(worker);
            }
            if !self.admit_head() && self.touched.is_empty() {
                return;
            }
        }
    }

    /// Moves a step to another state and keeps tally and phase of its trajectory.
    pub(crate) fn set_state(&mut self, step: StepId, to: StepState) {
        let Some(step) = self.steps.get_mut(step) else {
            return;
        };
        if !step.state.may_become(to) {
            self.counters.illegal_moves += 1;
        }
        let Some(trajectory) = self.trajectories.get_mut(step.trajectory) else {
            return;
        };
        trajectory.tally.leave(step.state);
        trajectory.tally.enter(to);
        step.state = to;
        let phase = trajectory.phase_now();
        let id = trajectory.id;
        self.set_phase(id, phase);
    }

    /// Moves a trajectory to another phase.
    pub(crate) fn set_phase(&mut self, trajectory: TrajectoryId, to: Phase) {
        let Some(trajectory) = self.trajectories.get_mut(trajectory) else {
            return;
        };
        let from = trajectory.phase;
        if from == to {
            return;
        }
        if !from.may_become(to) {
            self.counters.illegal_moves += 1;
        }
        trajectory.phase = to;
        self.phases[from as usize] -= 1;
        self.phases[to as usize] += 1;
    }

    /// Tells the driver to end a step without an answer.
    pub(crate) fn reject(&mut self, step: StepId, reason: RejectReason) {
        const NO_WORKER_RETRY_MS: u64 = 5_000;
        const EXHAUSTED_RETRY_MS: u64 = 1_000;
        self.disarm_hold(step);
        self.set_state(step, StepState::Rejected);
        self.counters.rejected += 1;
        let retry_after_ms = match reason {
            RejectReason::NoWorker => NO_WORKER_RETRY_MS,
            RejectReason::AttemptsExhausted => EXHAUSTED_RETRY_MS,
        };
        self.actions.push_back(Action::Reject(Reject {
            step,
            status: 503,
            reason,
            retry_after_ms,
        }));
        self.note_gap_of(step);
    }

    /// Forgets a trajectory that has no open step.
    pub(crate) fn expire(&mut self, id: TrajectoryId, reason: ExpireReason) {
        let end = match reason {
            ExpireReason::Idle => Phase::Expired,
            ExpireReason::Finished => Phase::Finished,
        };
        self.call_off_move_of(id);
        self.count_as_ended(id);
        self.unrank(id);
        self.set_phase(id, end);
        let Some(mut trajectory) = self.trajectories.remove(id) else {
            return;
        };
        self.timers.gaps.set(id, &mut trajectory.gap_timer, None);
        self.phases[end as usize] -= 1;
        // Rejected steps whose end the driver never reported.
        for &step in trajectory.live.iter() {
            self.steps.remove(step);
            self.counters.ended[Outcome::Rejected as usize] += 1;
        }
        if let Some(group) = trajectory.group {
            self.groups.leave(group);
        }
        self.counters.expired += 1;
        self.actions.push_back(Action::Expire {
            trajectory: id,
            reason,
        });
    }

    fn trajectory_finished(&mut self, id: TrajectoryId) -> Result<(), EventError> {
        let trajectory = self
            .trajectories
            .get_mut(id)
            .ok_or(EventError::UnknownTrajectory(id))?;
        trajectory.finishing = true;
        if trajectory.tally.total() == 0 {
            self.expire(id, ExpireReason::Finished);
        }
        Ok(())
    }

    fn install_plan(&mut self, spec: &PlanSpec) -> Result<(), EventError> {
        let plan = Plan::new(spec)?;
        if let Some(current) = &self.plan
            && plan.version <= current.version
        {
            let why = format!("{} is not newer than {}", plan.version, current.version);
            return Err(EventError::BadField {
                field: "version",
                why,
            });
        }
        self.plan = Some(plan);
        let expires = |ttl: u64| self.now.saturating_add(ttl.saturating_mul(1000));
        self.timers.plan_expiry = spec.ttl_ms.map(expires);
        self.reconsider_all();
        Ok(())
    }

    fn set_policy(&mut self, policy: Policy) -> Result<(), EventError> {
        policy.validate().map_err(|e| EventError::BadField {
            field: "policy",
            why: e.to_string(),
        })?;
        if policy.placement != self.policy.placement {
            self.memory = Memory::default();
        }
        self.policy = policy;
        for step in self.steps.sorted_ids() {
            self.requeue(step);
            self.bound_wait(step);
        }
        for trajectory in self.trajectories.sorted_ids() {
            self.bound_gap(trajectory);
        }
        self.touched.extend_from_slice(self.workers.ids());
        Ok(())
    }
}
