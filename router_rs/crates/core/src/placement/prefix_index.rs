//! Which prefixes each worker has seen: an approximate radix tree over chained message hashes.
//!
//! A chained hash names its whole prefix. Messages that follow each other lie side by side in a run, and what a worker has
//! seen of a run is a length: a whole conversation comes to another worker, or goes from one, in a few lines of memory instead
//! of a node for every message of it. Only the first message of a run is found by its hash; where two chains agree in a later
//! one they agree in all before it, so how far a chain goes along a run takes a look or a few at the run, mostly at its end.
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

/// What is known, or held by a worker, of a chain. Valid until the index changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// Messages of the chain.
    covered: usize,
    /// The last of them.
    tip: Option<Spot>,
}

impl Known {
    /// Of the part that lies in the tip's run no more than its first messages, so many of the run.
    fn up_to(self, held: u32) -> Self {
        let Some(tip) = self.tip.filter(|tip| tip.at >= held) else {
            return self;
        };
        Self {
            covered: self.covered - (tip.at + 1 - held) as usize,
            tip: Some(Spot {
                at: held - 1,
                ..tip
            }),
        }
    }

    /// The part that lies before the run of `tip`, which follows `parent`.
    fn before(self, tip: Spot, parent: Option<Spot>) -> Self {
        Self {
            covered: self.covered - (tip.at as usize + 1),
            tip: parent,
        }
    }
}

/// The deepest prefix of a chain that a usable worker has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deepest {
    /// Messages of the chain that it covers.
    pub matched: usize,
    tip: Spot,
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
    /// What workers have seen of `chain`, for the calls below.
    pub fn known(&self, chain: &[u64]) -> Known {
        self.tree.known(chain)
    }

    /// The deepest part of what is known that a worker has seen for which `usable(worker, life)` holds.
    pub fn deepest(
        &self,
        mut known: Known,
        usable: impl Fn(WorkerId, u64) -> bool,
    ) -> Option<Deepest> {
        while let Some(tip) = known.tip {
            let run = self.tree.runs.at(tip.run);
            let seen = run.holds().iter();
            let seen = seen.filter(|hold| self.is_usable(hold.worker, &usable));
            if let Some(held) = seen.map(|hold| hold.held).max() {
                let Known { covered, tip } = known.up_to(held);
                let matched = covered;
                return tip.map(|tip| Deepest { matched, tip });
            }
            known = known.before(tip, run.parent);
        }
        None
    }

    /// Workers that have seen it and are usable, ascending.
    pub fn holders(
        &self,
        deepest: Deepest,
        usable: impl Fn(WorkerId, u64) -> bool,
    ) -> impl Iterator<Item = WorkerId> {
        let holds = self.tree.runs.at(deepest.tip.run).holds().iter();
        let holds = holds.filter(move |hold| hold.held > deepest.tip.at);
        let workers = holds.map(|hold| hold.worker);
        workers.filter(move |&worker| self.is_usable(worker, &usable))
    }

    fn is_usable(&self, worker: WorkerId, usable: impl Fn(WorkerId, u64) -> bool) -> bool {
        let part = self.parts.get(&worker);
        part.is_some_and(|part| usable(worker, part.life))
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

    /// The worker gets a prompt with this chain, of which so much is known; keeps at most `most` messages for it.
    pub fn insert(
        &mut self,
        worker: WorkerId,
        life: u64,
        chain: &[u64],
        mut known: Known,
        most: usize,
    ) {
        let former = self.parts.get(&worker).map(|part| part.life);
        if former.is_some_and(|former| former != life) {
            self.remove_worker(worker);
            known = self.known(chain);
        }
        let part = self.parts.entry(worker).or_insert_with(|| Part {
            life,
            ..Part::default()
        });
        self.clock += 1;
        let held = self.tree.held(worker, known);
        if let Some(was_leaf_since) = held
            .tip
            .and_then(|tip| self.tree.touch(worker, tip, self.clock))
        {
            part.leaves.remove(&was_leaf_since);
        }
        let holds = self
            .tree
            .extend(worker, held, known.covered, chain, self.clock);
        part.messages += holds.covered - held.covered;
        if let Some(tip) = holds.tip
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
