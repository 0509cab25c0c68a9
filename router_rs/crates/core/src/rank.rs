//! Order statistics over weighted ids: heaviest first, with counts and weight sums of any prefix.
//!
//! Two levels instead of a balanced tree: sorted blocks of at most [`BLOCK`] entries, and a Fenwick tree over the
//! blocks' counts and weights. An update moves a few hundred bytes inside one block and touches `log2(n / BLOCK)`
//! sums, which at 100,000 entries is several times faster than chasing the pointers of a tree.
//!
//! Invariants: entries are strictly ascending in ([`Entry`] order); no block is empty; weights are whole tokens, so
//! sums are exact and never drift.

mod entry;

use std::hint::black_box;

pub use entry::{Entry, Span};

/// Most entries in one block; a block that would grow past it is split in halves. Half as many make splits, each of which
/// sums all blocks anew, twice as frequent; twice as many make every update move twice the bytes.
const BLOCK: usize = 128;

/// Ids by weight, heaviest first.
#[derive(Debug, Clone, Default)]
pub struct Ranking {
    blocks: Vec<Vec<Entry>>,
    /// Last entry of each block, kept side by side so that the search for a block stays in few cache lines.
    ends: Vec<Entry>,
    /// Weight of each block, so that a split need not read the entries of all of them.
    weights: Vec<u64>,
    /// Fenwick tree (1-based, slot 0 unused) over the blocks.
    sums: Vec<Span>,
    all: Span,
}

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
        self.blocks.first().map(|block| block[0])
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
        let entry = Entry { weight, id };
        if self.blocks.is_empty() {
            self.blocks.push(vec![entry]);
            self.ends.push(entry);
            self.weights.push(weight);
            self.all = Span { count: 1, weight };
            self.rebuild();
            return true;
        }
        self.insert_into(self.block_of(entry), entry)
    }

    /// Adds an entry where [`Ranking::block_of`] has found that it belongs.
    fn insert_into(&mut self, at: usize, entry: Entry) -> bool {
        let weight = entry.weight;
        let at = at.min(self.blocks.len() - 1);
        let block = &mut self.blocks[at];
        let Err(place) = block.binary_search(&entry) else {
            return false;
        };
        block.insert(place, entry);
        self.ends[at] = block[block.len() - 1];
        self.weights[at] += weight;
        self.all.count += 1;
        self.all.weight += weight;
        if block.len() > BLOCK {
            let tail = block.split_off(BLOCK / 2);
            self.ends[at] = block[block.len() - 1];
            self.ends.insert(at + 1, tail[tail.len() - 1]);
            let moved = weight_of(&tail);
            self.weights[at] -= moved;
            self.weights.insert(at + 1, moved);
            self.blocks.insert(at + 1, tail);
            self.rebuild();
        } else {
            self.add(at, 1, weight);
        }
        true
    }

    /// Takes `id` out; `weight` must be the one it was inserted with. False when there is no such entry.
    pub fn remove(&mut self, id: u64, weight: u64) -> bool {
        let entry = Entry { weight, id };
        self.remove_from(self.block_of(entry), entry)
    }

    fn remove_from(&mut self, at: usize, entry: Entry) -> bool {
        let weight = entry.weight;
        let Some(block) = self.blocks.get_mut(at) else {
            return false;
        };
        let Ok(place) = block.binary_search(&entry) else {
            return false;
        };
        block.remove(place);
        self.weights[at] -= weight;
        self.all.count -= 1;
        self.all.weight -= weight;
        if let Some(&last) = block.last() {
            self.ends[at] = last;
            self.subtract(at, 1, weight);
            self.merge_small(at);
        } else {
            self.blocks.remove(at);
            self.ends.remove(at);
            self.weights.remove(at);
            self.rebuild();
        }
        true
    }

    /// Changes the weight of `id`; false when `(id, old)` is not there.
    pub fn update(&mut self, id: u64, old: u64, new: u64) -> bool {
        if old == new {
            return self.contains(id, old);
        }
        let (old, new) = (Entry { weight: old, id }, Entry { weight: new, id });
        let at = self.block_of(old);
        self.fetch_block(at);
        if self.belongs(at, new) {
            return self.shift(at, old, new);
        }
        if at < self.blocks.len() {
            self.fetch_block(self.block_near(at, new));
        }
        if !self.remove_from(at, old) {
            return false;
        }
        if self.blocks.is_empty() {
            return self.insert(id, new.weight);
        }
        self.insert_into(self.block_near(at, new), new)
    }

    /// Reads a block where a search in it may look first, all at once: one after the other, each would be a wait for a line of
    /// memory.
    fn fetch_block(&self, at: usize) {
        if let Some(block) = self.blocks.get(at) {
            let eighth = block.len() / 8;
            black_box((0..8).fold(0, |sum, i| sum ^ block[i * eighth].weight));
        }
    }

    /// True when block `at` is the one that `entry` lies in or would be put into. Told by the ends of blocks alone, which are in
    /// the caches when the block is not.
    fn belongs(&self, at: usize, entry: Entry) -> bool {
        self.ends.get(at).is_some_and(|end| *end >= entry) && (at == 0 || self.ends[at - 1] < entry)
    }

    /// Changes an entry that stays within its block, as most changes of progress do.
    fn shift(&mut self, at: usize, old: Entry, new: Entry) -> bool {
        let block = &mut self.blocks[at];
        let Ok(from) = block.binary_search(&old) else {
            return false;
        };
        let to = block.partition_point(|other| *other < new);
        if to > from {
            block[from..to].rotate_left(1);
            block[to - 1] = new;
        } else {
            block[to..=from].rotate_right(1);
            block[to] = new;
        }
        self.ends[at] = block[block.len() - 1];
        self.weights[at] = self.weights[at] - old.weight + new.weight;
        self.all.weight = self.all.weight - old.weight + new.weight;
        let mut i = at + 1;
        while i < self.sums.len() {
            self.sums[i].weight = self.sums[i].weight - old.weight + new.weight;
            i += i & i.wrapping_neg();
        }
        true
    }

    /// True when this entry is ranked.
    pub fn contains(&self, id: u64, weight: u64) -> bool {
        let entry = Entry { weight, id };
        self.blocks
            .get(self.block_of(entry))
            .is_some_and(|block| block.binary_search(&entry).is_ok())
    }

    /// Count and weight of all entries that rank before `(id, weight)`, whether or not it is ranked itself.
    pub fn before(&self, id: u64, weight: u64) -> Span {
        let entry = Entry { weight, id };
        let at = self.block_of(entry);
        let mut span = self.prefix(at);
        if let Some(block) = self.blocks.get(at) {
            let place = block.partition_point(|other| *other < entry);
            span.count += place;
            span.weight += weight_of(&block[..place]);
        }
        span
    }

    /// The entry at `rank` (0 is the heaviest).
    pub fn select(&self, rank: usize) -> Option<Entry> {
        if rank >= self.all.count {
            return None;
        }
        let mut at = 0;
        let mut left = rank;
        let mut step = self.blocks.len().next_power_of_two();
        while step > 0 {
            if at + step < self.sums.len() && self.sums[at + step].count <= left {
                at += step;
                left -= self.sums[at].count;
            }
            step /= 2;
        }
        Some(self.blocks[at][left])
    }

    /// All entries, heaviest first.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.blocks.iter().flatten().copied()
    }

    /// First block whose last entry is not before `entry`; the number of blocks when there is none.
    fn block_of(&self, entry: Entry) -> usize {
        self.ends.partition_point(|end| *end < entry)
    }

    /// The same, looked for from block `from` on outwards: a step changes a length by little.
    fn block_near(&self, from: usize, entry: Entry) -> usize {
        let from = from.min(self.ends.len() - 1);
        let mut reach = 1;
        let (low, high) = if self.ends[from] < entry {
            while self.ends.get(from + reach).is_some_and(|end| *end < entry) {
                reach *= 2;
            }
            (from + reach / 2, self.ends.len().min(from + reach))
        } else {
            while from >= reach && self.ends[from - reach] >= entry {
                reach *= 2;
            }
            (from.saturating_sub(reach), from - reach / 2)
        };
        low + self.ends[low..high].partition_point(|end| *end < entry)
    }

    /// Joins a block that became small with its right neighbour, so that removals cannot leave crumbs.
    fn merge_small(&mut self, at: usize) {
        if self.blocks[at].len() >= BLOCK / 8 || at + 1 >= self.blocks.len() {
            return;
        }
        if self.blocks[at].len() + self.blocks[at + 1].len() > BLOCK / 2 {
            return;
        }
        let tail = self.blocks.remove(at + 1);
        self.blocks[at].extend(tail);
        self.ends.remove(at);
        let moved = self.weights.remove(at + 1);
        self.weights[at] += moved;
        self.rebuild();
    }

    fn prefix(&self, blocks: usize) -> Span {
        let mut span = Span::default();
        let mut i = blocks;
        while i > 0 {
            span.count += self.sums[i].count;
            span.weight += self.sums[i].weight;
            i &= i - 1;
        }
        span
    }

    fn add(&mut self, block: usize, count: usize, weight: u64) {
        let mut i = block + 1;
        while i < self.sums.len() {
            self.sums[i].count += count;
            self.sums[i].weight += weight;
            i += i & i.wrapping_neg();
        }
    }

    fn subtract(&mut self, block: usize, count: usize, weight: u64) {
        let mut i = block + 1;
        while i < self.sums.len() {
            self.sums[i].count -= count;
            self.sums[i].weight -= weight;
            i += i & i.wrapping_neg();
        }
    }

    fn rebuild(&mut self) {
        self.sums.clear();
        self.sums.push(Span::default());
        let blocks = self.blocks.iter().zip(&self.weights);
        self.sums.extend(blocks.map(|(block, &weight)| Span {
            count: block.len(),
            weight,
        }));
        for i in 1..self.sums.len() {
            let up = i + (i & i.wrapping_neg());
            if up < self.sums.len() {
                let Span { count, weight } = self.sums[i];
                self.sums[up].count += count;
                self.sums[up].weight += weight;
            }
        }
    }
}

fn weight_of(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.weight).sum()
}

#[cfg(test)]
mod tests;
