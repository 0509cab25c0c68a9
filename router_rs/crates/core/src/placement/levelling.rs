//! Equal workers without a plan, and any workers for a trajectory of which no prediction is in force: a rank says nothing of
//! where to run, so a trajectory stays where its KV is until the worker is so much slower than another that the move pays.
//! (Without predictions the core's own estimate rises with age. By it, unequal workers got the wrong ones: the oldest
//! went to the fastest, and it was 4 to 13 % slower where few trajectories ran.)
//!
//! What is compared is the time of a token, which is seen, not forecast: the one with less company, or more GPUs,
//! is the one that ends earlier, whoever the company is. So a wrong prediction moves nobody; it only enters into whether
//! the gain is worth the move. The margin keeps two workers from handing a trajectory to and fro.

use super::by_rank::move_cost_us;
use super::{Ask, Choice, Company, Scene};
use crate::worker::Worker;

/// True when no candidate is faster or larger than another by its degree, slots and KV.
pub(super) fn are_equal(scene: &Scene<'_>) -> bool {
    let kind = |worker: &Worker| (worker.degree, worker.slots, worker.kv_tokens);
    let mut candidates = scene.candidates().map(kind);
    candidates
        .next()
        .is_none_or(|first| candidates.all(|other| other == first))
}

/// Microseconds a token of the trajectory on `worker`, waits for a slot included: it is there whenever it decodes, the
/// others for their share of the time.
fn pace_us(scene: &Scene<'_>, ask: &Ask<'_>, worker: &Worker, is_home: bool) -> f64 {
    let company = Company::of(ask, worker, is_home);
    let busy = 1.0 + company.count as f64 * scene.duty;
    let batch = busy.min(f64::from(worker.slots));
    company.token_us(ask, worker, batch - 1.0) * busy / batch
}

/// Stays at `home`, or leaves it for the worker with the best pace.
pub(super) fn level(scene: &Scene<'_>, ask: &Ask<'_>, home: &Worker) -> Choice {
    let here = pace_us(scene, ask, home, true);
    let mut best: Option<(f64, &Worker)> = None;
    for worker in scene.candidates().filter(|worker| worker.id != home.id) {
        let there = pace_us(scene, ask, worker, false);
        if here > scene.policy.level_margin * there
            && best.is_none_or(|(least, _)| there < least)
            && worker.has_free_slot(0)
            && worker.has_room(ask.footprint, ask.remaining, &scene.kv)
        {
            best = Some((there, worker));
        }
    }
    match best {
        Some((there, worker))
            if ask.remaining as f64 * (here - there) > move_cost_us(scene, ask, home, worker) =>
        {
            Choice::new(worker, "levelled")
        }
        _ => Choice::new(home, "home"),
    }
}
