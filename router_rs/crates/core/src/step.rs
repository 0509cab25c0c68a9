//! Steps: states and their legal moves, and the attempt that runs.
//!
//! Invariant: every step that arrived is live until its one `step_ended`; a reject does not end it, it tells the
//! driver to.

use serde::Serialize;

use crate::order::OrderKey;
use crate::{Micros, StepId, TrajectoryId, WorkerId};

/// Where a live step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    /// Being taken in; no step is left in this state when an event has been handled.
    Arrived,
    /// Held: an earlier step of the trajectory is aborting.
    HeldPredecessor,
    /// Held by admission: its KV does not fit yet, or no slot is free anywhere.
    HeldAdmission,
    /// Held in the queue of a worker without a free slot.
    HeldSlot,
    /// Held: there is no worker.
    HeldNoWorker,
    /// Held: its trajectory's KV is nearly where the step is to run.
    HeldMigration,
    /// Sent to a worker.
    Dispatched,
    /// The answer has begun.
    Streaming,
    /// Its client left; the abort is on its way.
    Aborting,
    /// Its worker is gone; the driver is cancelling the attempt.
    Withdrawn,
    /// Rejected; the driver is answering the client.
    Rejected,
}

impl StepState {
    /// All states, in the order of [`Tally`].
    pub const ALL: [Self; 11] = [
        Self::Arrived,
        Self::HeldPredecessor,
        Self::HeldAdmission,
        Self::HeldSlot,
        Self::HeldNoWorker,
        Self::HeldMigration,
        Self::Dispatched,
        Self::Streaming,
        Self::Aborting,
        Self::Withdrawn,
        Self::Rejected,
    ];

    /// The states in which a step waits for the core.
    pub const HELD: [Self; 5] = [
        Self::HeldPredecessor,
        Self::HeldAdmission,
        Self::HeldSlot,
        Self::HeldNoWorker,
        Self::HeldMigration,
    ];

    /// The legal moves; every state may also end.
    #[expect(clippy::match_same_arms, reason = "a table reads by its rows")]
    pub const fn moves(self) -> &'static [Self] {
        use StepState as S;
        match self {
            S::Arrived => &[
                S::HeldPredecessor,
                S::HeldMigration,
                S::HeldAdmission,
                S::HeldSlot,
                S::HeldNoWorker,
                S::Dispatched,
                S::Aborting,
                S::Rejected,
            ],
            S::Withdrawn => &[
                S::HeldSlot,
                S::HeldNoWorker,
                S::Dispatched,
                S::Aborting,
                S::Rejected,
            ],
            S::HeldPredecessor => &[
                S::HeldMigration,
                S::HeldAdmission,
                S::HeldSlot,
                S::HeldNoWorker,
                S::Dispatched,
                S::Aborting,
                S::Rejected,
            ],
            S::HeldAdmission | S::HeldNoWorker | S::HeldMigration => &[
                S::HeldAdmission,
                S::HeldSlot,
                S::HeldNoWorker,
                S::Dispatched,
                S::Aborting,
                S::Rejected,
            ],
            S::HeldSlot => &[
                S::HeldSlot,
                S::HeldNoWorker,
                S::Dispatched,
                S::Aborting,
                S::Rejected,
            ],
            S::Dispatched | S::Streaming => &[
                S::Streaming,
                S::HeldSlot,
                S::HeldNoWorker,
                S::Dispatched,
                S::Aborting,
                S::Withdrawn,
                S::Rejected,
            ],
            S::Aborting | S::Rejected => &[],
        }
    }

    /// True when the table allows the move.
    pub fn may_become(self, to: Self) -> bool {
        self.moves().contains(&to)
    }

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arrived => "arrived",
            Self::HeldPredecessor => "held_predecessor",
            Self::HeldAdmission => "held_admission",
            Self::HeldSlot => "held_slot",
            Self::HeldNoWorker => "held_no_worker",
            Self::HeldMigration => "held_migration",
            Self::Dispatched => "dispatched",
            Self::Streaming => "streaming",
            Self::Aborting => "aborting",
            Self::Withdrawn => "withdrawn",
            Self::Rejected => "rejected",
        }
    }
}

/// Number of steps in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally([u32; StepState::ALL.len()]);

impl Tally {
    /// Steps in `state`.
    pub fn count(&self, state: StepState) -> u32 {
        self.0[state as usize]
    }

    /// Steps that wait for the core.
    pub fn held(&self) -> u32 {
        StepState::HELD
            .iter()
            .map(|state| self.count(*state))
            .sum::<u32>()
            + self.count(StepState::Arrived)
    }

    /// All steps.
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }

    /// Steps that are neither rejected nor ended.
    pub fn open(&self) -> u32 {
        self.total() - self.count(StepState::Rejected)
    }

    /// One more in `state`.
    pub fn enter(&mut self, state: StepState) {
        self.0[state as usize] += 1;
    }

    /// One less in `state`.
    pub fn leave(&mut self, state: StepState) {
        self.0[state as usize] -= 1;
    }
}

/// A dispatch of a step to a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attempt {
    /// The worker.
    pub worker: WorkerId,
    /// Its generation.
    pub generation: u64,
    /// Priority level that the engine knows.
    pub level: u8,
    /// Order of dispatches over all workers.
    pub seq: u64,
    /// When it was sent.
    pub dispatched_at: Micros,
    /// When the answer began.
    pub first_byte_at: Option<Micros>,
    /// Sequences in the worker's batch when it was sent, this one included.
    pub batch: u32,
    /// It was, or may have been, put aside by the engine: its times say nothing about the worker.
    pub disturbed: bool,
    /// The engine was made to put it aside once.
    pub put_aside: bool,
    /// The worker still holds a seat for it.
    pub seated: bool,
}

/// One LLM call from its arrival to its end.
#[derive(Debug, Clone)]
pub struct Step {
    /// Handle.
    pub id: StepId,
    /// Its trajectory.
    pub trajectory: TrajectoryId,
    /// Order of arrivals.
    pub seq: u64,
    /// When it arrived.
    pub arrived_at: Micros,
    /// Estimated prompt length in tokens.
    pub prompt_tokens: u64,
    /// Context of the trajectory before this step.
    pub context_before: u64,
    /// Worker the request asks for.
    pub pinned: Option<WorkerId>,
    /// No other can serve it.
    pub bound: bool,
    /// Chained message hashes.
    pub chain: Vec<u64>,
    /// Where it stands.
    pub state: StepState,
    /// Key under which it is queued, in states with a queue.
    pub key: OrderKey,
    /// Worker in whose queue it is.
    pub queued_at: Option<WorkerId>,
    /// Rule that chose the worker.
    pub reason: &'static str,
    /// It has waited as long as it may: head of the queue.
    pub overdue: bool,
    /// When the bound of its wait fires, if it is armed.
    pub hold_timer: Option<Micros>,
    /// Attempts so far.
    pub attempts: u32,
    /// Workers that attempts failed on.
    pub failed_on: Vec<WorkerId>,
    /// The running attempt.
    pub attempt: Option<Attempt>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aborting_and_rejected_steps_can_only_end() {
        for state in StepState::ALL {
            assert!(!StepState::Aborting.may_become(state));
            assert!(!StepState::Rejected.may_become(state));
            assert!(!state.may_become(StepState::Arrived));
            let final_state = matches!(state, StepState::Aborting | StepState::Rejected);
            assert_eq!(state.may_become(StepState::Aborting), !final_state);
        }
    }

    #[test]
    fn states_index_the_tally() {
        for (i, state) in StepState::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, i);
        }
    }
}
