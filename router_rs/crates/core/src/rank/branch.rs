//! A stretch of a ranking: leaves of sorted entries, and what is known of each without looking into it.
//!
//! Invariants: `ends`, `weights`, `counts` and `slots` run in parallel, one item a leaf; a leaf has 1 to [`LEAF`] entries.

use super::{Entry, Span};

/// Most entries of one leaf. Twice as many make every update move twice the bytes; half as many make the level above, which
/// should stay in the caches, twice as large.
pub(super) const LEAF: usize = 16;

/// Entries of one leaf, on whole cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Leaf([Entry; LEAF]);

/// The leaves of all branches of a ranking, so that they lie side by side.
#[derive(Debug, Clone, Default)]
pub(super) struct Leaves {
    all: Vec<Leaf>,
    free: Vec<u32>,
}

impl Leaves {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(Leaf([Entry::default(); LEAF]));
            (self.all.len() - 1) as u32
        })
    }

    fn at(&self, slot: u32) -> &[Entry; LEAF] {
        &self.all[slot as usize].0
    }

    fn at_mut(&mut self, slot: u32) -> &mut [Entry; LEAF] {
        &mut self.all[slot as usize].0
    }
}

/// Consecutive leaves.
#[derive(Debug, Clone, Default)]
pub(super) struct Branch {
    /// Last entry of each leaf.
    ends: Vec<Entry>,
    weights: Vec<u64>,
    counts: Vec<u32>,
    slots: Vec<u32>,
}

impl Branch {
    /// A branch of one entry.
    pub(super) fn new(entry: Entry, leaves: &mut Leaves) -> Self {
        let slot = leaves.take();
        leaves.at_mut(slot)[0] = entry;
        Self {
            ends: vec![entry],
            weights: vec![entry.weight],
            counts: vec![1],
            slots: vec![slot],
        }
    }

    /// Number of leaves.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The last entry.
    pub(super) fn end(&self) -> Entry {
        self.ends[self.ends.len() - 1]
    }

