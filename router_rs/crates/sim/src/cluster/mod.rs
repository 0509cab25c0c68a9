//! The driver: agents that follow their scripts, workers that do what they truly do, and between them the gateway's own
//! core, which is told what the gateway would tell it and whose actions are carried out as the gateway would.
//!
//! Invariants: time never goes back; every arrived step is ended exactly once; the order of what happens at one moment
//! is fixed, so that a run is a function of workload and spec.

mod agenda;
mod agents;
mod decisions;
mod machines;
pub mod replanning;
mod transfers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use heddle_core::event::{EventError, Outcome, StepEnded};
use heddle_core::replay::Digest;
use heddle_core::{Core, Event, Micros, MigrationId, Policy, StepId};
use thiserror::Error;

use crate::network::Network;
use crate::prediction::Predictions;
use crate::report::{Carried, Findings, Report, Stay, Trace, WorkerTrace};
use crate::spec::Spec;
use crate::workload::Workload;
use agenda::Due;
use machines::Machine;
use replanning::{Planner, Planning};
use transfers::Moving;

/// What a run gives.
#[derive(Debug)]
pub struct Run {
    /// What came of it.
    pub report: Report,
    /// The core's journal, if the spec asks for one.
    pub journal: Vec<u8>,
}

/// A run that cannot begin or cannot end.
#[derive(Debug, Error)]
pub enum SimError {
    /// The spec does not fit; the message names the field.
    #[error("{0}")]
    Spec(String),
    /// The core refused an event: the driver told it something that cannot be.
    #[error("the core refused an event at {at_s} s: {why}")]
    Refused {
        /// Modelled time.
        at_s: f64,
        /// Its reason.
        why: EventError,
    },
    /// Nothing more happens, but trajectories are left.
    #[error(
        "nothing more happens after {at_s} s, with {left} trajectories left: {held} steps are held by the core"
    )]
    Stalled {
        /// Modelled time.
        at_s: f64,
        /// Trajectories that have not ended.
        left: usize,
        /// Steps that wait for the core.
        held: usize,
    },
    /// The planner that was asked on the way failed.
    #[error("planner: {0}")]
    Planner(String),
    /// A broken invariant of engine or core.
    #[error("broken invariant: {0}")]
    Invariant(String),
}

/// Where a trajectory is in its script.
struct Agent {
    /// Number of its next or current step.
    turn: usize,
    /// Prompt tokens of that step.
    prompt: u64,
    /// The core's step; ids are never used twice, a rejected step's next try has another.
    step: StepId,
    arrived_at: f64,
    dispatched: bool,
    began_at: f64,
    worker: usize,
}

struct Cluster<'a> {
    workload: &'a Workload,
    spec: &'a Spec,
    core: Core,
    predictions: Option<Predictions>,
    machines: Vec<Machine>,
    agents: Vec<Agent>,
    traces: Vec<Trace>,
    /// Trajectory of each step, by step id.
    owners: Vec<usize>,
    queue: BinaryHeap<Reverse<(Micros, u64, Due)>>,
    queued: u64,
    /// Entries of the queue that can still move a trajectory on.
    pending: usize,
    /// Workers that will still take a lost one's place.
    returns: usize,
    now: Micros,
    /// Told to the core one after the other, each drained before the next.
    inbox: VecDeque<Event>,
    touched: Vec<usize>,
    network: Network,
    /// Transfers under way.
    moving: BTreeMap<MigrationId, Moving>,
    network_ask: u64,
    carried: Carried,
    left: usize,
    digest: Digest,
    timeline: Vec<Stay>,
    journal: Vec<u8>,
    reads_chain: bool,
    planner: Option<&'a mut Planner<'a>>,
    planning: Planning,
}

/// Runs a workload; without `spec.replan`, which needs [`simulate_replanned`].
pub fn simulate(workload: &Workload, spec: &Spec) -> Result<Run, SimError> {
    if spec.replan.is_some() {
        return Err(SimError::Spec("replan: needs a planner to ask".into()));
    }
    run(workload, spec, None)
}

/// Runs a workload; `planner` is asked on the way, as `spec.replan` says.
pub fn simulate_replanned<'a>(
    workload: &'a Workload,
    spec: &'a Spec,
    planner: &'a mut Planner<'a>,
) -> Result<Run, SimError> {
    run(workload, spec, Some(planner))
}

