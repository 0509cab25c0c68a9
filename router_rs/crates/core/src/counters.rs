//! What has happened so far. Totals only: what is the case now is derived from the live sets.

use crate::event::Outcome;

/// Running totals since the core was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events taken in.
    pub events: u64,
    /// Steps that arrived, adopted ones included.
    pub arrived: u64,
    /// Steps that another process had sent to their workers.
    pub adopted: u64,
    /// Dispatches.
    pub dispatched: u64,
    /// Rejects.
    pub rejected: u64,
    /// Ended steps by outcome, in the order of [`Outcome::ALL`].
    pub ended: [u64; Outcome::ALL.len()],
    /// Attempts that failed.
    pub attempts_failed: u64,
    /// Withdrawals.
    pub withdrawn: u64,
    /// Steps sent over the slots to make an engine put another aside.
    pub preemptions: u64,
    /// Trajectories that got another home while the old one lived.
    pub moves: u64,
    /// Trajectories that lost their home to others because KV was short.
    pub set_aside: u64,
    /// Held steps that another worker took from a queue.
    pub stolen: u64,
    /// Held steps whose wait reached its bound.
    pub holds_expired: u64,
    /// Trajectories forgotten.
    pub expired: u64,
    /// Events of an old generation or an unknown worker.
    pub stale_events: u64,
    /// Events that named a step that is not live, or came twice.
    pub refused_events: u64,
    /// Times that went backwards.
    pub clock_backwards: u64,
    /// Moves of a phase or state that its table does not allow; always 0 if the core is right.
    pub illegal_moves: u64,
}
