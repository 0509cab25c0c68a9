//! Where a step runs: one file a variant, one table.
//!
//! A placement sees a read-only [`Scene`] and the candidates that may take the step at all; it never gets an empty
//! list. Ties go to fewer assigned trajectories, then to the smaller worker id: with requests in flight alone, all
//! first steps would go to worker 1.

mod by_rank;
mod cache_aware;
mod least_load;
mod levelling;
mod prefix_index;
mod round_robin;
mod sticky;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

pub(crate) use by_rank::rank_target;
pub use prefix_index::PrefixIndex;

use crate::fleet::{Fleet, Place};
use crate::kv_room::KvRule;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::rank::Ranking;
use crate::worker::Worker;
use crate::{Micros, TrajectoryId, WorkerId};

/// The variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacementKind {
    /// Workers take turns, step by step.
    RoundRobin,
    /// The worker with the least load for its capacity, step by step.
    LeastLoad,
    /// The worker that the trajectory began on.
    Sticky,
    /// The worker whose cache has seen most of the prompt (sglang-router).
    CacheAware,
    /// The worker that the trajectory's rank falls to (Heddle).
    ByRank,
}

impl PlacementKind {
    /// The variant behind the name.
    pub const fn variant(self) -> &'static dyn Placement {
        match self {
            Self::RoundRobin => &round_robin::RoundRobin,
            Self::LeastLoad => &least_load::LeastLoad,
            Self::Sticky => &sticky::Sticky,
            Self::CacheAware => &cache_aware::CacheAware,
            Self::ByRank => &by_rank::ByRank,
        }
    }
}

/// What every placement may look at.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// Time of the decision.
    pub now: Micros,
    /// All workers, also those that cannot be chosen.
    pub workers: &'a Fleet,
    /// Workers that may take the step, ascending; never empty where a placement is asked.
    pub candidates: &'a [Place],
    /// Active trajectories by remaining length.
    pub active: &'a Ranking,
    /// The plan in force.
    pub plan: Option<&'a Plan>,
    /// The policy.
    pub policy: &'a Policy,
    /// How KV is given out.
    pub kv: KvRule,
    /// Share of its time that an active trajectory spends in an engine.
    pub duty: f64,
    /// Output tokens of a usual step.
    pub step_tokens: f64,
}

impl<'a> Scene<'a> {
    /// The workers that may take the step, by id.
    pub fn candidates(&self) -> impl Iterator<Item = &'a Worker> + use<'a> {
        let workers = self.workers;
        self.candidates.iter().map(move |&place| workers.at(place))
    }

    /// The worker at `place` if it may take the step.
    pub fn candidate(&self, place: Place) -> Option<&'a Worker> {
        self.candidates
            .binary_search(&place)
            .is_ok()
            .then(|| self.workers.at(place))
    }

    /// The worker with this id if it may take the step.
    pub fn candidate_with_id(&self, id: WorkerId) -> Option<&'a Worker> {
        self.workers
            .place_of(id)
            .and_then(|place| self.candidate(place))
    }
}

/// How a trajectory's context gets to a worker that is not its home, which decides what that costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Carry {
    /// It is computed again there.
    Recompute,
    /// It is sent there in the tool gap, of which so many microseconds are expected to be left.
    Transfer {
        /// Microseconds.
        gap_left_us: f64,
    },
    /// It is on the way to a worker; anywhere else it is computed again.
    Arriving {
        /// The worker.
        to: WorkerId,
        /// Microseconds until it is there.
        left_us: f64,
    },
}

/// The step to place, or the trajectory to find a home for.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Its trajectory.
    pub trajectory: TrajectoryId,
    /// Expected output tokens that the trajectory still has to come.
    pub remaining: u64,
    /// Worker that holds the trajectory's KV, if that worker still lives.
    pub home: Option<Place>,
    /// Context tokens that lie there.
    pub resident_tokens: u64,
    /// KV tokens that it needs: context and expected answer.
    pub footprint: u64,
    /// Where the last sibling went of which nothing was known.
    pub sibling_home: Option<WorkerId>,
    /// Something is known of this trajectory that is not known of its siblings.
    pub informed: bool,
    /// A prediction of its length is in force.
    pub foretold: bool,
    /// Chained message hashes of the prompt.
    pub chain: &'a [u64],
    /// How its context gets to another worker.
    pub carry: Carry,
}

impl Ask<'_> {
    /// Microseconds by which its next step is later on `target` because its context is not there.
    pub fn carry_us(&self, home: &Worker, target: &Worker) -> f64 {
        match self.carry {
            Carry::Transfer { gap_left_us } => home
                .transfer_us(target, self.resident_tokens)
                .map_or(f64::INFINITY, |transfer| (transfer - gap_left_us).max(0.0)),
            Carry::Arriving { to, left_us } if to == target.id => left_us,
            Carry::Recompute | Carry::Arriving { .. } => {
                target.belief.prefill_us(self.resident_tokens)
            }
        }
    }
}

