//! All timers of the core in one structure, by what they are for.
//!
//! Invariant: a [`Timer`] is armed at most once; arming again moves it.

use std::collections::BTreeSet;

use crate::id_map::IdMap;
use crate::{Micros, MigrationId, StepId, TrajectoryId, WorkerId};

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
    /// A worker has stood idle for so long that it takes the first of those held by admission.
    Room,
    /// The queue of a worker has been held for others to come for as long as that is worth it.
    Gathering(WorkerId),
}

/// Armed timers of one kind by time, and the time of each.
#[derive(Debug, Default)]
pub struct Armed {
    by_time: BTreeSet<(Micros, u64)>,
    at: IdMap<u64, Micros>,
}

impl Armed {
    /// Arms the timer of `id` for `at`, instead of any earlier setting.
    pub fn arm(&mut self, id: u64, at: Micros) {
        if let Some(old) = self.at.insert(id, at) {
            self.by_time.remove(&(old, id));
        }
        self.by_time.insert((at, id));
    }

    /// Disarms the timer of `id` if it is armed.
    pub fn disarm(&mut self, id: u64) {
        if let Some(at) = self.at.remove(id) {
            self.by_time.remove(&(at, id));
        }
    }

    /// When the timer of `id` fires.
    pub fn at(&self, id: u64) -> Option<Micros> {
        self.at.get(id).copied()
    }

    fn is_consistent(&self) -> bool {
        let is_armed = |&(at, id): &(Micros, u64)| self.at.get(id) == Some(&at);
        self.at.len() == self.by_time.len() && self.by_time.iter().all(is_armed)
    }
}

/// Armed timers of one kind by time, where the time of each is kept in what it is for: that is at hand when the timer is looked
/// at, and a table of times would be two more lines of memory to wait for.
#[derive(Debug, Default)]
pub struct Noted(BTreeSet<(Micros, u64)>);

impl Noted {
    /// Moves a timer from where it is `armed` to another time, or disarms it.
    pub fn set(&mut self, id: u64, armed: &mut Option<Micros>, at: Option<Micros>) {
        if let Some(old) = *armed {
            self.0.remove(&(old, id));
        }
        if let Some(at) = at {
            self.0.insert((at, id));
        }
        *armed = at;
    }
}

/// All armed timers. Each kind by itself: those of held steps, which come and go, are found in a small set.
#[derive(Debug, Default)]
pub struct Timers {
    /// [`Timer::Hold`].
    pub holds: Noted,
    /// [`Timer::Gap`].
    pub gaps: Noted,
    /// [`Timer::Move`].
    pub moves: Armed,
    /// [`Timer::PlanExpiry`].
    pub plan_expiry: Option<Micros>,
    /// [`Timer::Room`].
    pub room: Option<Micros>,
    /// [`Timer::Gathering`].
    pub gatherings: Armed,
}

impl Timers {
    /// The next timer; of those at one time, the kinds in their order.
    fn first(&self) -> Option<(Micros, Timer)> {
        let hold = self.holds.0.first();
        let gap = self.gaps.0.first();
        let heads = [
            hold.map(|&(at, id)| (at, Timer::Hold(id))),
            gap.map(|&(at, id)| (at, Timer::Gap(id))),
            (self.moves.by_time.first()).map(|&(at, id)| (at, Timer::Move(id))),
            self.plan_expiry.map(|at| (at, Timer::PlanExpiry)),
            self.room.map(|at| (at, Timer::Room)),
            (self.gatherings.by_time.first()).map(|&(at, id)| (at, Timer::Gathering(id))),
        ];
        heads.into_iter().flatten().min()
    }

    /// When the next timer fires.
    pub fn next(&self) -> Option<Micros> {
        self.first().map(|(at, _)| at)
    }

    /// Takes the earliest timer that is due at `now`. A step or trajectory whose timer it is has to be told.
    pub fn pop_due(&mut self, now: Micros) -> Option<Timer> {
        let (at, timer) = self.first().filter(|&(at, _)| at <= now)?;
        match timer {
            Timer::Hold(id) => self.holds.set(id, &mut Some(at), None),
            Timer::Gap(id) => self.gaps.set(id, &mut Some(at), None),
            Timer::Move(id) => self.moves.disarm(id),
            Timer::PlanExpiry => self.plan_expiry = None,
            Timer::Room => self.room = None,
            Timer::Gathering(id) => self.gatherings.disarm(id),
        }
        Some(timer)
    }

    /// Number of armed timers.
    pub fn len(&self) -> usize {
        let single = [self.plan_expiry, self.room].into_iter().flatten().count();
        let noted = self.holds.0.len() + self.gaps.0.len();
        noted + self.moves.by_time.len() + self.gatherings.by_time.len() + single
    }

    /// All armed timers, for audits.
    pub fn iter(&self) -> impl Iterator<Item = (Micros, Timer)> + '_ {
        let holds = self.holds.0.iter();
        let gaps = self.gaps.0.iter();
        let moves = self.moves.by_time.iter();
        let gatherings = self.gatherings.by_time.iter();
        let plan = self.plan_expiry.map(|at| (at, Timer::PlanExpiry));
        let room = self.room.map(|at| (at, Timer::Room));
        holds
            .map(|&(at, id)| (at, Timer::Hold(id)))
            .chain(gaps.map(|&(at, id)| (at, Timer::Gap(id))))
            .chain(moves.map(|&(at, id)| (at, Timer::Move(id))))
            .chain(plan)
            .chain(room)
            .chain(gatherings.map(|&(at, id)| (at, Timer::Gathering(id))))
    }

    /// True when both indices of every kind that has two hold the same timers.
    pub fn is_consistent(&self) -> bool {
        self.moves.is_consistent() && self.gatherings.is_consistent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_by_time_and_by_kind_at_one_time() {
        let mut timers = Timers {
            plan_expiry: Some(5),
            ..Timers::default()
        };
        let mut gap = None;
        timers.gaps.set(1, &mut gap, Some(9));
        timers.gaps.set(1, &mut gap, Some(5));
        let mut holds = [None; 3];
        timers.holds.set(9, &mut holds[0], Some(5));
        timers.holds.set(3, &mut holds[1], Some(7));
        timers.moves.arm(2, 4);
        timers.moves.arm(6, 9);
        timers.moves.arm(6, 1);
        timers.moves.disarm(6);
        timers.holds.set(9, &mut holds[0], Some(6));
        timers.holds.set(8, &mut holds[2], Some(1));
        timers.holds.set(8, &mut holds[2], None);
        assert_eq!((timers.len(), timers.next()), (5, Some(4)));
        assert_eq!((holds, gap), ([Some(6), Some(7), None], Some(5)));
        assert_eq!((timers.moves.at(2), timers.moves.at(6)), (Some(4), None));
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
