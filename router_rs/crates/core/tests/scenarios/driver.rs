//! A driver for tests: carries a core's actions out in its books and checks every one against them.

use std::collections::{BTreeMap, BTreeSet};

use heddle_core::action::{Dispatch, Migrate, Reject};
use heddle_core::event::{
    FailureKind, LinkSpec, MigrationFailure, Outcome, StepAdopted, StepArrived, StepEnded, WorkerUp,
};
use heddle_core::migration::{Move, MoveState};
use heddle_core::replay::Digest;
use heddle_core::{Action, Core, Event, EventError, Policy};

/// Where the driver has a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Books {
    Waiting,
    Running { worker: u64, generation: u64 },
    Withdrawn { worker: u64, generation: u64 },
    Rejected,
}

fn is_moving(one: &Move) -> bool {
    one.state == MoveState::Moving
}

/// Core and books.
pub struct Driver {
    pub core: Core,
    pub now: u64,
    pub steps: BTreeMap<u64, Books>,
    pub aborting: BTreeSet<u64>,
    pub trajectory_of: BTreeMap<u64, u64>,
    pub expired: Vec<u64>,
    pub dispatches: Vec<Dispatch>,
    pub rejects: Vec<Reject>,
    /// Every transfer that was begun.
    pub migrates: Vec<Migrate>,
    /// Transfers that run, and whether they were called off.
    pub transfers: BTreeMap<u64, (Migrate, bool)>,
    pub digest: Digest,
    pub slots: BTreeMap<u64, u32>,
    pub audits: bool,
    /// Nothing may be sent, and no move may begin.
    pub paused: bool,
}

impl Driver {
    pub fn new(policy: Policy) -> Self {
        Self {
            core: Core::new(policy).with_journal(),
            now: 0,
            steps: BTreeMap::new(),
            aborting: BTreeSet::new(),
            trajectory_of: BTreeMap::new(),
            expired: Vec::new(),
            dispatches: Vec::new(),
            rejects: Vec::new(),
            migrates: Vec::new(),
            transfers: BTreeMap::new(),
            digest: Digest::default(),
            slots: BTreeMap::new(),
            audits: true,
            paused: false,
        }
    }

    pub fn with_policy(json: &str) -> Self {
        Self::new(Policy::from_json(json).unwrap())
    }

    /// Hands an event in and carries out what it causes.
    pub fn handle(&mut self, event: Event) -> Result<(), EventError> {
        let taken = self.core.handle(self.now, event);
        self.carry_out();
        taken
    }

    pub fn pause(&mut self, paused: bool) {
        // Before: what goes on does so in the same event.
        self.paused = paused;
        self.handle(Event::DispatchPaused { paused }).unwrap();
    }

    /// Lets time pass to `now`, with every timer in between at its time.
    pub fn advance_to(&mut self, now: u64) {
        while let Some(at) = self.core.poll_timeout().filter(|&at| at <= now) {
            assert!(
                at >= self.now,
                "a timer of the past is left armed: {at} at {}",
                self.now
            );
            self.now = at;
            self.core.handle_timeout(at);
            self.carry_out();
        }
        self.now = now;
    }

