//! Trajectory-aware placement, paper section 5.3: the longest trajectories on the workers with the highest degree.
//!
//! The rank of a trajectory among the active ones says where it belongs: with a plan by its scaled partition, without
//! one by predicted work (each worker takes the share of all remaining tokens that its throughput is of the fleet's).
//!
//! A rank is not a reason to do harm. What decides is the expected finish of the two groups that a move changes, the
//! one that is left and the one that is joined: the later of the two must come down by more than the move costs (the
//! context is prefilled again on the target), with a margin. A group finishes when its longest member does at the
//! group's batch, or when its work is through, whichever is later; the batch is bounded by slots and by KV. So the
//! last, longest trajectories go to the fastest worker as it empties, and a slow worker is never given more than it can
//! work off.

use super::levelling::{are_equal, level};
use super::{Ask, Choice, Company, Memory, Placement, Scene, by_assigned, least_candidate};
use crate::worker::Worker;

/// A group's finish within this factor of the best one is as good: rank, or siblings, decide among such.
const AS_GOOD: f64 = 1.05;

/// Finishes within this factor are the same.
const ALIKE: f64 = 1.01;

/// Least share of its home's finish that a move has to gain: less is within the error of any estimate.
const WORTH: f64 = 0.03;

pub(super) struct ByRank;

/// The trajectories at home on a worker, in numbers.
#[derive(Debug, Clone, Copy)]
struct Crowd {
    count: usize,
    work: u64,
    longest: u64,
    kv: u64,
}

impl Crowd {
    fn of(worker: &Worker) -> Self {
        Self {
            count: worker.homed.len(),
            work: worker.homed.total_weight(),
            longest: worker.homed.first().map_or(0, |entry| entry.weight),
            kv: worker.committed(),
        }
    }

    fn with(mut self, ask: &Ask<'_>) -> Self {
        self.count += 1;
        self.work += ask.remaining;
        self.longest = self.longest.max(ask.remaining);
        self.kv += ask.footprint;
        self
    }

    fn without(worker: &Worker, ask: &Ask<'_>) -> Self {
        let all = Self::of(worker);
        Self {
            count: all.count.saturating_sub(1),
            work: all.work.saturating_sub(ask.remaining),
            longest: worker
                .homed
                .first_except(ask.trajectory)
                .map_or(0, |entry| entry.weight),
            kv: all.kv.saturating_sub(ask.footprint),
        }
    }

    /// Microseconds until all of them are through on `worker`, tool gaps left out.
    fn finish_us(self, worker: &Worker, duty: f64) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        let mut batch = (self.count as f64 * duty).min(f64::from(worker.slots));
        if worker.kv_tokens > 0 && self.kv > worker.kv_tokens {
            batch = batch.min(self.count as f64 * worker.kv_tokens as f64 / self.kv as f64);
        }
        let batch = batch.max(1.0);
        let context = self.kv as f64 * batch / self.count as f64;
        let token_us = worker.belief.token_us(batch, context);
        (self.longest as f64 * token_us).max(self.work as f64 * token_us / batch)
    }
}

impl Placement for ByRank {
    fn choose(&self, scene: &Scene<'_>, ask: &Ask<'_>, _: &mut Memory) -> Choice {
        match ask.home.and_then(|home| scene.candidate(home)) {
            Some(home) => stay_or_move(scene, ask, home),
            None => first_home(scene, ask),
        }
    }

    fn reconsiders(&self, scene: &Scene<'_>, ask: &Ask<'_>, from: &Worker, to: &Worker) -> bool {
        // What the step gains at once: the time until the next of the full batch ends.
        let batch = f64::from(from.slots);
        let wait_us = scene.step_tokens * from.token_us(batch) / batch;
        let room = to.has_room(ask.footprint, ask.remaining, &scene.kv);
        room && Move::new(scene, ask, from).gain_us(to) + wait_us
            > move_cost_us(scene, ask, from, to)
    }

