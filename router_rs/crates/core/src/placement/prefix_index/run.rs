//! Runs of messages that follow each other, and how far each worker holds them.
//!
//! Invariants: a run has at least one message and as many as the worker that holds most of it; a worker holds the first
//! `held` messages of a run, at least one; the stretches of a hold end ascending, the last one at `held`.

use std::ops::{Deref, DerefMut};

use crate::WorkerId;

/// A message: the `at`-th of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) run: u32,
    pub(super) at: u32,
}

/// Messages up to `end` that were last used at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    end: u32,
    used: u64,
}

/// What one worker holds of a run.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) worker: WorkerId,
    /// Messages of the run.
    pub(super) held: u32,
    /// Last use of the last stretch, which is the one that is looked at and changed at almost every step.
    used: u64,
    /// All other stretches.
    earlier: Vec<Stretch>,
    /// Messages that other runs follow on which the worker holds, ascending, each with their number.
    forks: Vec<(u32, u32)>,
}

impl Hold {
    pub(super) fn new(worker: WorkerId, held: u32, used: u64) -> Self {
        Self {
            worker,
            held,
            used,
            earlier: Vec::new(),
            forks: Vec::new(),
        }
    }

    /// Messages before the last stretch.
    fn last_start(&self) -> u32 {
        self.earlier.last().map_or(0, |stretch| stretch.end)
    }

    /// When a message that it holds was last used.
    pub(super) fn used(&self, at: u32) -> u64 {
        if at + 1 == self.held {
            return self.used;
        }
        let place = self.earlier.partition_point(|stretch| stretch.end <= at);
        self.earlier
            .get(place)
            .map_or(self.used, |stretch| stretch.used)
    }

    /// True when it holds nothing that follows on this message.
    pub(super) fn is_leaf(&self, at: u32) -> bool {
        self.held == at + 1 && self.forks.last().is_none_or(|&(last, _)| last != at)
    }

    /// One message is used.
    pub(super) fn touch(&mut self, at: u32, used: u64) {
        let start = self.last_start();
        if at < start {
            self.touch_earlier(at, used);
            return;
        }
        if start < at {
            self.earlier.push(Stretch {
                end: at,
                used: self.used,
            });
        }
        if at + 1 < self.held {
            self.earlier.push(Stretch { end: at + 1, used });
        } else {
            self.used = used;
        }
    }

    fn touch_earlier(&mut self, at: u32, used: u64) {
        let place = self.earlier.partition_point(|stretch| stretch.end <= at);
        let old = self.earlier[place];
        let start = place
            .checked_sub(1)
            .map_or(0, |last| self.earlier[last].end);
        if at + 1 < old.end {
            self.earlier.insert(place + 1, old);
        }
        let touched = Stretch { end: at + 1, used };
        if start < at {
            self.earlier[place].end = at;
            self.earlier.insert(place + 1, touched);
        } else {
            self.earlier[place] = touched;
        }
    }

    /// It gets the next `number` messages.
    pub(super) fn extend(&mut self, number: u32, used: u64) {
        if self.used != used {
            self.earlier.push(Stretch {
                end: self.held,
                used: self.used,
            });
            self.used = used;
        }
        self.held += number;
    }

    /// Loses its last messages, as many as were used at the same time and are followed by nothing, at most `most`; says how
    /// many.
    pub(super) fn shrink(&mut self, most: usize) -> usize {
        let start = self.last_start();
        let forked = self.forks.last().map_or(0, |&(at, _)| at + 1);
        let number = most.min((self.held - start.max(forked)) as usize);
        self.held -= number as u32;
        if self.held == start
            && let Some(last) = self.earlier.pop()
        {
            self.used = last.used;
        }
        number
    }

    /// A run that follows on this message is held as well.
    pub(super) fn fork(&mut self, at: u32) {
        match self.forks.binary_search_by_key(&at, |&(at, _)| at) {
            Ok(place) => self.forks[place].1 += 1,
            Err(place) => self.forks.insert(place, (at, 1)),
        }
    }

    /// One that was is held no more.
    pub(super) fn unfork(&mut self, at: u32) {
        if let Ok(place) = self.forks.binary_search_by_key(&at, |&(at, _)| at) {
            self.forks[place].1 -= 1;
            if self.forks[place].1 == 0 {
                self.forks.remove(place);
            }
        }
    }

    /// Messages that other runs follow on which the worker holds, each with their number.
    pub(super) fn forks(&self) -> &[(u32, u32)] {
        &self.forks
    }

    /// True when the stretches are as they should be.
    pub(super) fn is_consistent(&self) -> bool {
        let ends = self.earlier.iter().map(|stretch| stretch.end);
        ends.chain([self.held]).is_sorted_by(|a, b| a < b)
            && self.earlier.first().is_none_or(|first| first.end > 0)
            && self.held > 0
            && self.forks.last().is_none_or(|&(at, _)| at < self.held)
    }
}

/// Holds by worker, ascending. Mostly there is one, which lies in the run itself: memory of its own would be one more line to
/// wait for at every step.
#[derive(Debug)]
enum Holds {
    One(Hold),
    /// None, or two and more.
    Many(Vec<Hold>),
}

impl Default for Holds {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Deref for Holds {
    type Target = [Hold];

    fn deref(&self) -> &[Hold] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(holds) => holds,
        }
    }
}

impl DerefMut for Holds {
    fn deref_mut(&mut self) -> &mut [Hold] {
        match self {
            Self::One(one) => std::slice::from_mut(one),
            Self::Many(holds) => holds,
        }
    }
}

