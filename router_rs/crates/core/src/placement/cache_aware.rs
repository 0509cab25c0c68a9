//! sglang-router's rule: balance when loads are far apart, else the worker whose cache has seen most of the prompt, else
//! the one whose cache has seen least of anything.
//!
//! The unit of the prefix is the message (its chained hash), not the character: what an agent repeats, it repeats by
//! message.

use super::{Ask, Choice, Memory, Placement, Scene, least_loaded};
use crate::WorkerId;
use crate::worker::Worker;

pub(super) struct CacheAware;

impl Placement for CacheAware {
    fn choose(
        &self,
        scene: &Scene<'_>,
        ask: &Ask<'_>,
        candidates: &[WorkerId],
        memory: &mut Memory,
    ) -> Choice {
        let choice = decide(scene, ask, candidates, memory);
        if let Some(worker) = scene.workers.get(&choice.worker) {
            memory.prefixes.insert(
                worker.id,
                worker.life,
                ask.chain,
                scene.policy.cache_nodes as usize,
            );
        }
        choice
    }

    fn reads_chain(&self) -> bool {
        true
    }
}

fn decide(scene: &Scene<'_>, ask: &Ask<'_>, candidates: &[WorkerId], memory: &Memory) -> Choice {
    let loads = candidates
        .iter()
        .filter_map(|id| scene.workers.get(id))
        .map(Worker::load);
    let (least, most) = loads.fold((usize::MAX, 0), |(low, high), load| {
        (low.min(load), high.max(load))
    });
    let apart = most.saturating_sub(least) > scene.policy.balance_abs_threshold as usize;
    if apart && most as f64 > scene.policy.balance_rel_threshold * least as f64 {
        return Choice {
            worker: least_loaded(scene, candidates),
            reason: "balance",
        };
    }
    let usable = |id: WorkerId, life: u64| {
        candidates.binary_search(&id).is_ok()
            && scene.workers.get(&id).is_some_and(|w| w.life == life)
    };
    if let Some(found) = memory.prefixes.deepest(ask.chain, usable)
        && found.matched as f64 > scene.policy.cache_threshold * ask.chain.len() as f64
    {
        let worker = match ask.home {
            Some(home) if found.holders.contains(&home) => home,
            _ => least_loaded(scene, &found.holders),
        };
        return Choice {
            worker,
            reason: "cache",
        };
    }
    let smallest = super::pick(scene, candidates, |a, b| {
        memory
            .prefixes
            .size(a.id, a.life)
            .cmp(&memory.prefixes.size(b.id, b.life))
    });
    Choice {
        worker: smallest,
        reason: "smallest_cache",
    }
}
