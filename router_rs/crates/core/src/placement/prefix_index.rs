//! Which prefixes each worker has seen: an approximate radix tree over chained message hashes.
//!
//! A chained hash names its whole prefix, so a message is found by its hash alone, and a new turn touches only the messages
//! it adds. Messages that follow each other lie side by side in a run, and what a worker has seen of a run is a length: a
//! whole conversation comes to another worker, or goes from one, in a few lines of memory instead of a node for every message
//! of it.
//!
//! Invariants: a worker that holds a message holds all before it; only leaves are evicted, least recently used first; a
//! worker's part has at most the given number of messages; a message is known as long as some worker holds it.

mod audit;
mod run;
mod table;
mod tree;

use std::collections::BTreeMap;

use crate::WorkerId;
use run::Spot;
use tree::Tree;

/// What one worker has seen.
#[derive(Debug, Default)]
struct Part {
    life: u64,
    messages: usize,
    /// Leaves by last use. No two have the same: what is used at once lies on one path.
    leaves: BTreeMap<u64, Spot>,
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
    tree: Tree,
    parts: BTreeMap<WorkerId, Part>,
    /// Counts prompts: the time of a use.
    clock: u64,
}

impl PrefixIndex {
    /// The deepest prefix of `chain` that a worker has seen for which `usable(worker, life)` holds.
    pub fn deepest(
        &self,
        chain: &[u64],
        usable: impl Fn(WorkerId, u64) -> bool,
    ) -> Option<Deepest> {
        let seen = |id: &WorkerId| {
            self.parts
                .get(id)
                .is_some_and(|part| usable(*id, part.life))
        };
        for (i, &hash) in chain.iter().enumerate().rev() {
            let Some(spot) = self.tree.find(hash) else {
                continue;
            };
            let holders: Vec<WorkerId> = self.tree.holders_of(spot).filter(seen).collect();
            if !holders.is_empty() {
                return Some(Deepest {
                    matched: i + 1,
                    holders,
                });
            }
        }
        None
    }

    /// Messages that these lives of workers have seen, for workers in ascending order.
    pub fn sizes(
        &self,
        workers: impl Iterator<Item = (WorkerId, u64)>,
    ) -> impl Iterator<Item = usize> {
        let mut parts = self.parts.iter().peekable();
        workers.map(move |(worker, life)| {
            while parts.next_if(|&(&id, _)| id < worker).is_some() {}
            let part = parts.peek().filter(|&&(&id, _)| id == worker);
            part.map_or(0, |(_, part)| part.size(life))
        })
    }

    /// The worker gets a prompt with this chain; keeps at most `most` messages for it.
    pub fn insert(&mut self, worker: WorkerId, life: u64, chain: &[u64], most: usize) {
        let known = self.parts.get(&worker).map(|part| part.life);
        if known.is_some_and(|known| known != life) {
            self.remove_worker(worker);
        }
        let part = self.parts.entry(worker).or_insert_with(|| Part {
            life,
            ..Part::default()
        });
        self.clock += 1;
        let (known, tip) = self.tree.tip(worker, chain);
        if let Some(was_leaf_since) = tip.and_then(|tip| self.tree.touch(worker, tip, self.clock)) {
            part.leaves.remove(&was_leaf_since);
        }
        let (added, tip) = self.tree.extend(worker, tip, &chain[known..], self.clock);
        part.messages += added;
        if let Some(tip) = tip
            && self.tree.leaf_since(worker, tip).is_some()
        {
            part.leaves.insert(self.clock, tip);
        }
        part.shrink(&mut self.tree, worker, most);
    }

    /// Forgets what the worker has seen.
    pub fn remove_worker(&mut self, worker: WorkerId) {
        if let Some(mut part) = self.parts.remove(&worker) {
            part.shrink(&mut self.tree, worker, 0);
        }
    }

    /// Messages over all workers.
    pub fn messages(&self) -> usize {
        self.tree.messages()
    }
}

impl Part {
    fn size(&self, life: u64) -> usize {
        if self.life == life { self.messages } else { 0 }
    }

    /// Takes the least recently used leaves from the worker until it holds at most `most` messages.
    fn shrink(&mut self, tree: &mut Tree, worker: WorkerId, most: usize) {
        while self.messages > most
            && let Some((_, leaf)) = self.leaves.pop_first()
        {
            let (taken, bare) = tree.evict(worker, leaf, self.messages - most);
            self.messages -= taken;
            if let Some((since, bare)) = bare {
                self.leaves.insert(since, bare);
            }
        }
    }
}

#[cfg(test)]
mod tests;
