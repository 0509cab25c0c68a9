//! All timers of the core in one structure, by what they are for.
//!
//! Invariant: a [`Timer`] is armed at most once; arming again moves it.

use std::collections::BTreeSet;

use crate::id_map::IdMap;
use crate::{Micros, MigrationId, StepId, TrajectoryId};

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

impl Timer {
    /// Kinds of timers.
    const KINDS: usize = 4;

    /// Its kind, ascending as the timers are, and the handle within it.
    fn split(self) -> (usize, u64) {
        match self {
            Self::Hold(id) => (0, id),
            Self::Gap(id) => (1, id),
            Self::Move(id) => (2, id),
            Self::PlanExpiry => (3, 0),
        }
    }

    fn join(kind: usize, id: u64) -> Self {
        match kind {
            0 => Self::Hold(id),
            1 => Self::Gap(id),
            2 => Self::Move(id),
            _ => Self::PlanExpiry,
        }
    }
}

/// Armed timers of one kind by time.
#[derive(Debug, Default)]
struct Kind {
    by_time: BTreeSet<(Micros, u64)>,
    armed: IdMap<u64, Micros>,
}

/// Armed timers. Each kind by itself: every trajectory has a timer for its gaps that is seldom looked at, and those of held
/// steps, which come and go, are found in a small set.
#[derive(Debug, Default)]
pub struct Timers([Kind; Timer::KINDS]);

impl Timers {
    /// Arms `timer` for `at`, instead of any earlier setting.
    pub fn arm(&mut self, timer: Timer, at: Micros) {
        let (kind, id) = timer.split();
        let kind = &mut self.0[kind];
        if let Some(old) = kind.armed.insert(id, at) {
            kind.by_time.remove(&(old, id));
        }
        kind.by_time.insert((at, id));
    }

    /// Disarms `timer` if it is armed.
    pub fn disarm(&mut self, timer: Timer) {
        let (kind, id) = timer.split();
        let kind = &mut self.0[kind];
        if let Some(at) = kind.armed.remove(id) {
            kind.by_time.remove(&(at, id));
        }
    }

    /// When `timer` fires.
    pub fn at(&self, timer: Timer) -> Option<Micros> {
        let (kind, id) = timer.split();
        self.0[kind].armed.get(id).copied()
    }

    /// The next timer; of those at one time, the kinds in their order.
    fn first(&self) -> Option<(Micros, Timer)> {
        let heads = self.0.iter().enumerate().filter_map(|(kind, timers)| {
            let &(at, id) = timers.by_time.first()?;
            Some((at, Timer::join(kind, id)))
        });
        heads.min()
    }

    /// When the next timer fires.
    pub fn next(&self) -> Option<Micros> {
        self.first().map(|(at, _)| at)
    }

    /// Takes the earliest timer that is due at `now`.
    pub fn pop_due(&mut self, now: Micros) -> Option<Timer> {
        let (at, timer) = self.first()?;
        if at > now {
            return None;
        }
        self.disarm(timer);
        Some(timer)
    }

    /// Number of armed timers.
    pub fn len(&self) -> usize {
        self.0.iter().map(|kind| kind.by_time.len()).sum()
    }

    /// All armed timers, for audits.
    pub fn iter(&self) -> impl Iterator<Item = (Micros, Timer)> + '_ {
        self.0.iter().enumerate().flat_map(|(kind, timers)| {
            let by_time = timers.by_time.iter();
            by_time.map(move |&(at, id)| (at, Timer::join(kind, id)))
        })
    }

    /// True when both indices of every kind hold the same timers.
    pub fn is_consistent(&self) -> bool {
        self.0.iter().all(|kind| {
            kind.armed.len() == kind.by_time.len()
                && kind
                    .by_time
                    .iter()
                    .all(|&(at, id)| kind.armed.get(id) == Some(&at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_by_time_and_by_kind_at_one_time() {
        let mut timers = Timers::default();
        timers.arm(Timer::PlanExpiry, 5);
        timers.arm(Timer::Gap(1), 5);
        timers.arm(Timer::Hold(9), 5);
        timers.arm(Timer::Hold(3), 7);
        timers.arm(Timer::Move(2), 4);
        timers.arm(Timer::Hold(9), 6);
        timers.arm(Timer::Hold(8), 1);
        timers.disarm(Timer::Hold(8));
        assert_eq!((timers.len(), timers.next()), (5, Some(4)));
        assert_eq!(timers.at(Timer::Hold(9)), Some(6));
        let mut fired = Vec::new();
        while let Some(timer) = timers.pop_due(6) {
            fired.push(timer);
        }
        let expected = [
            Timer::Move(2),
            Timer::Gap(1),
            Timer::PlanExpiry,
            Timer::Hold(9),
        ];
        assert_eq!(fired, expected);
        assert_eq!((timers.len(), timers.next()), (1, Some(7)));
        assert!(timers.is_consistent());
    }
}