    fn steals(&self) -> bool {
        true
    }

    fn moves_homes(&self) -> bool {
        true
    }
}

/// The worker that the rank falls to, if it is a candidate; with a plan, the nearest share whose worker is one.
pub(crate) fn rank_target<'a>(scene: &Scene<'a>, ask: &Ask<'_>) -> Option<&'a Worker> {
    let before = scene.active.before(ask.trajectory, ask.remaining);
    if let Some(plan) = scene.plan {
        let share = plan.share_of(before.count, scene.active.len());
        let slower = plan.workers().skip(share);
        let faster = plan.workers().rev().skip(plan.workers().len() - share);
        return slower
            .chain(faster)
            .find_map(|id| scene.candidate_with_id(id));
    }
    let rate = |worker: &Worker| worker.full_throughput(ask.footprint as f64);
    let total: f64 = scene.candidates().map(rate).sum();
    let position = before.weight as f64 + ask.remaining as f64 / 2.0;
    let share = position / (scene.active.total_weight().max(1) as f64) * total;
    let mut upto = 0.0;
    let mut last = None;
    for worker in scene
        .workers
        .by_degree()
        .iter()
        .filter_map(|&place| scene.candidate(place))
    {
        upto += rate(worker);
        last = Some(worker);
        if share < upto {
            break;
        }
    }
    last
}

fn first_home(scene: &Scene<'_>, ask: &Ask<'_>) -> Choice {
    let can_take =
        |w: &&Worker| w.has_free_slot(0) && w.has_room(ask.footprint, ask.remaining, &scene.kv);
    let target = rank_target(scene, ask).filter(can_take);
    if let (Some(target), Some(_)) = (target, scene.plan) {
        return Choice::new(target, "rank");
    }
    // Equal workers differ by what was seen of them, and a little of that is chance: the one that seems a hundredth faster
    // would get all of a light load.
    let margin = scene.policy.level_margin;
    let quickest = scene
        .candidates()
        .map(|worker| worker.belief.scale())
        .fold(f64::INFINITY, f64::min);
    let by_chance = |worker: &Worker| match worker.belief.scale() / quickest {
        slower if slower <= margin => slower,
        _ => 1.0,
    };
    let equal = are_equal(scene);
    let finish = |worker: &Worker| {
        let finish = Crowd::of(worker).with(ask).finish_us(worker, scene.duty);
        if equal {
            finish / by_chance(worker)
        } else {
            finish
        }
    };
    let least = scene.candidates().map(finish).fold(f64::INFINITY, f64::min);
    // At low load company costs nothing yet and all finish alike: the one with the least of it, or the first worker
    // would take everybody.
    let Some(best) = scene
        .candidates()
        .filter(|worker| finish(worker) <= ALIKE * least)
        .min_by_key(|worker| worker.homed.len())
    else {
        return Choice::new(least_candidate(scene, by_assigned), "least_assigned");
    };
    // Nothing tells siblings apart before their first step, and they share their first KV. Their ranks mean nothing yet.
    let siblings = ask
        .sibling_home
        .and_then(|id| scene.candidate_with_id(id))
        .filter(can_take);
    let (preferred, reason) = if ask.informed {
        (target, "rank")
    } else {
        (siblings, "siblings")
    };
    match preferred {
        Some(worker) if finish(worker) <= AS_GOOD * least => Choice::new(worker, reason),
        _ => Choice::new(best, "earliest_finish"),
    }
}

