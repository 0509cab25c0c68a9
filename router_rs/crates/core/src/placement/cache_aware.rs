//! sglang-router's rule: balance when loads are far apart, else the worker whose cache has seen most of the prompt, else
//! the one whose cache has seen least of anything.
//!
//! The unit of the prefix is the message (its chained hash), not the character: what an agent repeats, it repeats by
//! message.

use super::prefix_index::Known;
use super::{Ask, Choice, Memory, Placement, PrefixIndex, Scene, by_load, least, least_candidate};
use crate::worker::Worker;

pub(super) struct CacheAware;

impl Placement for CacheAware {
    fn choose(&self, scene: &Scene<'_>, ask: &Ask<'_>, memory: &mut Memory) -> Choice {
        let known = memory.prefixes.known(ask.chain);
        let (worker, reason) = decide(scene, ask, &memory.prefixes, known);
        let bound = scene.policy.cache_nodes as usize;
        memory
            .prefixes
            .insert(worker.id, worker.life, ask.chain, known, bound);
        Choice::new(worker, reason)
    }

    fn reads_chain(&self) -> bool {
        true
    }
}

fn decide<'a>(
    scene: &Scene<'a>,
    ask: &Ask<'_>,
    prefixes: &PrefixIndex,
    known: Known,
) -> (&'a Worker, &'static str) {
    let loads = scene.candidates().map(Worker::load);
    let (low, high) = loads.fold((usize::MAX, 0), |(low, high), load| {
        (low.min(load), high.max(load))
    });
    let apart = high.saturating_sub(low) > scene.policy.balance_abs_threshold as usize;
    if apart && high as f64 > scene.policy.balance_rel_threshold * low as f64 {
        return (least_candidate(scene, by_load(scene)), "balance");
    }
    let usable = |id, life| {
        scene
            .candidate_with_id(id)
            .is_some_and(|worker| worker.life == life)
    };
    if let Some(found) = prefixes.deepest(known, usable)
        && found.matched as f64 > scene.policy.cache_threshold * ask.chain.len() as f64
    {
        let holders = || prefixes.holders(found, usable);
        let home = ask.home.map(|home| scene.workers.at(home));
        if let Some(home) = home.filter(|home| holders().any(|id| id == home.id)) {
            return (home, "cache");
        }
        let holders = holders().filter_map(|id| scene.candidate_with_id(id));
        if let Some(worker) = least(holders, by_load(scene)) {
            return (worker, "cache");
        }
    }
    let lives = scene.candidates().map(|worker| (worker.id, worker.life));
    let sizes = prefixes.sizes(lives).zip(scene.candidates());
    // `min_by_key` gives the first of equals.
    let smallest = sizes.min_by_key(|&(size, _)| size);
    let worker = smallest.map_or_else(|| scene.workers.at(0), |(_, worker)| worker);
    (worker, "smallest_cache")
}
