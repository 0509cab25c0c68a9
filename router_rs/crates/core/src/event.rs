//! What can happen to the core. Events are plain data: they are journalled and replayed as they are.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{GroupId, Micros, MigrationId, StepId, TrajectoryId, WorkerId};

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The worker's answer is complete.
    Done,
    /// The client left.
    Aborted,
    /// The worker was lost after bytes of the answer had gone out.
    WorkerLost,
    /// The worker refused the request (4xx).
    ClientError,
    /// The worker failed (5xx) and said so.
    WorkerError,
    /// The core rejected it.
    Rejected,
    /// A time limit of the gateway passed.
    TimedOut,
}

impl Outcome {
    /// All outcomes, in the order of [`crate::counters::Counters::ended`].
    pub const ALL: [Self; 7] = [
        Self::Done,
        Self::Aborted,
        Self::WorkerLost,
        Self::ClientError,
        Self::WorkerError,
        Self::Rejected,
        Self::TimedOut,
    ];

    /// The stable name, as in the step record.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Aborted => "aborted",
            Self::WorkerLost => "worker_lost",
            Self::ClientError => "client_error",
            Self::WorkerError => "worker_error",
            Self::Rejected => "rejected",
            Self::TimedOut => "timed_out",
        }
    }

    /// The outcome of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.name() == name)
    }
}

/// Why an attempt failed before any byte of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Connection refused, reset or lost: the worker is suspect from now on.
    Unreachable,
    /// The worker's queue is full, or it dropped the request for a better one.
    Overloaded,
    /// The worker answered with a server error.
    WorkerError,
}

impl FailureKind {
    const ALL: [Self; 3] = [Self::Unreachable, Self::Overloaded, Self::WorkerError];

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Overloaded => "overloaded",
            Self::WorkerError => "worker_error",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Why a transfer did not come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationFailure {
    /// It was cancelled before it was complete.
    Cancelled,
    /// The workers found that it is not worth it, or that nothing is there to move.
    Declined,
    /// The target has no room.
    TargetFull,
    /// The two do not fit: model, layout, weights.
    Mismatch,
    /// It was not complete in time.
    Deadline,
    /// The source or the target cannot be reached.
    Unreachable,
    /// What arrived was broken, or anything else.
    Broken,
}

impl MigrationFailure {
    const ALL: [Self; 7] = [
        Self::Cancelled,
        Self::Declined,
        Self::TargetFull,
        Self::Mismatch,
        Self::Deadline,
        Self::Unreachable,
        Self::Broken,
    ];

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Declined => "declined",
            Self::TargetFull => "target_full",
            Self::Mismatch => "mismatch",
            Self::Deadline => "deadline",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
        }
    }

    /// The failure of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|failure| failure.name() == name)
    }
}

/// A worker and what it can do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerUp {
    /// Handle of the worker.
    pub worker: WorkerId,
    /// Grows when the worker behind the handle is a new one; residency does not outlive it.
    pub generation: u64,
    /// Model-parallel degree.
    pub degree: u32,
    /// Requests the engine runs at once.
    pub slots: u32,
    /// KV capacity in tokens; 0 when unknown, which counts as enough.
    pub kv_tokens: u64,
    /// The engine orders by priority and preempts.
    pub has_priority: bool,
    /// Cost table, or what the degree suggests.
    pub profile: Option<crate::belief::Profile>,
    /// How its KV can be sent to other workers and received from them; absent where it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkSpec>,
    /// Which weights it runs; KV of other weights is worth nothing to it.
    #[serde(default)]
    pub weights: u64,
}

/// What a worker announces of moving KV.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// KV tokens a second that it can send or receive, above 0.
    pub tokens_per_s: f64,
    /// Microseconds that a transfer takes whatever it moves.
    #[serde(default)]
    pub setup_us: u64,
}

/// A request of a trajectory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepArrived {
    /// Handle of the step; never used twice.
    pub step: StepId,
    /// Its trajectory; made known by its first step.
    pub trajectory: TrajectoryId,
    /// Its group, if it has one.
    pub group: Option<GroupId>,
    /// Estimated prompt length in tokens.
    pub prompt_tokens: u64,
    /// Chained message hashes: entry i stands for messages 0..=i. Empty unless placement is cache-aware.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<u64>,
    /// Use this worker as long as it can be used.
    pub pinned_worker: Option<WorkerId>,
    /// No other worker than the pinned one can serve it: it keeps what the request goes on from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound: bool,
}

/// A step that runs already: another process sent it to its worker, and decisions about it are made here from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepAdopted {
    /// Handle of the step; never used twice.
    pub step: StepId,
    /// Its trajectory; made known by its first step.
    pub trajectory: TrajectoryId,
    /// Its group, if it has one.
    pub group: Option<GroupId>,
    /// Estimated prompt length in tokens.
    pub prompt_tokens: u64,
    /// Where it runs.
    pub worker: WorkerId,
    /// The worker's generation. Of a worker that is not known, or another life of it, nothing is counted: the step
    /// waits for its end or for its attempt to fail.
    pub generation: u64,
    /// The priority level it was sent with.
    pub level: u8,
    /// Microseconds since it was sent.
    pub running_us: Micros,
    /// The answer has begun.
    pub streaming: bool,
}

