//! Which prefixes each worker has seen: an approximate radix tree over chained message hashes.
//!
//! A chained hash names its whole prefix, so the tree needs no edges downwards: a node is found by its hash alone, and
//! a new turn touches only the messages it adds.
//!
//! Invariants: a worker that holds a node holds its parent; only leaves are evicted, least recently used first; a
//! worker's part has at most the given number of nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::WorkerId;
use crate::id_map::IdMap;

#[derive(Debug)]
struct Holder {
    worker: WorkerId,
    used: u64,
    children: u32,
}

/// Most prefixes are seen by one worker: the first holder lies in the node, a list is made only for more.
#[derive(Debug)]
struct Node {
    parent: Option<u64>,
    first: Holder,
    more: Vec<Holder>,
}

impl Node {
    fn holders(&self) -> impl Iterator<Item = &Holder> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn holder_mut(&mut self, worker: WorkerId) -> Option<&mut Holder> {
        std::iter::once(&mut self.first)
            .chain(&mut self.more)
            .find(|holder| holder.worker == worker)
    }

    fn is_held_by(&self, worker: WorkerId) -> bool {
        self.holders().any(|holder| holder.worker == worker)
    }

    /// Takes the worker's hold away; false when that was the last one.
    fn release(&mut self, worker: WorkerId) -> bool {
        if self.first.worker != worker {
            self.more.retain(|holder| holder.worker != worker);
            return true;
        }
        match self.more.pop() {
            Some(holder) => {
                self.first = holder;
                true
            }
            None => false,
        }
    }
}

#[derive(Debug, Default)]
struct Part {
    life: u64,
    nodes: usize,
    /// Leaves by last use.
    leaves: BTreeSet<(u64, u64)>,
}

/// The deepest known prefix of a chain.
#[derive(Debug, PartialEq, Eq)]
pub struct Deepest {
    /// Messages of the chain that it covers.
    pub matched: usize,
    /// Workers that have seen it, ascending.
    pub holders: Vec<WorkerId>,
}

/// The index.
#[derive(Debug, Default)]
pub struct PrefixIndex {
    nodes: IdMap<u64, Node>,
    parts: BTreeMap<WorkerId, Part>,
    clock: u64,
}

impl PrefixIndex {
    /// The deepest prefix of `chain` that a worker has seen for which `usable(worker, life)` holds.
    pub fn deepest(
        &self,
        chain: &[u64],
        usable: impl Fn(WorkerId, u64) -> bool,
    ) -> Option<Deepest> {
        for (i, hash) in chain.iter().enumerate().rev() {
            let Some(node) = self.nodes.get(*hash) else {
                continue;
            };
            let mut holders: Vec<WorkerId> = node
                .holders()
                .map(|holder| holder.worker)
                .filter(|id| {
                    self.parts
                        .get(id)
                        .is_some_and(|part| usable(*id, part.life))
                })
                .collect();
            if !holders.is_empty() {
                holders.sort_unstable();
                return Some(Deepest {
                    matched: i + 1,
                    holders,
                });
            }
        }
        None
    }

    /// Nodes that this life of the worker has seen.
    pub fn size(&self, worker: WorkerId, life: u64) -> usize {
        self.parts
            .get(&worker)
            .filter(|part| part.life == life)
            .map_or(0, |part| part.nodes)
    }

    /// The worker gets a prompt with this chain; keeps at most `most` nodes for it.
    pub fn insert(&mut self, worker: WorkerId, life: u64, chain: &[u64], most: usize) {
        if self
            .parts
            .get(&worker)
            .is_some_and(|part| part.life != life)
        {
            self.remove_worker(worker);
        }
        let part = self.parts.entry(worker).or_insert_with(|| Part {
            life,
            ..Part::default()
        });
        let held = |nodes: &IdMap<u64, Node>, hash: u64| {
            nodes.get(hash).is_some_and(|node| node.is_held_by(worker))
        };
        let known = chain
            .iter()
            .rposition(|&hash| held(&self.nodes, hash))
            .map_or(0, |i| i + 1);
        self.clock += 1;
        let mut tip = known.checked_sub(1).map(|i| chain[i]);
        if let Some(hash) = tip
            && let Some(holder) = holder_mut(&mut self.nodes, hash, worker)
        {
            part.leaves.remove(&(holder.used, hash));
            holder.used = self.clock;
        }
        for &hash in &chain[known..] {
            let holder = Holder {
                worker,
                used: self.clock,
                children: 0,
            };
            // A hash that stands elsewhere in the tree is no chained hash of this prefix: a collision, or a caller's
            // fault. The rest of the chain is not taken in.
            if held(&self.nodes, hash) {
                break;
            }
            match self.nodes.get_mut(hash) {
                Some(node) if node.parent == tip => node.more.push(holder),
                Some(_) => break,
                None => {
                    self.nodes.insert(
                        hash,
                        Node {
                            parent: tip,
                            first: holder,
                            more: Vec::new(),
                        },
                    );
                }
            }
            if let Some(parent) = tip.and_then(|tip| holder_mut(&mut self.nodes, tip, worker)) {
                parent.children += 1;
            }
            part.nodes += 1;
            tip = Some(hash);
        }
        if let Some(hash) = tip
            && holder_mut(&mut self.nodes, hash, worker).is_some_and(|holder| holder.children == 0)
        {
            part.leaves.insert((self.clock, hash));
        }
        while part.nodes > most
            && let Some((_, leaf)) = part.leaves.pop_first()
        {
            evict(&mut self.nodes, part, worker, leaf);
        }
    }

