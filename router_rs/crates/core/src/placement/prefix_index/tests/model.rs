//! The same index the plain way: a node for every message and worker, and a search for whatever is asked.

use std::collections::BTreeMap;

use crate::WorkerId;

#[derive(Default)]
struct Part {
    life: u64,
    /// By hash: parent and last use.
    nodes: BTreeMap<u64, (Option<u64>, u64)>,
}

#[derive(Default)]
pub(super) struct Model {
    parts: BTreeMap<WorkerId, Part>,
    clock: u64,
}

impl Part {
    fn least_recently_used_leaf(&self) -> Option<u64> {
        let is_leaf = |hash: u64| !self.nodes.values().any(|&(parent, _)| parent == Some(hash));
        let leaves = self.nodes.iter().filter(|&(&hash, _)| is_leaf(hash));
        leaves
            .min_by_key(|&(_, &(_, used))| used)
            .map(|(&hash, _)| hash)
    }
}

impl Model {
    pub(super) fn insert(&mut self, worker: WorkerId, life: u64, chain: &[u64], most: usize) {
        self.clock += 1;
        let part = self.parts.entry(worker).or_default();
        if part.life != life {
            *part = Part {
                life,
                ..Part::default()
            };
        }
        let known = chain.iter().rposition(|hash| part.nodes.contains_key(hash));
        let mut parent = known.map(|at| chain[at]);
        if let Some(node) = parent.and_then(|tip| part.nodes.get_mut(&tip)) {
            node.1 = self.clock;
        }
        for &hash in &chain[known.map_or(0, |at| at + 1)..] {
            part.nodes.insert(hash, (parent, self.clock));
            parent = Some(hash);
        }
        while part.nodes.len() > most
            && let Some(leaf) = part.least_recently_used_leaf()
        {
            part.nodes.remove(&leaf);
        }
    }

    /// Messages and holders of the deepest prefix that a usable worker has seen.
    pub(super) fn deepest(
        &self,
        chain: &[u64],
        usable: impl Fn(WorkerId, u64) -> bool,
    ) -> Option<(usize, Vec<WorkerId>)> {
        chain.iter().enumerate().rev().find_map(|(at, hash)| {
            let parts = self.parts.iter();
            let parts = parts.filter(|(worker, part)| usable(**worker, part.life));
            let holders: Vec<WorkerId> = parts
                .filter(|(_, part)| part.nodes.contains_key(hash))
                .map(|(&worker, _)| worker)
                .collect();
            (!holders.is_empty()).then_some((at + 1, holders))
        })
    }

    pub(super) fn size(&self, worker: WorkerId, life: u64) -> usize {
        let part = self.parts.get(&worker).filter(|part| part.life == life);
        part.map_or(0, |part| part.nodes.len())
    }

    pub(super) fn messages(&self) -> usize {
        let mut all: Vec<u64> = self
            .parts
            .values()
            .flat_map(|part| part.nodes.keys().copied())
            .collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    }
}