    fn carry_out(&mut self) {
        let ledger = self.core.ledger();
        self.transfers
            .retain(|&migration, _| ledger.get(migration).is_some());
        while let Some(action) = self.core.poll_action() {
            self.digest.add(&action);
            match action {
                Action::Dispatch(dispatch) => {
                    assert!(!self.paused, "step {} is sent in a pause", dispatch.step);
                    let (worker, generation) = (dispatch.worker, dispatch.generation);
                    let books = self
                        .steps
                        .get_mut(&dispatch.step)
                        .expect("dispatch of a live step");
                    assert_eq!(*books, Books::Waiting, "dispatch of step {}", dispatch.step);
                    *books = Books::Running { worker, generation };
                    assert!(dispatch.level < 32 && dispatch.attempt >= 1);
                    let view = self
                        .core
                        .worker_views()
                        .into_iter()
                        .find(|view| view.worker == worker);
                    let view = view.expect("dispatch to a known worker");
                    assert_eq!(view.generation, generation);
                    assert_ne!(view.state.name(), "down");
                    let policy = self.core.policy();
                    let most = view.slots + policy.backlog + policy.max_over_send;
                    // A worker that came back with fewer slots keeps what it runs.
                    let most = most
                        .max(self.slots.get(&worker).copied().unwrap_or(0) + policy.max_over_send);
                    assert!(view.running + view.preempted <= most as usize, "{view:?}");
                    self.dispatches.push(dispatch);
                }
                Action::Reject(reject) => {
                    let books = self
                        .steps
                        .get_mut(&reject.step)
                        .expect("reject of a live step");
                    assert_eq!(*books, Books::Waiting, "reject of step {}", reject.step);
                    *books = Books::Rejected;
                    assert!(reject.status == 503 && reject.retry_after_ms > 0);
                    self.rejects.push(reject);
                }
                Action::Withdraw {
                    step,
                    worker,
                    generation,
                } => {
                    let books = self
                        .steps
                        .get_mut(&step)
                        .expect("withdrawal of a live step");
                    assert_eq!(*books, Books::Running { worker, generation });
                    *books = Books::Withdrawn { worker, generation };
                }
                Action::Migrate(migrate) => {
                    assert!(!self.paused, "a move begins in a pause");
                    assert_ne!(migrate.from, migrate.to);
                    for (running, _) in self.transfers.values() {
                        let ends = [running.from, running.to];
                        assert!(!ends.contains(&migrate.from) && !ends.contains(&migrate.to));
                    }
                    let runs = |(step, books): (&u64, &Books)| {
                        self.trajectory_of[step] == migrate.trajectory
                            && matches!(books, Books::Running { .. } | Books::Withdrawn { .. })
                    };
                    assert!(!self.steps.iter().any(runs), "a transfer under a live step");
                    if self
                        .core
                        .ledger()
                        .get(migrate.migration)
                        .is_some_and(is_moving)
                    {
                        let view = self.core.trajectory_view(migrate.trajectory).unwrap();
                        assert_eq!(view.home, Some(migrate.from));
                    }
                    self.migrates.push(migrate.clone());
                    if self.core.ledger().get(migrate.migration).is_some() {
                        self.transfers.insert(migrate.migration, (migrate, false));
                    }
                }
                Action::CancelMigration { migration, .. } => {
                    // The core may have forgotten it at once: what is said of it later is stale.
                    if let Some((_, called_off)) = self.transfers.get_mut(&migration) {
                        assert!(!*called_off, "called off twice");
                        *called_off = true;
                    }
                }
                Action::Expire { trajectory, .. } => {
                    for (step, books) in &self.steps {
                        if self.trajectory_of[step] == trajectory {
                            assert_eq!(*books, Books::Rejected, "expiry under live step {step}");
                        }
                    }
                    self.steps
                        .retain(|step, _| self.trajectory_of[step] != trajectory);
                    self.expired.push(trajectory);
                }
            }
        }
        if self.audits {
            assert_eq!(self.core.audit(), Vec::<String>::new());
        }
    }

    pub fn worker_up(&mut self, worker: u64, degree: u32, slots: u32) {
        self.worker(WorkerUp {
            worker,
            generation: 1,
            degree,
            slots,
            kv_tokens: 0,
            has_priority: true,
            profile: None,
            link: None,
            weights: 0,
        });
    }

    /// A worker of degree 1 with 16 slots.
    pub fn worker_with_kv(&mut self, worker: u64, kv_tokens: u64) {
        self.worker(WorkerUp {
            worker,
            generation: 1,
            degree: 1,
            slots: 16,
            kv_tokens,
            has_priority: true,
            profile: None,
            link: None,
            weights: 0,
        });
    }

    /// A worker that moves 1,000,000 KV tokens a second and prefills 28,000 for each degree.
    pub fn linked_worker_up(&mut self, worker: u64, degree: u32, slots: u32) {
        self.worker(WorkerUp {
            worker,
            generation: 1,
            degree,
            slots,
            kv_tokens: 0,
            has_priority: true,
            profile: None,
            link: Some(LinkSpec {
                tokens_per_s: 1e6,
                setup_us: 1000,
            }),
            weights: 0,
        });
    }

    /// A transfer that runs ends well; the target holds so many tokens then.
    pub fn land(&mut self, migration: u64, tokens: u64) {
        self.transfers.remove(&migration);
        self.handle(Event::MigrationLanded { migration, tokens })
            .unwrap();
    }

    pub fn fail_transfer(&mut self, migration: u64, why: MigrationFailure) {
        self.transfers.remove(&migration);
        self.handle(Event::MigrationFailed { migration, why })
            .unwrap();
    }

