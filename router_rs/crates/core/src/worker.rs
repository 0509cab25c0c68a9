//! Workers: lives and generations, seats in the engine, the priority queue before it, and who is at home there.
//!
//! Invariants: a seat is taken from dispatch until the attempt ended, also while it is being aborted; a seat is either
//! believed running or believed preempted; `homed` holds the ranked trajectories whose home is this life of the worker.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde::Serialize;

use crate::belief::Belief;
use crate::event::WorkerUp;
use crate::migration::Link;
use crate::order::OrderKey;
use crate::rank::Ranking;
use crate::trajectory::Home;
use crate::{Micros, StepId, WorkerId};

/// First back-off of a worker that could not be reached.
const BACKOFF_FIRST: Micros = 1_000_000;
/// Longest back-off.
const BACKOFF_MOST: Micros = 30_000_000;
/// Age past which a load report says nothing.
const REPORT_TTL: Micros = 5_000_000;

/// Where a worker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Takes steps.
    Active,
    /// Takes steps only while there is no active worker.
    Draining,
    /// Lost; kept for its generation.
    Down,
}

impl WorkerState {
    /// The legal moves; `Down` to `Active` begins a new life.
    pub const fn moves(self) -> &'static [Self] {
        match self {
            Self::Active => &[Self::Draining, Self::Down],
            Self::Draining => &[Self::Active, Self::Down],
            Self::Down => &[Self::Active],
        }
    }

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Down => "down",
        }
    }
}

/// A held step in a worker's queue; the smallest key is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Queued {
    /// Its place.
    pub key: OrderKey,
    /// The step.
    pub step: StepId,
}

/// A dispatched step as the engine's victim choice sees it: lowest level first, newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    /// Level that the engine knows.
    pub level: u8,
    /// Order of dispatch.
    pub seq: Reverse<u64>,
    /// The step.
    pub step: StepId,
}

/// Load that other clients put on a worker, from its own reports.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Foreign {
    at: Micros,
    /// Requests beyond ours in the last report and the one before: one report alone may be behind the times.
    excess: [u32; 2],
    kv_used: u64,
}

/// One inference server.
#[derive(Debug, Clone)]
pub struct Worker {
    /// Handle.
    pub id: WorkerId,
    /// Generation told by the registry.
    pub generation: u64,
    /// Counts lives over all workers: a home in another life is void.
    pub life: u64,
    /// Where it stands.
    pub state: WorkerState,
    /// Model-parallel degree.
    pub degree: u32,
    /// Requests the engine runs at once.
    pub slots: u32,
    /// KV capacity in tokens; 0 when unknown.
    pub kv_tokens: u64,
    /// The engine orders by priority and preempts.
    pub has_priority: bool,
    /// Cost table.
    pub belief: Belief,
    /// Its transfers of KV, if it can move any.
    pub link: Option<Link>,
    /// Weights it runs.
    pub weights: u64,
    /// KV tokens set aside for the transfer that it receives.
    pub incoming: u64,
    /// Held steps placed here.
    pub queue: BTreeSet<Queued>,
    /// When the number of them that have a seat last grew.
    pub readied_at: Micros,
    /// Seats believed to run.
    pub running: BTreeSet<Seat>,
    /// Seats that the engine is believed to have put aside.
    pub preempted: BTreeSet<Seat>,
    /// Active trajectories at home here, by remaining length.
    pub homed: Ranking,
    /// The same trajectories by the KV tokens counted for them, most first.
    pub holders: Ranking,
    /// The part of [`Worker::committed`] whose trajectories are in their tool gaps.
    pub idle: u64,
    /// Since when no step runs or waits here, while none does.
    pub idle_since: Micros,
    /// No new dispatch before this time, if another worker can take it.
    pub suspect_until: Micros,
    backoff: Micros,
    foreign: Foreign,
}

impl Worker {
    /// A new life of the worker that `up` describes.
    pub fn new(up: &WorkerUp, life: u64) -> Self {
        Self {
            id: up.worker,
            generation: up.generation,
            life,
            state: WorkerState::Active,
            degree: up.degree,
            slots: up.slots,
            kv_tokens: up.kv_tokens,
            has_priority: up.has_priority,
            belief: Belief::new(up.degree, up.profile.as_ref()),
            link: up.link.as_ref().map(Link::new),
            weights: up.weights,
            incoming: 0,
            queue: BTreeSet::new(),
            readied_at: 0,
            running: BTreeSet::new(),
            preempted: BTreeSet::new(),
            homed: Ranking::new(),
            holders: Ranking::new(),
            idle: 0,
            idle_since: 0,
            suspect_until: 0,
            backoff: 0,
            foreign: Foreign::default(),
        }
    }

    /// Takes over what the same life of the worker reports anew.
    pub fn refresh(&mut self, up: &WorkerUp) {
        self.degree = up.degree;
        self.slots = up.slots;
        self.kv_tokens = up.kv_tokens;
        self.has_priority = up.has_priority;
        let mut belief = Belief::new(up.degree, up.profile.as_ref());
        belief.inherit(&self.belief);
        self.belief = belief;
        let link = up.link.as_ref().map(Link::new);
        self.link = link.map(|link| link.inherit(self.link.as_ref()));
        self.weights = up.weights;
        self.state = WorkerState::Active;
        self.clear_suspicion();
        self.resume();
    }

    /// True while the life of it that `home` names lasts.
    pub fn lives(&self, home: Home) -> bool {
        self.life == home.life && self.state != WorkerState::Down
    }

