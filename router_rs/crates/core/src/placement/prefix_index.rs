//! Which prefixes each worker has seen: an approximate radix tree over chained message hashes.
//!
//! A chained hash names its whole prefix, so the tree needs no edges downwards: a node is found by its hash alone, and
//! a new turn touches only the messages it adds.
//!
//! There are millions of nodes, and nobody waits while they are all put into a larger table: they lie in many small
//! ones, each of which grows by itself.
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

/// Most prefixes are seen by one worker: the first holder lies in the node, and only further ones in memory of their own.
#[derive(Debug)]
struct Node {
    parent: Option<u64>,
    first: Holder,
    more: Box<[Holder]>,
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

    fn add(&mut self, holder: Holder) {
        let mut more = std::mem::take(&mut self.more).into_vec();
        more.reserve_exact(1);
        more.push(holder);
        self.more = more.into_boxed_slice();
    }

    /// Takes the worker's hold away; false when that was the last one.
    fn release(&mut self, worker: WorkerId) -> bool {
        let mut more = std::mem::take(&mut self.more).into_vec();
        let still_held = if self.first.worker != worker {
            more.retain(|holder| holder.worker != worker);
            true
        } else if let Some(holder) = more.pop() {
            self.first = holder;
            true
        } else {
            false
        };
        self.more = more.into_boxed_slice();
        still_held
    }
}

/// Tables that the nodes are divided among; with four million nodes, each has a few thousand.
const TABLES: usize = 1 << TABLES_LOG2;
const TABLES_LOG2: u32 = 10;

/// All nodes by their hash; no table is made before the first node.
#[derive(Debug, Default)]
struct Nodes(Vec<IdMap<u64, Node>>);

impl Nodes {
    /// Another multiplier than the tables' own, so that what lies in one table differs in all bits there.
    fn table_of(hash: u64) -> usize {
        (hash.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> (u64::BITS - TABLES_LOG2)) as usize
    }

    fn get(&self, hash: u64) -> Option<&Node> {
        self.0.get(Self::table_of(hash))?.get(hash)
    }

    fn get_mut(&mut self, hash: u64) -> Option<&mut Node> {
        self.0.get_mut(Self::table_of(hash))?.get_mut(hash)
    }

    fn insert(&mut self, hash: u64, node: Node) {
        if self.0.is_empty() {
            self.0.resize_with(TABLES, IdMap::default);
        }
        self.0[Self::table_of(hash)].insert(hash, node);
    }

    fn remove(&mut self, hash: u64) {
        if let Some(table) = self.0.get_mut(Self::table_of(hash)) {
            table.remove(hash);
        }
    }

    fn len(&self) -> usize {
        self.0.iter().map(IdMap::len).sum()
    }

    fn sorted_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.0.iter().flat_map(IdMap::sorted_ids).collect();
        ids.sort_unstable();
        ids
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
    nodes: Nodes,
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
        let held =
            |nodes: &Nodes, hash: u64| nodes.get(hash).is_some_and(|node| node.is_held_by(worker));
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
        let first_new = chain.get(known).copied();
        let mut added = 0;
        for &hash in &chain[known..] {
            // Its child is the next of the chain; the last one's is taken back below.
            let holder = Holder {
                worker,
                used: self.clock,
                children: 1,
            };
            match self.nodes.get_mut(hash) {
                // A hash that stands elsewhere in the tree is no chained hash of this prefix: a collision, or a caller's
                // fault. The rest of the chain is not taken in.
                Some(node) if node.parent != tip || node.is_held_by(worker) => break,
                Some(node) => node.add(holder),
                None => self.nodes.insert(
                    hash,
                    Node {
                        parent: tip,
                        first: holder,
                        more: Box::default(),
                    },
                ),
            }
            if Some(hash) == first_new
                && let Some(parent) = tip.and_then(|tip| holder_mut(&mut self.nodes, tip, worker))
            {
                parent.children += 1;
            }
            added += 1;
            tip = Some(hash);
        }
        part.nodes += added;
        if let Some(hash) = tip
            && let Some(holder) = holder_mut(&mut self.nodes, hash, worker)
        {
            holder.children -= u32::from(added > 0);
            if holder.children == 0 {
                part.leaves.insert((self.clock, hash));
            }
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

fn holder_mut(nodes: &mut Nodes, hash: u64, worker: WorkerId) -> Option<&mut Holder> {
    nodes.get_mut(hash)?.holder_mut(worker)
}

/// Takes `leaf` from the worker; its parent may become a leaf.
fn evict(nodes: &mut Nodes, part: &mut Part, worker: WorkerId, leaf: u64) {
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
mod tests;