impl Holds {
    fn insert(&mut self, place: usize, hold: Hold) {
        let mut holds = match std::mem::take(self) {
            Self::Many(none) if none.is_empty() => {
                *self = Self::One(hold);
                return;
            }
            Self::One(one) => vec![one],
            Self::Many(holds) => holds,
        };
        holds.insert(place, hold);
        *self = Self::Many(holds);
    }

    fn remove(&mut self, place: usize) {
        match self {
            Self::One(_) => *self = Self::default(),
            Self::Many(holds) => {
                holds.remove(place);
                if holds.len() == 1
                    && let Some(last) = holds.pop()
                {
                    *self = Self::One(last);
                }
            }
        }
    }
}

/// Messages that follow each other.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// What the first one follows.
    pub(super) parent: Option<Spot>,
    pub(super) hashes: Vec<u64>,
    holds: Holds,
}

impl Run {
    pub(super) fn new(parent: Option<Spot>, hashes: &[u64], hold: Hold) -> Self {
        Self {
            parent,
            hashes: hashes.to_vec(),
            holds: Holds::One(hold),
        }
    }

    fn place_of(&self, worker: WorkerId) -> Result<usize, usize> {
        self.holds.binary_search_by_key(&worker, |hold| hold.worker)
    }

    pub(super) fn hold(&self, worker: WorkerId) -> Option<&Hold> {
        self.place_of(worker).ok().map(|place| &self.holds[place])
    }

    pub(super) fn hold_mut(&mut self, worker: WorkerId) -> Option<&mut Hold> {
        let place = self.place_of(worker).ok()?;
        Some(&mut self.holds[place])
    }

    /// All holds, by worker.
    pub(super) fn holds(&self) -> &[Hold] {
        &self.holds
    }

    pub(super) fn add(&mut self, hold: Hold) {
        if let Err(place) = self.place_of(hold.worker) {
            self.holds.insert(place, hold);
        }
    }

    pub(super) fn release(&mut self, worker: WorkerId) {
        if let Ok(place) = self.place_of(worker) {
            self.holds.remove(place);
        }
    }

    /// Messages of `rest` that agree with those from `at` on, the first of which does. Each stands for all before it: where the
    /// last one agrees, as it does when a conversation goes on, nothing else is read.
    pub(super) fn agrees(&self, at: usize, rest: &[u64]) -> usize {
        let own = &self.hashes[at..];
        let most = own.len().min(rest.len());
        if own[most - 1] == rest[most - 1] {
            return most;
        }
        let (mut low, mut high) = (1, most - 1);
        while low < high {
            let middle = usize::midpoint(low, high);
            if own[middle] == rest[middle] {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// True when a run follows on its last message.
    pub(super) fn is_followed(&self) -> bool {
        let end = self.hashes.len();
        let follows = |hold: &Hold| hold.held as usize == end && !hold.is_leaf(hold.held - 1);
        self.holds.iter().any(follows)
    }

    /// Messages of the worker that holds most.
    pub(super) fn longest_hold(&self) -> usize {
        self.holds
            .iter()
            .map(|hold| hold.held as usize)
            .max()
            .unwrap_or(0)
    }
}

/// Runs of one block; blocks are never moved, so that nobody waits while all runs are.
const BLOCK: usize = 1024;

/// All runs by number.
#[derive(Debug, Default)]
pub(super) struct Runs {
    blocks: Vec<Vec<Run>>,
    free: Vec<u32>,
}

impl Runs {
    pub(super) fn at(&self, run: u32) -> &Run {
        &self.blocks[run as usize / BLOCK][run as usize % BLOCK]
    }

    pub(super) fn at_mut(&mut self, run: u32) -> &mut Run {
        &mut self.blocks[run as usize / BLOCK][run as usize % BLOCK]
    }

    pub(super) fn hold_mut(&mut self, run: u32, worker: WorkerId) -> Option<&mut Hold> {
        self.at_mut(run).hold_mut(worker)
    }

    /// True when `next` is the message after `tip` in the same run.
    pub(super) fn goes_on(&self, tip: Spot, next: u64) -> bool {
        self.at(tip.run).hashes.get(tip.at as usize + 1) == Some(&next)
    }

    /// True when `tip` is the last message of its run.
    pub(super) fn ends_at(&self, tip: Spot) -> bool {
        self.at(tip.run).hashes.len() == tip.at as usize + 1
    }

    /// The number that [`Runs::put`] will give.
    pub(super) fn next(&self) -> u32 {
        let used = self
            .blocks
            .last()
            .map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len());
        self.free.last().copied().unwrap_or(used as u32)
    }

    pub(super) fn put(&mut self, run: Run) {
        if let Some(number) = self.free.pop() {
            *self.at_mut(number) = run;
            return;
        }
        if self.blocks.last().is_none_or(|last| last.len() == BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        if let Some(last) = self.blocks.last_mut() {
            last.push(run);
        }
    }

    /// Takes the messages out that nobody holds, and the run if there is none left: then its first message is given back.
    pub(super) fn trim(&mut self, number: u32) -> Option<u64> {
        let run = self.at_mut(number);
        let held = run.longest_hold();
        if held == 0 {
            let run = std::mem::take(run);
            self.free.push(number);
            return run.hashes.first().copied();
        }
        run.hashes.truncate(held);
        if held < run.hashes.capacity() / 4 {
            run.hashes.shrink_to_fit();
        }
        None
    }

    /// All runs that have messages, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Run)> {
        let all = (0u32..).zip(self.blocks.iter().flatten());
        all.filter(|(_, run)| !run.hashes.is_empty())
    }
}