fn stay_or_move(scene: &Scene<'_>, ask: &Ask<'_>, home: &Worker) -> Choice {
    // Unequal workers are for unequal lengths, and nobody has told of this one.
    if scene.plan.is_none() && (!ask.foretold || are_equal(scene)) {
        return level(scene, ask, home);
    }
    let stay = Choice::new(home, "home");
    let departure = Move::new(scene, ask, home);
    let worth = WORTH * departure.stays_us;
    // One of many: nobody would notice that it is gone.
    if scene.plan.is_none() && departure.most_us() <= worth {
        return stay;
    }
    let target = rank_target(scene, ask).map_or(home.id, |worker| worker.id);
    if target == home.id {
        return stay;
    }
    let can_take =
        |w: &Worker| w.has_free_slot(0) && w.has_room(ask.footprint, ask.remaining, &scene.kv);
    if scene.plan.is_some() {
        // The planner rehearsed its partition: only its own target counts, and a gain of the trajectory alone is enough.
        return match scene.candidate_with_id(target) {
            Some(worker)
                if can_take(worker)
                    && own_gain_us(scene, ask, home, worker).max(departure.gain_us(worker))
                        > move_cost_us(scene, ask, home, worker) =>
            {
                Choice::new(worker, "rank")
            }
            _ => stay,
        };
    }
    let mut best: Option<(f64, &Worker)> = None;
    for worker in scene.candidates() {
        let cost = move_cost_us(scene, ask, home, worker);
        if worker.id == home.id || departure.most_us() <= cost + worth || !can_take(worker) {
            continue;
        }
        let net = departure.gain_us(worker) - cost - worth;
        let preferred = if worker.id == target {
            net * AS_GOOD
        } else {
            net
        };
        if net > 0.0 && best.is_none_or(|(most, _)| preferred > most) {
            best = Some((preferred, worker));
        }
    }
    match best {
        Some((_, worker)) if worker.id == target => Choice::new(worker, "rank"),
        Some((_, worker)) => Choice::new(worker, "earlier_finish"),
        None => stay,
    }
}

/// A trajectory that may leave its home.
struct Move<'a> {
    ask: &'a Ask<'a>,
    duty: f64,
    /// The home's finish with it and without it.
    stays_us: f64,
    leaves_us: f64,
}

impl<'a> Move<'a> {
    fn new(scene: &Scene<'_>, ask: &'a Ask<'a>, home: &Worker) -> Self {
        let duty = scene.duty;
        Self {
            ask,
            duty,
            stays_us: Crowd::of(home).finish_us(home, duty),
            leaves_us: Crowd::without(home, ask).finish_us(home, duty),
        }
    }

    /// What the home gains: a move that does nothing for it is not looked for.
    fn most_us(&self) -> f64 {
        self.stays_us - self.leaves_us
    }

    /// By how much the later of the two groups finishes earlier on a move to `target`.
    fn gain_us(&self, target: &Worker) -> f64 {
        let crowd = Crowd::of(target);
        let now = self.stays_us.max(crowd.finish_us(target, self.duty));
        let then = self
            .leaves_us
            .max(crowd.with(self.ask).finish_us(target, self.duty));
        now - then
    }
}

/// What the trajectory itself gains: its remaining tokens at the target's batch after joining, and its queue now.
fn own_gain_us(scene: &Scene<'_>, ask: &Ask<'_>, home: &Worker, target: &Worker) -> f64 {
    let token_us = |worker: &Worker, is_home| {
        let batch = (worker.load() + 1).min(worker.slots as usize);
        Company::of(ask, worker, is_home).token_us(ask, worker, batch as f64 - 1.0)
    };
    let queued = if home.has_free_slot(0) {
        0
    } else {
        home.queue.len() + 1
    };
    let slots = f64::from(home.slots);
    let queue_us = queued as f64 * scene.step_tokens * home.token_us(slots) / slots;
    ask.remaining as f64 * (token_us(home, true) - token_us(target, false)) + queue_us
}

/// What the move costs, times the margin: the next step is later because its context is not there.
pub(super) fn move_cost_us(
    scene: &Scene<'_>,
    ask: &Ask<'_>,
    home: &Worker,
    target: &Worker,
) -> f64 {
    scene.policy.move_margin * ask.carry_us(home, target)
}