fn run<'a>(
    workload: &'a Workload,
    spec: &'a Spec,
    planner: Option<&'a mut Planner<'a>>,
) -> Result<Run, SimError> {
    spec.validate().map_err(SimError::Spec)?;
    let mut cluster = Cluster::new(workload, spec, planner)?;
    cluster.begin()?;
    while cluster.left > 0 {
        cluster.advance()?;
    }
    Ok(cluster.finish())
}

fn seconds(at: Micros) -> f64 {
    at as f64 / 1e6
}

/// The first microsecond that is not before `at`.
fn micros(at: f64) -> Micros {
    let mut micros = (at * 1e6).ceil() as Micros;
    while seconds(micros) < at {
        micros += 1;
    }
    micros
}

impl<'a> Cluster<'a> {
    fn new(
        workload: &'a Workload,
        spec: &'a Spec,
        planner: Option<&'a mut Planner<'a>>,
    ) -> Result<Self, SimError> {
        let policy = serde_json::Value::Object(spec.policy.clone()).to_string();
        let policy = Policy::from_json(&policy)
            .map_err(|error| SimError::Spec(format!("policy: {error}")))?;
        let reads_chain = policy.placement.variant().reads_chain();
        let core = Core::new(policy);
        let machines = spec
            .workers
            .iter()
            .map(|degree| Machine {
                degree: *degree,
                engine: None,
                generation: 0,
                ask: 0,
                trace: WorkerTrace {
                    degree: *degree,
                    totals: crate::engine::Totals::default(),
                    most_kv_used: 0,
                    kv_tokens: spec.truth[degree].kv_tokens,
                    evicted: 0,
                },
            })
            .collect();
        let agents = workload.scripts().iter().map(|script| Agent {
            turn: 0,
            prompt: script.prompt,
            step: 0,
            arrived_at: 0.0,
            dispatched: false,
            began_at: 0.0,
            worker: 0,
        });
        Ok(Self {
            workload,
            spec,
            core: if spec.journal {
                core.with_journal()
            } else {
                core
            },
            predictions: Predictions::new(workload, spec.prediction, spec.seed),
            machines,
            agents: agents.collect(),
            traces: vec![Trace::default(); workload.scripts().len()],
            owners: vec![usize::MAX],
            queue: BinaryHeap::new(),
            queued: 0,
            pending: 0,
            returns: 0,
            now: 0,
            inbox: VecDeque::new(),
            touched: Vec::new(),
            network: Network::new(spec.host_tokens_per_s.unwrap_or(f64::INFINITY)),
            moving: BTreeMap::new(),
            network_ask: 0,
            carried: Carried::default(),
            left: workload.scripts().len(),
            digest: Digest::default(),
            timeline: Vec::new(),
            journal: Vec::new(),
            reads_chain,
            planner,
            planning: Planning::after(spec.plan.as_ref()),
        })
    }

    fn begin(&mut self) -> Result<(), SimError> {
        for worker in 0..self.machines.len() {
            self.start_worker(worker);
        }
        if let Some(plan) = &self.spec.plan {
            self.inbox.push_back(Event::InstallPlan(plan.clone()));
        }
        for loss in &self.spec.losses {
            self.schedule(micros(loss.at_s), Due::Loss(loss.worker));
            if let Some(back) = loss.back_s {
                self.returns += 1;
                self.schedule(micros(back), Due::Return(loss.worker));
            }
        }
        for (trajectory, script) in self.workload.scripts().iter().enumerate() {
            self.schedule(micros(script.start_s), Due::Arrival(trajectory));
        }
        self.schedule(micros(self.spec.report_interval_s), Due::Survey);
        self.begin_replanning();
        self.settle()
    }

    fn finish(mut self) -> Run {
        for machine in &mut self.machines {
            machine.bury();
        }
        let report = Report::new(Findings {
            workload: self.workload,
            traces: &self.traces,
            workers: self.machines.iter().map(|machine| machine.trace).collect(),
            timeline: self.timeline,
            counters: self.core.counters(),
            moves: &self.core.ledger().totals,
            carried: self.carried,
            plans_on_the_way: self.planning.made,
            digest: self.digest.hex(),
        });
        Run {
            report,
            journal: self.journal,
        }
    }
}

fn ended(
    step: StepId,
    outcome: Outcome,
    prompt_tokens: u64,
    output_tokens: u64,
    cached_tokens: u64,
) -> Event {
    Event::StepEnded(StepEnded {
        step,
        outcome,
        prompt_tokens,
        output_tokens,
        cached_tokens,
    })
}
