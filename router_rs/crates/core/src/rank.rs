//! Order statistics over weighted ids: heaviest first, with counts and weight sums of any prefix.
//!
//! Two levels instead of a balanced tree: sorted blocks of at most [`BLOCK`] entries, and a Fenwick tree over the
//! blocks' counts and weights. An update moves a few hundred bytes inside one block and touches `log2(n / BLOCK)`
//! sums, which at 100,000 entries is several times faster than chasing the pointers of a tree.
//!
//! Invariants: entries are strictly ascending in ([`Entry`] order); no block is empty; weights are whole tokens, so
//! sums are exact and never drift.

use std::cmp::Ordering;

/// Most entries in one block; a block that would grow past it is split in halves. Half as many make splits, each of which
/// sums all blocks anew, twice as frequent; twice as many make every update move twice the bytes.
const BLOCK: usize = 128;

/// One ranked id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Predicted remaining tokens.
    pub weight: u64,
    /// Trajectory.
    pub id: u64,
}

impl Ord for Entry {
    /// Heavier first; ties by the smaller id.
    fn cmp(&self, other: &Self) -> Ordering {
        other.weight.cmp(&self.weight).then(self.id.cmp(&other.id))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
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

/// Ids by weight, heaviest first.
#[derive(Debug, Clone, Default)]
pub struct Ranking {
    blocks: Vec<Vec<Entry>>,
    /// Last entry of each block, kept side by side so that the search for a block stays in few cache lines.
    ends: Vec<Entry>,
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
            self.all = Span { count: 1, weight };
            self.rebuild();
            return true;
        }
        let at = self.block_of(entry).min(self.blocks.len() - 1);
        let block = &mut self.blocks[at];
        let Err(place) = block.binary_search(&entry) else {
            return false;
        };
        block.insert(place, entry);
        self.ends[at] = block[block.len() - 1];
        self.all.count += 1;
        self.all.weight += weight;
        if block.len() > BLOCK {
            let tail = block.split_off(BLOCK / 2);
            self.ends[at] = block[block.len() - 1];
            self.ends.insert(at + 1, tail[tail.len() - 1]);
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
        let at = self.block_of(entry);
        let Some(block) = self.blocks.get_mut(at) else {
            return false;
        };
        let Ok(place) = block.binary_search(&entry) else {
            return false;
        };
        block.remove(place);
        self.all.count -= 1;
        self.all.weight -= weight;
        if let Some(&last) = block.last() {
            self.ends[at] = last;
            self.subtract(at, 1, weight);
            self.merge_small(at);
        } else {
            self.blocks.remove(at);
            self.ends.remove(at);
            self.rebuild();
        }
        true
    }

    /// Changes the weight of `id`; false when `(id, old)` is not there.
    pub fn update(&mut self, id: u64, old: u64, new: u64) -> bool {
        if old == new {
            return self.contains(id, old);
        }
        self.shift(Entry { weight: old, id }, Entry { weight: new, id })
            .unwrap_or_else(|| self.remove(id, old) && self.insert(id, new))
    }

    /// Changes an entry that stays within its block, as most changes of progress do; `None` when it would leave it.
    fn shift(&mut self, old: Entry, new: Entry) -> Option<bool> {
        let at = self.block_of(old);
        let block = self.blocks.get_mut(at)?;
        if new < block[0] || new > block[block.len() - 1] {
            return None;
        }
        let Ok(from) = block.binary_search(&old) else {
            return Some(false);
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
        self.all.weight = self.all.weight - old.weight + new.weight;
        let mut i = at + 1;
        while i < self.sums.len() {
            self.sums[i].weight = self.sums[i].weight - old.weight + new.weight;
            i += i & i.wrapping_neg();
        }
        Some(true)
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
            span.weight += block[..place].iter().map(|e| e.weight).sum::<u64>();
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
        self.sums.extend(self.blocks.iter().map(|b| Span {
            count: b.len(),
            weight: b.iter().map(|e| e.weight).sum(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        Insert(u64, u64),
        RemoveNth(usize),
        Reweigh(usize, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..2000u64, 1..50u64).prop_map(|(id, w)| Op::Insert(id, w)),
            3 => any::<usize>().prop_map(Op::RemoveNth),
            3 => (any::<usize>(), 1..50u64).prop_map(|(n, w)| Op::Reweigh(n, w)),
        ]
    }

    fn check(ranking: &Ranking, model: &[Entry]) {
        assert_eq!(ranking.iter().collect::<Vec<_>>(), model);
        assert_eq!(ranking.len(), model.len());
        assert_eq!(
            ranking.total_weight(),
            model.iter().map(|e| e.weight).sum::<u64>()
        );
        assert!(
            ranking
                .blocks
                .iter()
                .all(|b| !b.is_empty() && b.len() <= BLOCK)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn agrees_with_a_sorted_vec(ops in prop::collection::vec(op(), 0..1500)) {
            let mut ranking = Ranking::new();
            let mut model: Vec<Entry> = Vec::new();
            for op in ops {
                match op {
                    Op::Insert(id, weight) => {
                        let entry = Entry { weight, id };
                        let found = model.binary_search(&entry);
                        prop_assert_eq!(ranking.insert(id, weight), found.is_err());
                        if let Err(at) = found {
                            model.insert(at, entry);
                        }
                    }
                    Op::RemoveNth(n) if !model.is_empty() => {
                        let entry = model.remove(n % model.len());
                        prop_assert!(ranking.remove(entry.id, entry.weight));
                        prop_assert!(!ranking.remove(entry.id, entry.weight));
                    }
                    Op::Reweigh(n, weight) if !model.is_empty() => {
                        let entry = model.remove(n % model.len());
                        let new = Entry { weight, id: entry.id };
                        if let Err(at) = model.binary_search(&new) {
                            model.insert(at, new);
                            prop_assert!(ranking.update(entry.id, entry.weight, weight));
                        } else {
                            prop_assert!(ranking.remove(entry.id, entry.weight));
                        }
                    }
                    _ => {}
                }
            }
            check(&ranking, &model);
            for (rank, entry) in model.iter().enumerate() {
                prop_assert_eq!(ranking.select(rank), Some(*entry));
                let weight = model[..rank].iter().map(|e| e.weight).sum();
                prop_assert_eq!(ranking.before(entry.id, entry.weight), Span { count: rank, weight });
                prop_assert!(ranking.contains(entry.id, entry.weight));
            }
            prop_assert_eq!(ranking.select(model.len()), None);
        }
    }

    #[test]
    fn blocks_split_and_merge_as_entries_come_and_go() {
        let mut ranking = Ranking::new();
        for id in 0..5000u64 {
            assert!(ranking.insert(id, id % 7 + 1));
        }
        assert!(ranking.blocks.len() > 10);
        for id in 0..4990u64 {
            assert!(ranking.remove(id, id % 7 + 1));
        }
        assert!(
            ranking.blocks.len() <= 4,
            "{} blocks for 10 entries",
            ranking.blocks.len()
        );
        assert_eq!(ranking.len(), 10);
        assert_eq!(
            ranking.first_except(ranking.first().unwrap().id),
            ranking.select(1)
        );
    }
}
