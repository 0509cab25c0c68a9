//! Order statistics over weighted ids: heaviest first, with counts and weight sums of any prefix.
//!
//! A tree of three wide levels: leaves of at most 16 sorted entries, branches of at most [`FAN`] leaves, and one list
//! of branches. What an update costs is memory that is not in the caches, not comparisons: the upper levels are small and
//! stay there, a leaf is a few lines side by side. Splits and merges touch one branch, so none of them sums everything anew.
//!
//! Invariants: entries are strictly ascending in ([`Entry`] order); no leaf and no branch is empty; weights are whole
//! tokens, so sums are exact and never drift.

mod branch;
mod entry;

pub use entry::{Entry, Span};

use branch::{Branch, Leaves};

/// Most leaves of one branch; a branch that would grow past it is split in halves.
const FAN: usize = 64;

/// Ids by weight, heaviest first.
#[derive(Debug, Clone, Default)]
pub struct Ranking {
    branches: Vec<Branch>,
    /// Last entry of each branch, kept side by side so that the search for a branch stays in few cache lines.
    ends: Vec<Entry>,
    /// Count and weight of each branch.
    spans: Vec<Span>,
    leaves: Leaves,
    all: Span,
}

/// Where an entry is, or belongs: branch, and leaf in it.
type Seat = (usize, usize);

