//! Plans made on the way, as the live gateway has them made: what is live goes to a planner every period and when workers
//! come or go; its answer arrives later and is put in force by the same events (`heddle_gateway.plans.keeper`).
//!
//! Invariants: the planner is asked about the state at the moment of the question; one question is under way at a time; the
//! core hears of a plan by [`Event::InstallPlan`] and [`Event::SetPolicy`] alone, so that a journal replays it.

use heddle_core::placement::PlacementKind;
use heddle_core::plan::{PlanSpec, Share};
use heddle_core::policy::Policy;
use heddle_core::worker::WorkerState;
use heddle_core::{Event, GroupId, TrajectoryId, WorkerId};
use serde::{Deserialize, Serialize};

use super::{Cluster, Due, SimError, micros, seconds};

/// Live trajectories below which there is nothing to divide.
const LEAST_TO_PLAN: usize = 2;
/// Seconds that a round waits for other workers once one has come or gone.
const SETTLE_S: f64 = 0.5;

/// Makes plans; an error ends the run.
pub type Planner<'a> = dyn FnMut(&Question) -> Result<Option<Answer>, String> + 'a;

/// When plans are made on the way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replan {
    /// Seconds between questions that nobody asked for.
    pub period_s: f64,
    /// Seconds from a question to its answer.
    #[serde(default)]
    pub latency_s: f64,
}

impl Replan {
    /// Checks the numbers; the message names the field.
    pub fn validate(&self) -> Result<(), String> {
        for (field, value, least) in [
            ("period_s", self.period_s, 1e-3),
            ("latency_s", self.latency_s, 0.0),
        ] {
            if !(value.is_finite() && value >= least) {
                return Err(format!(
                    "replan.{field}: {value} is not a finite number of at least {least}"
                ));
            }
        }
        Ok(())
    }
}

/// What a planner is asked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Question {
    /// Seconds since the start.
    pub at_s: f64,
    /// Workers that take steps.
    pub workers: Vec<LiveWorker>,
    /// Active trajectories.
    pub active: Vec<LiveTrajectory>,
    /// The core's policy in force.
    pub policy: Policy,
    /// Trajectories that have ended since the last question.
    pub ended: Vec<usize>,
    /// What was said of these before each of their steps, and what came: output tokens.
    pub errors: Vec<(f64, f64)>,
}

/// A live worker as the core believes it to be. Times are microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LiveWorker {
    /// Handle.
    pub id: WorkerId,
    /// MP degree.
    pub degree: u32,
    /// Requests at once.
    pub slots: u32,
    /// KV capacity.
    pub kv_tokens: u64,
    /// A token of a request that runs alone.
    pub token_us: f64,
    /// What each request of the batch adds to it.
    pub token_us_per_seq: f64,
    /// What each token of context adds to it.
    pub token_us_per_context_token: f64,
    /// Prompt tokens a second.
    pub prefill_tokens_per_s: f64,
    /// Active trajectories at home there, and the tokens that these have still to come.
    pub homed: usize,
    /// See `homed`.
    pub homed_remaining: u64,
}

/// An active trajectory, with the estimate that the core goes by.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LiveTrajectory {
    /// Its index.
    pub trajectory: TrajectoryId,
    /// Its group.
    pub group: Option<GroupId>,
    /// Output tokens still to come.
    pub remaining: u64,
    /// Spread of its logarithm, where predicted.
    pub sigma: Option<f64>,
    /// Prompt and answer of its last step.
    pub context_tokens: u64,
    /// Output tokens so far.
    pub generated: u64,
}

/// A plan, and what follows it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Placement while it is in force.
    pub placement: PlacementKind,
    /// Shares of the ranks, longest first.
    pub partition: Vec<Share>,
    /// The shares are in force; else the placement alone, and those of an earlier plan go.
    pub with_shares: bool,
    /// Seconds that it holds.
    pub ttl_s: f64,
    /// Placement when its time is over and no other plan has come.
    pub fallback: PlacementKind,
}

/// Where planning stands.
#[derive(Debug, Default)]
pub(super) struct Planning {
    /// Version of the last plan that the core was given.
    version: u64,
    /// Placement that a plan has put in force.
    placement: Option<PlacementKind>,
    /// The answer under way.
    coming: Option<Answer>,
    /// Placement to fall back to, and the plan that it belongs to.
    fallback: Option<(u64, PlacementKind)>,
    /// Plans that were put in force.
    pub made: u64,
    ended: Vec<usize>,
}

impl Planning {
    /// Of a run that begins with this plan.
    pub fn after(first: Option<&PlanSpec>) -> Self {
        Self {
            version: first.map_or(0, |plan| plan.version),
            ..Self::default()
        }
    }
}