    pub fn worker(&mut self, up: WorkerUp) {
        let most = self.slots.entry(up.worker).or_default();
        *most = (*most).max(up.slots);
        self.handle(Event::WorkerUp(up)).unwrap();
    }

    pub fn arrive(&mut self, step: u64, trajectory: u64) -> Option<Dispatch> {
        self.arrive_with(StepArrived {
            step,
            trajectory,
            prompt_tokens: 100,
            ..StepArrived::default()
        })
    }

    pub fn arrive_with(&mut self, arrived: StepArrived) -> Option<Dispatch> {
        let (step, before) = (arrived.step, self.dispatches.len());
        self.arrived(arrived).unwrap();
        self.dispatches[before..]
            .iter()
            .find(|dispatch| dispatch.step == step)
            .cloned()
    }

    pub fn arrived(&mut self, arrived: StepArrived) -> Result<(), EventError> {
        let step = arrived.step;
        // The books come first: the core's answer may end the step at once.
        let known = self.steps.contains_key(&step);
        if !known {
            self.steps.insert(step, Books::Waiting);
            self.trajectory_of.insert(step, arrived.trajectory);
        }
        let taken = self.handle(Event::StepArrived(arrived));
        assert_eq!(taken.is_err(), known);
        taken
    }

    /// A step that another process sent goes on here; it is as withdrawn where its worker is not known.
    pub fn adopt(&mut self, adopted: StepAdopted) {
        let StepAdopted {
            step,
            worker,
            generation,
            ..
        } = adopted;
        let is_known = self.core.worker_views().iter().any(|view| {
            (view.worker, view.generation) == (worker, generation) && view.state.name() != "down"
        });
        let books = if is_known {
            Books::Running { worker, generation }
        } else {
            Books::Withdrawn { worker, generation }
        };
        self.steps.insert(step, books);
        self.trajectory_of.insert(step, adopted.trajectory);
        let sent = self
            .dispatches
            .iter()
            .filter(|one| one.step == step)
            .count();
        self.handle(Event::StepAdopted(adopted)).unwrap();
        let sent_now = self
            .dispatches
            .iter()
            .filter(|one| one.step == step)
            .count();
        assert_eq!(sent_now, sent, "an adopted step is sent a second time");
    }

    pub fn abort(&mut self, step: u64) {
        self.handle(Event::StepAborting { step }).unwrap();
        self.aborting.insert(step);
    }

    pub fn fail(&mut self, step: u64, kind: FailureKind) {
        let (Books::Running { worker, generation } | Books::Withdrawn { worker, generation }) =
            self.steps[&step]
        else {
            panic!("step {step} has no attempt");
        };
        if !self.aborting.contains(&step) {
            self.steps.insert(step, Books::Waiting);
        }
        self.handle(Event::AttemptFailed {
            step,
            worker,
            generation,
            kind,
        })
        .unwrap();
    }

    pub fn end(&mut self, step: u64, outcome: Outcome, output_tokens: u64) {
        self.end_with(StepEnded {
            step,
            outcome,
            prompt_tokens: 100,
            output_tokens,
            cached_tokens: 0,
        });
    }

    /// A step that ends well, with nothing of its prompt cached.
    pub fn done_with(&mut self, step: u64, prompt_tokens: u64, output_tokens: u64) {
        self.end_with(StepEnded {
            step,
            outcome: Outcome::Done,
            prompt_tokens,
            output_tokens,
            cached_tokens: 0,
        });
    }

    pub fn end_with(&mut self, ended: StepEnded) {
        // Out of the books first: nothing may happen to a step any more once its end is told.
        self.steps.remove(&ended.step).expect("end of a live step");
        self.aborting.remove(&ended.step);
        self.handle(Event::StepEnded(ended)).unwrap();
    }

    pub fn done(&mut self, step: u64, output_tokens: u64) {
        self.end(step, Outcome::Done, output_tokens);
    }

    pub fn stat(&self, name: &str) -> u64 {
        self.core
            .stats()
            .into_iter()
            .find(|(key, _)| key == name)
            .unwrap_or_else(|| panic!("no {name}"))
            .1
    }
}

/// A step with a prompt of this length, and nothing else said of it.
pub fn prompt(step: u64, trajectory: u64, prompt_tokens: u64) -> StepArrived {
    StepArrived {
        step,
        trajectory,
        prompt_tokens,
        ..StepArrived::default()
    }
}