impl Ranking {
    /// An empty ranking.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.all.count
    }

    /// True when nothing is ranked.
    pub fn is_empty(&self) -> bool {
        self.all.count == 0
    }

    /// Sum of all weights.
    pub fn total_weight(&self) -> u64 {
        self.all.weight
    }

    /// The heaviest entry.
    pub fn first(&self) -> Option<Entry> {
        let first = self.branches.first()?;
        Some(first.entries(0, &self.leaves)[0])
    }

    /// The heaviest entry other than `id`.
    pub fn first_except(&self, id: u64) -> Option<Entry> {
        let first = self.first()?;
        if first.id == id {
            self.select(1)
        } else {
            Some(first)
        }
    }

    /// Adds `id`. False, and no change, when the same entry is there already.
    pub fn insert(&mut self, id: u64, weight: u64) -> bool {
        self.add(Entry { weight, id })
    }

    fn add(&mut self, entry: Entry) -> bool {
        if self.branches.is_empty() {
            self.branches.push(Branch::new(entry, &mut self.leaves));
            self.ends.push(entry);
            self.spans.push(Span::default());
            self.note(0, |span| span.grow(entry.weight));
            return true;
        }
        let (at, leaf) = self.seat_near(entry);
        let branch = &mut self.branches[at];
        let Err(place) = branch.entries(leaf, &self.leaves).binary_search(&entry) else {
            return false;
        };
        if branch.is_full(leaf) {
            branch.split_leaf(leaf, &mut self.leaves);
            if branch.len() > FAN {
                self.split(at);
            }
            return self.add(entry);
        }
        branch.insert(leaf, place, entry, &mut self.leaves);
        self.ends[at] = branch.end();
        self.note(at, |span| span.grow(entry.weight));
        true
    }

    /// Takes `id` out; `weight` must be the one it was inserted with. False when there is no such entry.
    pub fn remove(&mut self, id: u64, weight: u64) -> bool {
        let entry = Entry { weight, id };
        match self.find(entry) {
            Some((seat, place)) => {
                self.take(seat, place);
                true
            }
            None => false,
        }
    }

    fn take(&mut self, (at, leaf): Seat, place: usize) {
        let branch = &mut self.branches[at];
        let taken = branch.remove(leaf, place, &mut self.leaves);
        self.note(at, |span| span.shrink(taken.weight));
        let branch = &self.branches[at];
        if branch.len() == 0 {
            self.branches.remove(at);
            self.ends.remove(at);
            self.spans.remove(at);
            return;
        }
        self.ends[at] = branch.end();
        if branch.len() < FAN / 4 {
            self.merge(at);
        }
    }

    /// Changes the weight of `id`; false when `(id, old)` is not there.
    pub fn update(&mut self, id: u64, old: u64, new: u64) -> bool {
        let Some(((at, leaf), place)) = self.find(Entry { weight: old, id }) else {
            return false;
        };
        let entry = Entry { weight: new, id };
        // Most changes of progress are small enough for the entry to stay among its neighbours.
        if self.branches[at].shift(leaf, place, entry, &mut self.leaves) {
            self.ends[at] = self.branches[at].end();
            self.note(at, |span| span.weight = span.weight - old + new);
            return true;
        }
        self.take((at, leaf), place);
        self.add(entry)
    }

    /// True when this entry is ranked.
    pub fn contains(&self, id: u64, weight: u64) -> bool {
        self.find(Entry { weight, id }).is_some()
    }

    /// Count and weight of all entries that rank before `(id, weight)`, whether or not it is ranked itself.
    pub fn before(&self, id: u64, weight: u64) -> Span {
        let entry = Entry { weight, id };
        let (at, leaf) = self.seat(entry);
        let Some(branch) = self.branches.get(at) else {
            return self.all;
        };
        let entries = branch.entries(leaf, &self.leaves);
        let place = entries.partition_point(|other| *other < entry);
        let branches = self.spans[..at].iter().copied().sum::<Span>();
        let within = entries[..place].iter().map(Span::from).sum::<Span>();
        [branches, branch.before(leaf), within].into_iter().sum()
    }

    /// The entry at `rank` (0 is the heaviest).
    pub fn select(&self, rank: usize) -> Option<Entry> {
        let mut left = rank;
        for (branch, span) in self.branches.iter().zip(&self.spans) {
            if left < span.count {
                return branch.select(left, &self.leaves);
            }
            left -= span.count;
        }
        None
    }

    /// All entries, heaviest first.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let leaves = &self.leaves;
        self.branches
            .iter()
            .flat_map(move |branch| (0..branch.len()).map(move |leaf| branch.entries(leaf, leaves)))
            .flatten()
            .copied()
    }

    /// First branch, and leaf in it, whose last entry is not before `entry`; no branch when there is none.
    fn seat(&self, entry: Entry) -> Seat {
        let at = self.ends.partition_point(|end| *end < entry);
        let leaf = self
            .branches
            .get(at)
            .map_or(0, |branch| branch.leaf_of(entry));
        (at, leaf)
    }

    /// The same, or the last leaf of all.
    fn seat_near(&self, entry: Entry) -> Seat {
        let (at, leaf) = self.seat(entry);
        if at < self.branches.len() {
            return (at, leaf);
        }
        let last = self.branches.len() - 1;
        (last, self.branches[last].len() - 1)
    }

    fn find(&self, entry: Entry) -> Option<(Seat, usize)> {
        let (at, leaf) = self.seat(entry);
        let entries = self.branches.get(at)?.entries(leaf, &self.leaves);
        let place = entries.binary_search(&entry).ok()?;
        Some(((at, leaf), place))
    }

    /// Changes what is counted of a branch, and of all.
    fn note(&mut self, at: usize, change: impl Fn(&mut Span)) {
        change(&mut self.spans[at]);
        change(&mut self.all);
    }

    fn split(&mut self, at: usize) {
        let tail = self.branches[at].split();
        let span = tail.span();
        self.spans[at].count -= span.count;
        self.spans[at].weight -= span.weight;
        self.ends[at] = self.branches[at].end();
        self.spans.insert(at + 1, span);
        self.ends.insert(at + 1, tail.end());
        self.branches.insert(at + 1, tail);
    }

    /// Joins a branch that became small with a neighbour, so that removals cannot leave crumbs.
    fn merge(&mut self, at: usize) {
        let at = if at + 1 < self.branches.len() {
            at
        } else {
            at.saturating_sub(1)
        };
        let both = self
            .branches
            .get(at..at + 2)
            .map(|two| two[0].len() + two[1].len());
        if both.is_none_or(|both| both > FAN / 2) {
            return;
        }
        let tail = self.branches.remove(at + 1);
        self.branches[at].join(tail);
        self.ends.remove(at);
        let moved = self.spans.remove(at + 1);
        self.spans[at].count += moved.count;
        self.spans[at].weight += moved.weight;
    }
}

#[cfg(test)]
mod tests;