    /// Tokens per microsecond with every slot taken by trajectories of `context` tokens, as far as KV allows.
    pub fn full_throughput(&self, context: f64) -> f64 {
        let mut batch = f64::from(self.slots);
        if self.kv_tokens > 0 {
            batch = batch.min(self.kv_tokens as f64 / context.max(1.0)).max(1.0);
        }
        batch / self.belief.token_us(batch, batch * context)
    }

    /// KV tokens counted for the trajectories at home here.
    pub fn committed(&self) -> u64 {
        self.holders.total_weight()
    }

    /// Mean context of the trajectories at home here, in tokens.
    pub fn mean_context(&self) -> f64 {
        self.committed() as f64 / self.homed.len().max(1) as f64
    }

    /// Time of a token in a batch of `batch` trajectories like those at home here.
    pub fn token_us(&self, batch: f64) -> f64 {
        self.belief.token_us(batch, batch * self.mean_context())
    }

    /// Steps at the engine.
    pub fn seats(&self) -> usize {
        self.running.len() + self.preempted.len()
    }

    /// Steps at the engine and in the queue before it.
    pub fn load(&self) -> usize {
        self.seats() + self.queue.len()
    }

    /// A step left it: notes since when none is here.
    pub fn note_idle(&mut self, now: Micros) {
        if self.load() == 0 {
            self.idle_since = now;
        }
    }

    /// A seat came free: notes it if one of the queue has waited for that.
    pub fn note_seat(&mut self, now: Micros) {
        if !self.queue.is_empty() && self.load() >= self.slots as usize {
            self.readied_at = now;
        }
    }

    /// A step placed now would be sent at once.
    pub fn has_free_slot(&self, backlog: u32) -> bool {
        self.load() < self.slots as usize + backlog as usize
    }

    /// Requests of other clients that both of the last two reports agree on.
    pub fn foreign_load(&self, now: Micros) -> usize {
        if now.saturating_sub(self.foreign.at) > REPORT_TTL {
            return 0;
        }
        self.foreign.excess.into_iter().min().unwrap_or(0) as usize
    }

    /// KV tokens in use by the last report.
    pub fn kv_used(&self) -> u64 {
        self.foreign.kv_used
    }

    /// Takes in the worker's own word on its load.
    pub fn report(&mut self, now: Micros, running: u32, waiting: u32, kv_used: u64) {
        let excess = (running.saturating_add(waiting)).saturating_sub(self.seats() as u32);
        self.foreign = Foreign {
            at: now,
            excess: [excess, self.foreign.excess[0]],
            kv_used,
        };
    }

    /// It could not be reached.
    pub fn suspect(&mut self, now: Micros) {
        // Many attempts fail together when a worker dies; only a failure after the back-off is news.
        if now >= self.suspect_until {
            self.backoff = (self.backoff * 2).clamp(BACKOFF_FIRST, BACKOFF_MOST);
            self.suspect_until = now + self.backoff;
        }
    }

    /// It answered.
    pub fn clear_suspicion(&mut self) {
        self.suspect_until = 0;
        self.backoff = 0;
    }

    /// Takes a seat for a dispatched step.
    pub fn seat(&mut self, seat: Seat) {
        self.running.insert(seat);
    }

    /// Gives the seat back.
    pub fn unseat(&mut self, seat: &Seat) {
        if !self.running.remove(seat) {
            self.preempted.remove(seat);
        }
        self.resume();
    }

    /// The engine takes up what it had put aside while it has slots: best level first, oldest first.
    fn resume(&mut self) {
        while self.running.len() < self.slots as usize
            && let Some(resumed) = self.preempted.pop_last()
        {
            self.running.insert(resumed);
        }
    }

    /// Steps sent over the slots.
    pub fn over_sent(&self, backlog: u32) -> usize {
        self.seats()
            .saturating_sub(self.slots as usize + backlog as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(slots: u32) -> Worker {
        let up = WorkerUp {
            worker: 1,
            generation: 1,
            degree: 1,
            slots,
            kv_tokens: 0,
            has_priority: true,
            profile: None,
            link: None,
            weights: 0,
        };
        Worker::new(&up, 1)
    }

    #[test]
    fn back_off_doubles_only_for_failures_after_it() {
        let mut worker = worker(1);
        worker.suspect(0);
        worker.suspect(10);
        assert_eq!(worker.suspect_until, 1_000_000);
        worker.suspect(1_000_000);
        assert_eq!(worker.suspect_until, 3_000_000);
        for _ in 0..10 {
            let at = worker.suspect_until;
            worker.suspect(at);
        }
        assert_eq!(worker.backoff, BACKOFF_MOST);
        worker.clear_suspicion();
        worker.suspect(0);
        assert_eq!(worker.suspect_until, 1_000_000);
    }

    #[test]
    fn the_engine_takes_up_the_best_preempted_step_first() {
        let mut worker = worker(2);
        let seat = |level, seq, step| Seat {
            level,
            seq: Reverse(seq),
            step,
        };
        worker.seat(seat(9, 3, 30));
        worker.seat(seat(9, 4, 40));
        worker.preempted.insert(seat(2, 1, 10));
        worker.preempted.insert(seat(2, 2, 20));
        worker.unseat(&seat(9, 3, 30));
        assert!(
            worker.running.contains(&seat(2, 1, 10)),
            "older of equals first"
        );
        assert_eq!(worker.preempted.len(), 1);
    }

    #[test]
    fn foreign_load_needs_two_reports_and_goes_stale() {
        let mut worker = worker(8);
        worker.report(0, 5, 1, 100);
        assert_eq!(worker.foreign_load(0), 0);
        worker.report(1_000_000, 4, 0, 100);
        assert_eq!(worker.foreign_load(1_000_000), 4);
        assert_eq!(worker.foreign_load(9_000_000), 0);
    }
}
