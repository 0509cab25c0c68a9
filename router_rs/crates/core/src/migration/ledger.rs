//! Every move of KV that is wanted or under way.
//!
//! Invariants (`audit`): a trajectory is claimed by at most one move; a worker is in at most one transfer, as source or
//! target; a transfer begins only in a tool gap and its trajectory's home is its source until it has landed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::trajectory::Home;
use crate::{Micros, MigrationId, TrajectoryId, WorkerId};

/// Where a move stands. The last four are ends: such a move is counted and forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// Wanted; waits for its workers, or for the tool gap.
    Requested,
    /// The transfer runs.
    Moving,
    /// The transfer was called off; its workers are busy until it has stopped.
    Cancelling,
    /// The target has the KV and is the trajectory's home.
    Landed,
    /// The workers could not do it.
    Failed,
    /// It was not wanted any more.
    Cancelled,
    /// It was not done in time.
    Expired,
}

impl MoveState {
    /// The ends, in the order of [`Totals::ended`].
    pub const ENDS: [Self; 4] = [Self::Landed, Self::Failed, Self::Cancelled, Self::Expired];

    /// The legal moves.
    pub const fn moves(self) -> &'static [Self] {
        match self {
            Self::Requested => &[Self::Moving, Self::Cancelled, Self::Expired],
            Self::Moving => &[
                Self::Cancelling,
                Self::Landed,
                Self::Failed,
                Self::Cancelled,
                Self::Expired,
            ],
            Self::Cancelling => &[Self::Cancelled, Self::Expired],
            Self::Landed | Self::Failed | Self::Cancelled | Self::Expired => &[],
        }
    }

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Moving => "moving",
            Self::Cancelling => "cancelling",
            Self::Landed => "landed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }
}

/// Who wants a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Asker {
    /// The policy's rule; dropped when a step arrives first.
    Policy,
    /// A person; kept until a tool gap comes.
    Operator,
}

impl Asker {
    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Operator => "operator",
        }
    }
}

/// A move's hold on its trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The move.
    pub migration: MigrationId,
    /// Its transfer runs.
    pub moving: bool,
}

/// One move.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Move {
    /// Handle; never used twice.
    pub id: MigrationId,
    /// Whose KV.
    pub trajectory: TrajectoryId,
    /// Where it is.
    pub from: Home,
    /// Where it goes.
    pub to: Home,
    /// Context tokens to move.
    pub tokens: u64,
    /// Remaining length when it was asked for: its rank among requests.
    pub remaining: u64,
    /// Who wants it.
    pub asker: Asker,
    /// Microseconds that its transfer may take, where who wants it says so.
    pub within_us: Option<Micros>,
    /// Where it stands.
    pub state: MoveState,
    /// When it was asked for.
    pub asked_at: Micros,
    /// When the transfer began.
    pub began_at: Micros,
    /// Microseconds that the transfer is expected to take.
    pub expected_us: Micros,
    /// KV tokens set aside at the target while it runs.
    pub reserved: u64,
    /// A step has waited for it.
    pub waited_for: bool,
}

impl Move {
    /// True when this life of a worker sends or receives.
    pub fn touches(&self, worker: WorkerId) -> bool {
        self.from.worker == worker || self.to.worker == worker
    }

    /// Microseconds until it is expected to land.
    pub fn left_us(&self, now: Micros) -> Micros {
        (self.began_at + self.expected_us).saturating_sub(now)
    }
}

/// What came of all moves so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Moves that were asked for.
    pub requested: u64,
    /// Transfers that began.
    pub started: u64,
    /// Moves by their end, in the order of [`MoveState::ENDS`].
    pub ended: [u64; MoveState::ENDS.len()],
    /// Of the landed: in the tool gap, so that no step waited.
    pub hidden: u64,
    /// Steps that waited for a transfer.
    pub waits: u64,
    /// Context tokens that were at the target when transfers landed.
    pub tokens: u64,
    /// Landed moves whose next step found the KV.
    pub found: u64,
    /// Landed moves whose next step did not.
    pub not_found: u64,
}