impl Cluster<'_> {
    pub(super) fn begin_replanning(&mut self) {
        if let Some(replan) = self.spec.replan {
            self.schedule(micros(replan.period_s), Due::Question { again: true });
        }
    }

    /// A worker has come or gone.
    pub(super) fn replan_soon(&mut self) {
        if self.spec.replan.is_some() {
            self.schedule(self.now + micros(SETTLE_S), Due::Question { again: false });
        }
    }

    pub(super) fn note_end(&mut self, trajectory: usize) {
        if self.spec.replan.is_some() {
            self.planning.ended.push(trajectory);
        }
    }

    /// Asks the planner, unless an answer is under way, there is nothing to divide, or the placement is not a plan's.
    pub(super) fn ask_planner(&mut self, again: bool) -> Result<(), SimError> {
        let Some(replan) = self.spec.replan else {
            return Ok(());
        };
        if again {
            let next = self.now + micros(replan.period_s);
            self.schedule(next, Due::Question { again });
        }
        if self.planning.coming.is_some() || !self.may_place() {
            return Ok(());
        }
        let question = self.question();
        if question.active.len() < LEAST_TO_PLAN || question.workers.is_empty() {
            return Ok(());
        }
        self.planning.ended.clear();
        let planner = self
            .planner
            .as_mut()
            .ok_or_else(|| SimError::Spec("replan: needs a planner to ask".into()))?;
        self.planning.coming = planner(&question).map_err(SimError::Planner)?;
        if self.planning.coming.is_some() {
            self.schedule(self.now + micros(replan.latency_s), Due::Answer);
        }
        Ok(())
    }

    /// The placement is the one the run began with by default, or what a plan has put there.
    fn may_place(&self) -> bool {
        let placement = self.core.policy().placement;
        placement == Policy::default().placement || self.planning.placement == Some(placement)
    }

    fn question(&self) -> Question {
        let live = |view: &heddle_core::view::WorkerView| view.state == WorkerState::Active;
        let workers = self.core.worker_views().into_iter().filter(live);
        let active = self.core.active_views().into_iter();
        let ended = &self.planning.ended;
        Question {
            at_s: seconds(self.now),
            workers: workers
                .map(|view| LiveWorker {
                    id: view.worker,
                    degree: view.degree,
                    slots: view.slots,
                    kv_tokens: view.kv_tokens,
                    token_us: view.token_us,
                    token_us_per_seq: view.token_us_per_seq,
                    token_us_per_context_token: view.token_us_per_context_token,
                    prefill_tokens_per_s: view.prefill_tokens_per_s,
                    homed: view.homed,
                    homed_remaining: view.homed_remaining,
                })
                .collect(),
            active: active
                .map(|view| LiveTrajectory {
                    trajectory: view.trajectory,
                    group: self.workload.scripts()[view.trajectory as usize].group,
                    remaining: view.remaining,
                    sigma: view.sigma,
                    context_tokens: view.context_tokens,
                    generated: view.generated,
                })
                .collect(),
            policy: self.core.policy().clone(),
            ended: ended.clone(),
            errors: self.errors_of(ended),
        }
    }

    /// What was said before each step of these trajectories, and what came.
    fn errors_of(&self, trajectories: &[usize]) -> Vec<(f64, f64)> {
        let Some(predictions) = &self.predictions else {
            return Vec::new();
        };
        let mut errors = Vec::new();
        for &trajectory in trajectories {
            let script = &self.workload.scripts()[trajectory];
            let mut left = script.output();
            for (step, turn) in script.turns.iter().enumerate() {
                let said = predictions.before_step(trajectory, step).mean;
                errors.push((said, left as f64));
                left -= turn.output;
            }
        }
        errors
    }

    /// Puts the plan that was under way in force, if the placement is still a plan's.
    pub(super) fn take_answer(&mut self) {
        let Some(answer) = self.planning.coming.take().filter(|_| self.may_place()) else {
            return;
        };
        self.place(answer.placement);
        // Shares that are not wanted go by a plan whose time is over at once.
        let ttl_s = if answer.with_shares {
            answer.ttl_s
        } else {
            0.0
        };
        if answer.with_shares || self.planning.version > 0 {
            self.planning.version += 1;
            self.inbox.push_back(Event::InstallPlan(PlanSpec {
                version: self.planning.version,
                partition: answer.partition,
                ttl_ms: Some((1000.0 * ttl_s).round() as u64),
            }));
        }
        self.planning.made += 1;
        self.planning.fallback = Some((self.planning.made, answer.fallback));
        let over = Due::PlanOver(self.planning.made);
        self.schedule(self.now + micros(answer.ttl_s), over);
    }

    /// A plan's time is over: without a newer one its fallback takes over.
    pub(super) fn end_plan(&mut self, plan: u64) {
        if let Some((last, placement)) = self.planning.fallback
            && last == plan
            && self.may_place()
        {
            self.planning.fallback = None;
            self.place(placement);
        }
    }

    fn place(&mut self, placement: PlacementKind) {
        self.planning.placement = Some(placement);
        if self.core.policy().placement != placement {
            let policy = Policy {
                placement,
                ..self.core.policy().clone()
            };
            self.inbox.push_back(Event::SetPolicy(Box::new(policy)));
        }
    }
}
