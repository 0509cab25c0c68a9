//! What the core wants done. The driver carries actions out in the order they are polled.

use serde::Serialize;

use crate::{Micros, MigrationId, StepId, TrajectoryId, WorkerId};

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Send this step to this worker now.
    Dispatch(Dispatch),
    /// End this step without an answer of a worker; report the end as for any other step.
    Reject(Reject),
    /// Cancel the running attempt: its worker is gone. Then report that the attempt failed, or the step's end.
    Withdraw {
        /// The step.
        step: StepId,
        /// Where the attempt runs.
        worker: WorkerId,
        /// Generation it was sent to.
        generation: u64,
    },
    /// Move this trajectory's KV; then report that the migration landed or failed.
    Migrate(Migrate),
    /// Stop this transfer, and report how it ended all the same.
    CancelMigration {
        /// The migration.
        migration: MigrationId,
        /// Whose KV.
        trajectory: TrajectoryId,
        /// The worker that sends.
        from: WorkerId,
        /// The worker that receives.
        to: WorkerId,
    },
    /// Forget this trajectory.
    Expire {
        /// The trajectory.
        trajectory: TrajectoryId,
        /// Why.
        reason: ExpireReason,
    },
}

/// Whose KV is moved from where to where, and how long that may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Migrate {
    /// Handle of the migration.
    pub migration: MigrationId,
    /// Whose KV.
    pub trajectory: TrajectoryId,
    /// The worker that has it.
    pub from: WorkerId,
    /// Its generation.
    pub from_generation: u64,
    /// The worker that gets it.
    pub to: WorkerId,
    /// Its generation.
    pub to_generation: u64,
    /// Context tokens that lie at the source, as far as is known.
    pub tokens: u64,
    /// Microseconds from now after which it is given up.
    pub within_us: Micros,
    /// Microseconds that computing the context again would take: a transfer that takes longer is not to be begun. Absent
    /// where somebody insists.
    pub worth_us: Option<Micros>,
}

/// Where and how a step is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dispatch {
    /// The step.
    pub step: StepId,
    /// The worker.
    pub worker: WorkerId,
    /// The worker's generation.
    pub generation: u64,
    /// The engine's number, higher first: level times spacing.
    pub priority: i64,
    /// Quantised level, below 32.
    pub level: u8,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Rule that chose the worker.
    pub reason: &'static str,
}

/// Why and how a step is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reject {
    /// The step.
    pub step: StepId,
    /// HTTP status.
    pub status: u16,
    /// Stable code.
    pub reason: RejectReason,
    /// When a retry makes sense, in milliseconds.
    pub retry_after_ms: u64,
}

/// Stable codes of rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectReason {
    /// No worker can take it.
    NoWorker,
    /// As many attempts failed as are allowed.
    AttemptsExhausted,
}

impl RejectReason {
    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoWorker => "no_worker",
            Self::AttemptsExhausted => "attempts_exhausted",
        }
    }
}

/// Why a trajectory is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpireReason {
    /// Idle beyond the TTL.
    Idle,
    /// Its owner said that it is over, and its last step has ended.
    Finished,
}

impl ExpireReason {
    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Finished => "finished",
        }
    }
}
