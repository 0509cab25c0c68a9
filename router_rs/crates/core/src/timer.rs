//! All timers of the core in one structure, keyed by what they are for.
//!
//! Invariant: a [`Timer`] is armed at most once; arming again moves it.

use std::collections::BTreeSet;

use crate::id_map::IdMap;
use crate::{Micros, MigrationId, StepId, TrajectoryId};

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// The hold of a step has lasted as long as it may; what happens depends on why it is held.
    Hold(StepId),
    /// A trajectory has been in its tool gap for long: it becomes dormant, later it expires.
    Gap(TrajectoryId),
    /// A move of KV has waited, or taken, as long as it may.
    Move(MigrationId),
    /// The installed plan is no longer valid.
    PlanExpiry,
}

/// Armed timers by time.
#[derive(Debug, Default)]
pub struct Timers {
    by_time: BTreeSet<(Micros, Timer)>,
    armed: IdMap<Timer, Micros>,
}

impl Timers {
    /// Arms `timer` for `at`, instead of any earlier setting.
    pub fn arm(&mut self, timer: Timer, at: Micros) {
        if let Some(old) = self.armed.insert(timer, at) {
            self.by_time.remove(&(old, timer));
        }
        self.by_time.insert((at, timer));
    }

    /// Disarms `timer` if it is armed.
    pub fn disarm(&mut self, timer: Timer) {
        if let Some(at) = self.armed.remove(timer) {
            self.by_time.remove(&(at, timer));
        }
    }

    /// When `timer` fires.
    pub fn at(&self, timer: Timer) -> Option<Micros> {
        self.armed.get(timer).copied()
    }

    /// When the next timer fires.
    pub fn next(&self) -> Option<Micros> {
        self.by_time.first().map(|&(at, _)| at)
    }

    /// Takes the earliest timer that is due at `now`.
    pub fn pop_due(&mut self, now: Micros) -> Option<Timer> {
        let &(at, timer) = self.by_time.first()?;
        if at > now {
            return None;
        }
        self.by_time.pop_first();
        self.armed.remove(timer);
        Some(timer)
    }

    /// Number of armed timers.
    pub fn len(&self) -> usize {
        self.by_time.len()
    }

    /// All armed timers, for audits.
    pub fn iter(&self) -> impl Iterator<Item = (Micros, Timer)> + '_ {
        self.by_time.iter().copied()
    }

    /// True when both indices hold the same timers.
    pub fn is_consistent(&self) -> bool {
        self.armed.len() == self.by_time.len()
            && self
                .by_time
                .iter()
                .all(|&(at, timer)| self.armed.get(timer) == Some(&at))
    }
}