/// The end of a step, whatever it was. Token counts are the worker's own where it gave them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepEnded {
    /// The step.
    pub step: StepId,
    /// How it ended.
    pub outcome: Outcome,
    /// Prompt length; 0 when unknown.
    pub prompt_tokens: u64,
    /// Tokens generated, also of a partial answer.
    pub output_tokens: u64,
    /// Prompt tokens the worker found in its cache.
    pub cached_tokens: u64,
}

/// Something happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A worker can be used, or changed what it can do.
    WorkerUp(WorkerUp),
    /// No new steps there while others can take them.
    WorkerDraining {
        /// Handle of the worker.
        worker: WorkerId,
        /// Its generation.
        generation: u64,
    },
    /// The worker is lost.
    WorkerDown {
        /// Handle of the worker.
        worker: WorkerId,
        /// Its generation.
        generation: u64,
    },
    /// The worker is out of the registry.
    WorkerRemoved {
        /// Handle of the worker.
        worker: WorkerId,
        /// Its generation.
        generation: u64,
    },
    /// What the worker says about itself.
    LoadReport {
        /// Handle of the worker.
        worker: WorkerId,
        /// Its generation.
        generation: u64,
        /// Requests in its batch.
        running: u32,
        /// Requests in its queue.
        waiting: u32,
        /// KV tokens in use.
        kv_used: u64,
    },
    /// A request came in.
    StepArrived(StepArrived),
    /// A step that another process began goes on here.
    StepAdopted(StepAdopted),
    /// The worker's first byte of an answer is there.
    FirstByte {
        /// The step.
        step: StepId,
    },
    /// The client left, the abort is on its way.
    StepAborting {
        /// The step.
        step: StepId,
    },
    /// An attempt ended and no byte of an answer reached the client.
    AttemptFailed {
        /// The step.
        step: StepId,
        /// Where it was.
        worker: WorkerId,
        /// Generation it was sent to.
        generation: u64,
        /// Why.
        kind: FailureKind,
    },
    /// A step is over. Every arrived step gets exactly one, also after a reject.
    StepEnded(StepEnded),
    /// A predictor's view of a trajectory.
    Predicted {
        /// The trajectory.
        trajectory: TrajectoryId,
        /// Expected output tokens still to come.
        #[serde(deserialize_with = "finite_or_nan")]
        mean: f64,
        /// Standard deviation of the logarithm of that length.
        #[serde(deserialize_with = "finite_or_nan")]
        sigma: f64,
        /// Expected microseconds from the end of its last step to its next request; absent where unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gap_us: Option<u64>,
    },
    /// A trajectory of a batch that was announced: it counts among the active ones from now on, so that ranks, and the
    /// first placement of all of them, are those of the whole batch. Said of a known one it is a prediction.
    TrajectoryExpected {
        /// The trajectory.
        trajectory: TrajectoryId,
        /// Its group, if it has one.
        group: Option<GroupId>,
        /// Expected output tokens.
        #[serde(deserialize_with = "finite_or_nan")]
        mean: f64,
        /// Standard deviation of the logarithm of that length.
        #[serde(deserialize_with = "finite_or_nan")]
        sigma: f64,
    },
    /// A plan of the planner.
    InstallPlan(crate::plan::PlanSpec),
    /// A new policy, complete.
    SetPolicy(Box<crate::policy::Policy>),
    /// A person wants a trajectory's KV on another worker.
    MigrationAsked {
        /// The trajectory.
        trajectory: TrajectoryId,
        /// Where to.
        to: WorkerId,
        /// Microseconds that the transfer may take; absent: sized by what it moves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within_us: Option<u64>,
    },
    /// The engines are paused, or go on: no step is sent and no move begins in between. Steps wait meanwhile.
    DispatchPaused {
        /// They are paused from now on.
        paused: bool,
    },
    /// A transfer is complete: the target holds the KV.
    MigrationLanded {
        /// The migration, as its action named it.
        migration: MigrationId,
        /// Context tokens that the target holds of the trajectory now.
        tokens: u64,
    },
    /// A transfer did not come about; the source holds the KV as before.
    MigrationFailed {
        /// The migration, as its action named it.
        migration: MigrationId,
        /// Why.
        why: MigrationFailure,
    },
    /// A worker runs other weights from now on: KV computed before is void.
    WeightsUpdated {
        /// Handle of the worker.
        worker: WorkerId,
        /// Its generation.
        generation: u64,
        /// The weights.
        weights: u64,
    },
    /// The trajectory's owner says that it is over.
    TrajectoryFinished {
        /// The trajectory.
        trajectory: TrajectoryId,
    },
}

/// JSON has no number that is not finite and writes `null`; the journal of a refused prediction must read back.
fn finite_or_nan<'de, D: serde::Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::NAN))
}

/// Why an event was not taken. The core's state is unchanged by such an event.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EventError {
    /// No live step of this id: never arrived, or ended before.
    #[error("step {0} is not live: it never arrived or has ended")]
    UnknownStep(StepId),
    /// A step id was used twice.
    #[error("step {0} has arrived before")]
    DuplicateStep(StepId),
    /// No trajectory of this id.
    #[error("trajectory {0} is not known")]
    UnknownTrajectory(TrajectoryId),
    /// A value that cannot be.
    #[error("{field}: {why}")]
    BadField {
        /// Name of the field.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
}
