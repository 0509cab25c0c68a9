//! What is ranked, and what is told of a run of it.

use std::cmp::Ordering;

/// One ranked id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Predicted remaining tokens.
    pub weight: u64,
    /// Trajectory.
    pub id: u64,
}

impl Entry {
    /// The order as one number, which is compared without a branch: half of the cost of a search was mispredicted ones.
    fn key(self) -> u128 {
        u128::from(!self.weight) << 64 | u128::from(self.id)
    }
}

impl Ord for Entry {
    /// Heavier first; ties by the smaller id.
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    fn lt(&self, other: &Self) -> bool {
        self.key() < other.key()
    }

    fn gt(&self, other: &Self) -> bool {
        self.key() > other.key()
    }
}

/// Count and weight of a run of entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// Entries in the run.
    pub count: usize,
    /// Sum of their weights.
    pub weight: u64,
}