    /// The entries of a leaf.
    pub(super) fn entries<'a>(&self, leaf: usize, leaves: &'a Leaves) -> &'a [Entry] {
        &leaves.at(self.slots[leaf])[..self.counts[leaf] as usize]
    }

    /// First leaf whose last entry is not before `entry`.
    pub(super) fn leaf_of(&self, entry: Entry) -> usize {
        self.ends.partition_point(|end| *end < entry)
    }

    /// Count and weight of the leaves before `leaf`.
    pub(super) fn before(&self, leaf: usize) -> Span {
        Span {
            count: self.counts[..leaf]
                .iter()
                .map(|&count| count as usize)
                .sum(),
            weight: self.weights[..leaf].iter().sum(),
        }
    }

    /// Count and weight of all leaves.
    pub(super) fn span(&self) -> Span {
        self.before(self.len())
    }

    /// The entry at `rank` within this branch.
    pub(super) fn select(&self, rank: usize, leaves: &Leaves) -> Option<Entry> {
        let mut left = rank;
        for (leaf, &count) in self.counts.iter().enumerate() {
            if left < count as usize {
                return Some(self.entries(leaf, leaves)[left]);
            }
            left -= count as usize;
        }
        None
    }

    /// True when a leaf has no place for another entry.
    pub(super) fn is_full(&self, leaf: usize) -> bool {
        self.counts[leaf] as usize == LEAF
    }

    /// Puts `entry` at `place` of a leaf that is not full.
    pub(super) fn insert(&mut self, leaf: usize, place: usize, entry: Entry, leaves: &mut Leaves) {
        let entries = leaves.at_mut(self.slots[leaf]);
        let count = self.counts[leaf] as usize;
        entries.copy_within(place..count, place + 1);
        entries[place] = entry;
        self.ends[leaf] = entries[count];
        self.counts[leaf] += 1;
        self.weights[leaf] += entry.weight;
    }

    /// Takes the entry at `place` of a leaf out; the leaf goes with its last entry, or into a neighbour when it became small.
    pub(super) fn remove(&mut self, leaf: usize, place: usize, leaves: &mut Leaves) -> Entry {
        let entries = leaves.at_mut(self.slots[leaf]);
        let count = self.counts[leaf] as usize;
        let taken = entries[place];
        entries.copy_within(place + 1..count, place);
        self.counts[leaf] -= 1;
        self.weights[leaf] -= taken.weight;
        if count == 1 {
            self.drop_leaf(leaf, leaves);
        } else {
            self.ends[leaf] = entries[count - 2];
            if count <= LEAF / 4 {
                self.merge_leaf(leaf, leaves);
            }
        }
        taken
    }

    /// Replaces the entry at `place` of a leaf by `entry` of another weight, if that belongs into the same leaf.
    pub(super) fn shift(
        &mut self,
        leaf: usize,
        place: usize,
        entry: Entry,
        leaves: &mut Leaves,
    ) -> bool {
        let count = self.counts[leaf] as usize;
        let entries = &mut leaves.at_mut(self.slots[leaf])[..count];
        if entry < entries[0] || entry > entries[count - 1] {
            return false;
        }
        let old = entries[place].weight;
        let to = entries.partition_point(|other| *other < entry);
        if to > place {
            entries.copy_within(place + 1..to, place);
            entries[to - 1] = entry;
        } else {
            entries.copy_within(to..place, to + 1);
            entries[to] = entry;
        }
        self.ends[leaf] = entries[count - 1];
        self.weights[leaf] = self.weights[leaf] - old + entry.weight;
        true
    }

    /// Moves the upper half of a leaf into a new one after it.
    pub(super) fn split_leaf(&mut self, leaf: usize, leaves: &mut Leaves) {
        let count = self.counts[leaf] as usize;
        let half = count / 2;
        let slot = leaves.take();
        let entries = *leaves.at(self.slots[leaf]);
        let tail = &entries[half..count];
        leaves.at_mut(slot)[..tail.len()].copy_from_slice(tail);
        let moved: u64 = tail.iter().map(|entry| entry.weight).sum();
        self.slots.insert(leaf + 1, slot);
        self.ends.insert(leaf + 1, self.ends[leaf]);
        self.counts.insert(leaf + 1, tail.len() as u32);
        self.weights.insert(leaf + 1, moved);
        self.ends[leaf] = entries[half - 1];
        self.counts[leaf] = half as u32;
        self.weights[leaf] -= moved;
    }

    /// Puts a small leaf and a neighbour into one, if both leave room there.
    fn merge_leaf(&mut self, leaf: usize, leaves: &mut Leaves) {
        let leaf = if leaf + 1 < self.len() {
            leaf
        } else {
            leaf.saturating_sub(1)
        };
        let Some(&[count, more]) = self
            .counts
            .get(leaf..leaf + 2)
            .and_then(<[u32]>::first_chunk)
        else {
            return;
        };
        let (count, both) = (count as usize, (count + more) as usize);
        if both > LEAF * 3 / 4 {
            return;
        }
        let tail = *leaves.at(self.slots[leaf + 1]);
        leaves.at_mut(self.slots[leaf])[count..both].copy_from_slice(&tail[..both - count]);
        self.ends[leaf] = self.ends[leaf + 1];
        self.counts[leaf] = both as u32;
        self.weights[leaf] += self.weights[leaf + 1];
        self.drop_leaf(leaf + 1, leaves);
    }

    fn drop_leaf(&mut self, leaf: usize, leaves: &mut Leaves) {
        leaves.free.push(self.slots.remove(leaf));
        self.ends.remove(leaf);
        self.counts.remove(leaf);
        self.weights.remove(leaf);
    }

    /// Takes the upper half of the leaves out.
    pub(super) fn split(&mut self) -> Self {
        let half = self.len() / 2;
        Self {
            ends: self.ends.split_off(half),
            weights: self.weights.split_off(half),
            counts: self.counts.split_off(half),
            slots: self.slots.split_off(half),
        }
    }

    /// Takes in the leaves of the next branch.
    pub(super) fn join(&mut self, tail: Self) {
        self.ends.extend(tail.ends);
        self.weights.extend(tail.weights);
        self.counts.extend(tail.counts);
        self.slots.extend(tail.slots);
    }

    /// True when what is kept of every leaf is what is in it.
    #[cfg(test)]
    pub(super) fn is_sound(&self, leaves: &Leaves) -> bool {
        (0..self.len()).all(|leaf| {
            let entries = self.entries(leaf, leaves);
            let weight: u64 = entries.iter().map(|entry| entry.weight).sum();
            entries.last() == Some(&self.ends[leaf]) && weight == self.weights[leaf]
        })
    }
}