/// The moves that have not ended.
#[derive(Debug, Default)]
pub struct Ledger {
    moves: BTreeMap<MigrationId, Move>,
    /// Requests, the longest trajectory first, then the oldest request.
    requests: BTreeSet<(Reverse<u64>, MigrationId)>,
    /// Transfers that run or are being called off: at most one for two workers.
    transfers: BTreeSet<MigrationId>,
    last: MigrationId,
    /// What came of the others.
    pub totals: Totals,
}

impl Ledger {
    /// Takes in a request.
    pub(super) fn request(&mut self, wanted: Move) -> MigrationId {
        self.last += 1;
        let id = self.last;
        self.requests.insert((Reverse(wanted.remaining), id));
        self.moves.insert(id, Move { id, ..wanted });
        self.totals.requested += 1;
        id
    }

    /// Puts a request where its trajectory's length belongs now.
    pub(super) fn rank_anew(&mut self, id: MigrationId, remaining: u64) {
        let Some(request) = self.moves.get_mut(&id) else {
            return;
        };
        if self.requests.remove(&(Reverse(request.remaining), id)) {
            request.remaining = remaining;
            self.requests.insert((Reverse(remaining), id));
        }
    }

    /// Begins the transfer of a request.
    pub(super) fn begin(&mut self, begun: Move) {
        self.requests.remove(&(Reverse(begun.remaining), begun.id));
        self.transfers.insert(begun.id);
        self.moves.insert(
            begun.id,
            Move {
                state: MoveState::Moving,
                ..begun
            },
        );
        self.totals.started += 1;
    }

    /// A transfer is to stop; its workers stay busy until it has.
    pub(super) fn call_off(&mut self, id: MigrationId) {
        if let Some(one) = self.moves.get_mut(&id) {
            one.state = MoveState::Cancelling;
        }
    }

    /// A step waits for this transfer.
    pub(super) fn note_wait(&mut self, id: MigrationId) {
        if let Some(one) = self.moves.get_mut(&id) {
            one.waited_for = true;
            self.totals.waits += 1;
        }
    }

    /// Takes an ended move out.
    pub(super) fn end(&mut self, id: MigrationId, end: MoveState) -> Option<Move> {
        let ended = self.moves.remove(&id)?;
        self.requests.remove(&(Reverse(ended.remaining), id));
        self.transfers.remove(&id);
        if let Some(place) = MoveState::ENDS.iter().position(|&state| state == end) {
            self.totals.ended[place] += 1;
        }
        Some(ended)
    }

    /// A move that has not ended.
    pub fn get(&self, id: MigrationId) -> Option<&Move> {
        self.moves.get(&id)
    }

    /// All moves that have not ended, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Move> + '_ {
        self.moves.values()
    }

    /// Requests, the longest trajectory first.
    pub fn requests(&self) -> impl Iterator<Item = MigrationId> + '_ {
        self.requests.iter().map(|&(_, id)| id)
    }

    /// Transfers that run or are being called off.
    pub fn transfers(&self) -> impl Iterator<Item = &Move> + '_ {
        self.transfers.iter().filter_map(|id| self.moves.get(id))
    }

    /// True when a worker sends or receives.
    pub fn is_busy(&self, worker: WorkerId) -> bool {
        self.transfers().any(|one| one.touches(worker))
    }

    /// True when the indices hold the same moves.
    pub(super) fn is_consistent(&self) -> bool {
        let requested = |one: &&Move| one.state == MoveState::Requested;
        self.requests.len() == self.iter().filter(requested).count()
            && self.requests.len() + self.transfers.len() == self.moves.len()
            && self.iter().all(|one| match one.state {
                MoveState::Requested => self.requests.contains(&(Reverse(one.remaining), one.id)),
                MoveState::Moving | MoveState::Cancelling => self.transfers.contains(&one.id),
                _ => false,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_final_and_a_cancelled_transfer_cannot_land() {
        for end in MoveState::ENDS {
            assert!(end.moves().is_empty());
            assert!(!MoveState::Requested.moves().contains(&MoveState::Landed));
        }
        assert!(!MoveState::Cancelling.moves().contains(&MoveState::Landed));
    }
}