    /// Forgets what the worker has seen.
    pub fn remove_worker(&mut self, worker: WorkerId) {
        if let Some(mut part) = self.parts.remove(&worker) {
            while let Some((_, leaf)) = part.leaves.pop_first() {
                evict(&mut self.nodes, &mut part, worker, leaf);
            }
        }
    }

    /// Nodes over all workers.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// What does not hold of the index; empty when all is well.
    pub fn audit(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut counted: BTreeMap<WorkerId, (usize, usize)> = BTreeMap::new();
        for hash in self.nodes.sorted_ids() {
            let Some(node) = self.nodes.get(hash) else {
                continue;
            };
            for holder in node.holders() {
                let (nodes, leaves) = counted.entry(holder.worker).or_default();
                *nodes += 1;
                *leaves += usize::from(holder.children == 0);
                if let Some(parent) = node.parent
                    && !self
                        .nodes
                        .get(parent)
                        .is_some_and(|p| p.is_held_by(holder.worker))
                {
                    faults.push(format!(
                        "worker {} holds prefix {hash} without its parent",
                        holder.worker
                    ));
                }
            }
        }
        for (id, part) in &self.parts {
            let (nodes, leaves) = counted.get(id).copied().unwrap_or_default();
            if (nodes, leaves) != (part.nodes, part.leaves.len()) {
                faults.push(format!(
                    "worker {id}: {} prefixes counted, {nodes} held",
                    part.nodes
                ));
            }
        }
        faults
    }
}

fn holder_mut(nodes: &mut IdMap<u64, Node>, hash: u64, worker: WorkerId) -> Option<&mut Holder> {
    nodes.get_mut(hash)?.holder_mut(worker)
}

/// Takes `leaf` from the worker; its parent may become a leaf.
fn evict(nodes: &mut IdMap<u64, Node>, part: &mut Part, worker: WorkerId, leaf: u64) {
    let Some(node) = nodes.get_mut(leaf) else {
        return;
    };
    let still_held = node.release(worker);
    let parent = node.parent;
    part.nodes -= 1;
    if !still_held {
        nodes.remove(leaf);
    }
    let Some(parent) = parent else { return };
    if let Some(holder) = holder_mut(nodes, parent, worker) {
        holder.children -= 1;
        if holder.children == 0 {
            part.leaves.insert((holder.used, parent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_worker(_: WorkerId, _: u64) -> bool {
        true
    }

    #[test]
    fn the_deepest_prefix_names_all_its_holders() {
        let mut index = PrefixIndex::default();
        index.insert(2, 1, &[10, 11, 12], 100);
        index.insert(1, 1, &[10, 11, 13], 100);
        let found = index.deepest(&[10, 11, 14, 15], any_worker).unwrap();
        assert_eq!(
            found,
            Deepest {
                matched: 2,
                holders: vec![1, 2]
            }
        );
        assert_eq!(
            index.deepest(&[10, 11, 12], any_worker).unwrap().holders,
            [2]
        );
        assert_eq!(index.deepest(&[99], any_worker), None);
        assert_eq!(index.nodes(), 4);
    }

    #[test]
    fn a_new_life_of_a_worker_has_seen_nothing() {
        let mut index = PrefixIndex::default();
        index.insert(1, 1, &[10, 11], 100);
        index.insert(1, 2, &[20], 100);
        assert_eq!((index.size(1, 1), index.size(1, 2)), (0, 1));
        assert_eq!(index.deepest(&[10, 11], any_worker), None);
    }

    /// Chains as chained hashes make them: the hash of a position stands for all before it.
    fn chain(messages: &[u8]) -> Vec<u64> {
        let mut hash = 7u64;
        messages
            .iter()
            .map(|&message| {
                hash = hash
                    .wrapping_mul(0x0100_0000_01B3)
                    .wrapping_add(u64::from(message) + 1);
                hash
            })
            .collect()
    }

    proptest! {
        #[test]
        fn any_sequence_of_prompts_keeps_the_bound_and_the_tree(
            prompts in prop::collection::vec((0..3u64, 1..3u64, prop::collection::vec(0..3u8, 0..8)), 0..120),
        ) {
            let mut index = PrefixIndex::default();
            for (worker, life, messages) in prompts {
                let chain = chain(&messages);
                index.insert(worker, life, &chain, 10);
                prop_assert!(index.size(worker, life) <= 10);
                prop_assert_eq!(index.audit(), Vec::<String>::new());
                if let Some(found) = index.deepest(&chain, any_worker) {
                    prop_assert_eq!(found.matched, chain.len());
                    prop_assert!(found.holders.contains(&worker));
                } else {
                    prop_assert!(chain.is_empty());
                }
            }
        }

        #[test]
        fn chains_that_are_no_chains_do_no_harm(
            prompts in prop::collection::vec((0..2u64, prop::collection::vec(0..6u64, 0..8)), 0..80),
        ) {
            let mut index = PrefixIndex::default();
            for (worker, chain) in prompts {
                index.insert(worker, 1, &chain, 4);
                prop_assert!(index.size(worker, 1) <= 4);
                prop_assert_eq!(index.audit(), Vec::<String>::new());
            }
        }
    }
}