/// Company of the trajectory on a worker, which is its home or would be.
#[derive(Debug, Clone, Copy)]
struct Company {
    /// The others at home there.
    count: usize,
    /// Their KV tokens.
    kv: u64,
}

impl Company {
    fn of(ask: &Ask<'_>, worker: &Worker, is_home: bool) -> Self {
        let (count, kv) = (worker.homed.len(), worker.committed());
        if is_home {
            Self {
                count: count.saturating_sub(1),
                kv: kv.saturating_sub(ask.footprint),
            }
        } else {
            Self { count, kv }
        }
    }

    /// Microseconds of a token of the trajectory on `worker` beside so many of the others, who are like all of them.
    ///
    /// Its own context counts wherever it is. By the mean of who is there, one with a large context finds every other
    /// worker quicker than its home, and moves at each step.
    fn token_us(self, ask: &Ask<'_>, worker: &Worker, beside: f64) -> f64 {
        let context = beside * self.kv as f64 / self.count.max(1) as f64;
        let belief = &worker.belief;
        belief.token_us(1.0 + beside, ask.footprint as f64 + context)
    }
}

/// A worker, and the rule that chose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The worker.
    pub worker: WorkerId,
    /// Stable name of the rule.
    pub reason: &'static str,
}

impl Choice {
    fn new(worker: &Worker, reason: &'static str) -> Self {
        Self {
            worker: worker.id,
            reason,
        }
    }
}

/// What placements remember from step to step.
#[derive(Debug, Default)]
pub struct Memory {
    /// Round robin: the worker that had the last turn.
    pub last_turn: Option<WorkerId>,
    /// Cache-aware: what each worker has seen.
    pub prefixes: PrefixIndex,
}

/// A rule of placement.
pub trait Placement: Sync {
    /// Chooses among the candidates of the scene.
    fn choose(&self, scene: &Scene<'_>, ask: &Ask<'_>, memory: &mut Memory) -> Choice;

    /// Whether a step that is held for `from` should rather run on `to`, which has a free slot.
    fn reconsiders(
        &self,
        _scene: &Scene<'_>,
        _ask: &Ask<'_>,
        _from: &Worker,
        _to: &Worker,
    ) -> bool {
        false
    }

    /// True when [`Placement::reconsiders`] can ever be true.
    fn steals(&self) -> bool {
        false
    }

    /// True when it ever gives a trajectory another home while the old one takes steps.
    fn moves_homes(&self) -> bool {
        false
    }

    /// True when it reads the prompt's hash chain.
    fn reads_chain(&self) -> bool {
        false
    }
}

/// Two numbers, each as a share of a worker's slots.
struct Shares {
    of: [usize; 2],
    slots: u32,
}

impl Shares {
    /// `a / a.slots` against `b / b.slots`, the second numbers where the first are equal.
    fn compare(&self, other: &Self) -> Ordering {
        let (slots, others) = (u64::from(self.slots.max(1)), u64::from(other.slots.max(1)));
        let share = |i: usize| {
            let (own, theirs) = (self.of[i] as u64, other.of[i] as u64);
            (own * others).cmp(&(theirs * slots))
        };
        share(0).then_with(|| share(1))
    }
}

/// Least (steps / slots), then least (assigned trajectories / slots), then the smallest id.
fn by_load(scene: &Scene<'_>) -> impl Fn(&Worker) -> Shares {
    let now = scene.now;
    move |worker| Shares {
        of: [worker.load() + worker.foreign_load(now), worker.homed.len()],
        slots: worker.slots,
    }
}

/// Least (assigned trajectories / slots), then least (steps / slots), then the smallest id.
fn by_assigned(worker: &Worker) -> Shares {
    Shares {
        of: [worker.homed.len(), worker.load()],
        slots: worker.slots,
    }
}

/// The first of the least among `workers`.
fn least<'a>(
    workers: impl Iterator<Item = &'a Worker>,
    shares: impl Fn(&Worker) -> Shares,
) -> Option<&'a Worker> {
    // `min_by` gives the first of equals.
    workers
        .map(|worker| (shares(worker), worker))
        .min_by(|(a, _), (b, _)| a.compare(b))
        .map(|(_, worker)| worker)
}

/// The first of the least candidates. There always is one: a placement is asked only with candidates.
fn least_candidate<'a>(scene: &Scene<'a>, shares: impl Fn(&Worker) -> Shares) -> &'a Worker {
    least(scene.candidates(), shares).unwrap_or_else(|| scene.workers.at(0))
}
