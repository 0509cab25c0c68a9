//! All workers, in one dense list by id.
//!
//! Placement looks at every worker for every step, so they lie side by side, and a [`Place`] finds one without a search.
//!
//! Invariants: `ids` and `workers` run in parallel, ids ascending; after [`Fleet::refresh`] the derived fields agree with
//! the workers' states. A place is valid until a worker is added or removed.

use std::cmp::Reverse;

use crate::trajectory::Home;
use crate::worker::{Worker, WorkerState};
use crate::{Micros, WorkerId};

/// A worker that has been idle for this long is believed what is seen of others.
const OUT_OF_SIGHT: Micros = 10_000_000;

/// Position of a worker in the list.
pub type Place = usize;

/// The workers.
#[derive(Debug)]
pub struct Fleet {
    ids: Vec<WorkerId>,
    workers: Vec<Worker>,
    by_degree: Vec<Place>,
    takers: Vec<Place>,
    usable: WorkerState,
    alive: usize,
    links: usize,
    largest_kv: u64,
    /// Every worker was seen at work: there is no speed to share.
    settled: bool,
    /// Whose turn it is to hear of others' speed, if it is idle then.
    hearer: Place,
    /// No worker is suspect any more at this time.
    trusted_from: Micros,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            workers: Vec::new(),
            by_degree: Vec::new(),
            takers: Vec::new(),
            usable: WorkerState::Draining,
            alive: 0,
            links: 0,
            largest_kv: u64::MAX,
            settled: false,
            hearer: 0,
            trusted_from: 0,
        }
    }
}

impl Fleet {
    /// The worker with this id.
    pub fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.place_of(id).map(|place| &self.workers[place])
    }

    /// The worker with this id, to change; call [`Fleet::refresh`] after a change of its state, degree or KV.
    pub fn get_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.place_of(id).map(|place| &mut self.workers[place])
    }

    /// A worker was seen at this speed. Others hear of it: all that were never seen at work, and in turn, one at a time, those
    /// that have been idle for a while.
    pub fn speed_seen(&mut self, now: Micros, scale: f64) {
        self.share_speed();
        self.hearer += 1;
        if self.hearer >= self.workers.len() {
            self.hearer = 0;
        }
        if let Some(worker) = self.workers.get_mut(self.hearer)
            && worker.load() == 0
            && now.saturating_sub(worker.idle_since) >= OUT_OF_SIGHT
        {
            worker.belief.hear(scale);
        }
    }

    /// Workers that were never seen at work are believed to be off their tables as far as those that were: where a fleet is
    /// faster than its tables, the first one seen would else look faster than all others, and get everything.
    pub fn share_speed(&mut self) {
        if self.settled {
            return;
        }
        self.settled = self.workers.iter().all(|worker| worker.belief.is_settled());
        if self.settled {
            return;
        }
        let seen = |worker: &&Worker| worker.belief.is_settled();
        let scales = self
            .workers
            .iter()
            .filter(seen)
            .map(|worker| worker.belief.scale().ln());
        let (number, sum) = scales.fold((0.0, 0.0), |(number, sum), scale| {
            (number + 1.0, sum + scale)
        });
        if number > 0.0 {
            let scale = f64::exp(sum / number);
            for worker in &mut self.workers {
                worker.belief.assume(scale);
            }
        }
    }

    /// Where the worker with this id is in the list. Ids are handed out by a counter: mostly each is one more than the last.
    pub fn place_of(&self, id: WorkerId) -> Option<Place> {
        let guess = id.wrapping_sub(*self.ids.first()?) as usize;
        if self.ids.get(guess) == Some(&id) {
            return Some(guess);
        }
        self.ids.binary_search(&id).ok()
    }

    /// The worker that a home names, if that life of it still lasts.
    pub fn home(&self, home: Option<Home>) -> Option<&Worker> {
        let home = home?;
        self.get(home.worker).filter(|worker| worker.lives(home))
    }

    /// The same, to change.
    pub fn home_mut(&mut self, home: Option<Home>) -> Option<&mut Worker> {
        let home = home?;
        self.get_mut(home.worker)
            .filter(|worker| worker.lives(home))
    }

    /// The worker at `place`.
    pub fn at(&self, place: Place) -> &Worker {
        &self.workers[place]
    }

    /// All workers by id, also those that are down.
    pub fn iter(&self) -> impl Iterator<Item = &Worker> + '_ {
        self.workers.iter()
    }

    /// Adds a worker, or replaces the one with its id.
    pub fn insert(&mut self, worker: Worker) {
        match self.ids.binary_search(&worker.id) {
            Ok(place) => self.workers[place] = worker,
            Err(place) => {
                self.ids.insert(place, worker.id);
                self.workers.insert(place, worker);
            }
        }
        self.refresh();
    }

    /// Takes a worker out.
    pub fn remove(&mut self, id: WorkerId) {
        if let Some(place) = self.place_of(id) {
            self.ids.remove(place);
            self.workers.remove(place);
            self.refresh();
        }
    }

    /// Ids of all workers, ascending.
    pub fn ids(&self) -> &[WorkerId] {
        &self.ids
    }

    /// Living workers, highest degree first, then by id.
    pub fn by_degree(&self) -> &[Place] {
        &self.by_degree
    }

    /// Workers that take steps, by id.
    pub fn takers(&self) -> &[Place] {
        &self.takers
    }

    /// True when no worker is kept from new steps because it could not be reached.
    pub fn are_all_trusted(&self, now: Micros) -> bool {
        now >= self.trusted_from
    }

    /// A worker could not be reached.
    pub fn suspect(&mut self, place: Place, now: Micros) {
        let worker = &mut self.workers[place];
        worker.suspect(now);
        self.trusted_from = self.trusted_from.max(worker.suspect_until);
    }

    /// The state of workers that take steps: draining ones only while no other is there.
    pub fn usable_state(&self) -> WorkerState {
        self.usable
    }

    /// KV tokens of the usable worker that has most; `u64::MAX` where one has no bound, or there is no worker.
    pub fn largest_kv(&self) -> u64 {
        self.largest_kv
    }

    /// Workers that are not down.
    pub fn alive(&self) -> usize {
        self.alive
    }

    /// Workers that are not down and can move KV.
    pub fn links(&self) -> usize {
        self.links
    }

    /// Derives what depends on the workers' states, degrees and KV.
    pub fn refresh(&mut self) {
        let workers = &self.workers;
        self.by_degree.clear();
        self.by_degree
            .extend((0..workers.len()).filter(|&place| workers[place].state != WorkerState::Down));
        self.alive = self.by_degree.len();
        let linked = |&&place: &&Place| workers[place].link.is_some();
        self.links = self.by_degree.iter().filter(linked).count();
        self.by_degree
            .sort_by_key(|&place| Reverse(workers[place].degree));
        let active = workers
            .iter()
            .any(|worker| worker.state == WorkerState::Active);
        self.usable = if active {
            WorkerState::Active
        } else {
            WorkerState::Draining
        };
        self.takers.clear();
        let takes = |&place: &Place| workers[place].state == self.usable;
        self.takers.extend((0..workers.len()).filter(takes));
        self.largest_kv = self.find_largest_kv();
        self.settled = false;
    }

    fn find_largest_kv(&self) -> u64 {
        let usable = self.workers.iter().filter(|w| w.state == self.usable);
        usable
            .map(|worker| match worker.kv_tokens {
                0 => u64::MAX,
                tokens => tokens,
            })
            .max()
            .unwrap_or(u64::MAX)
    }

    /// True when the derived fields agree with the workers.
    pub fn is_consistent(&self) -> bool {
        let living = self
            .workers
            .iter()
            .filter(|w| w.state != WorkerState::Down)
            .count();
        let active = self.workers.iter().any(|w| w.state == WorkerState::Active);
        self.ids.is_sorted_by(|a, b| a < b)
            && self.ids.len() == self.workers.len()
            && self
                .ids
                .iter()
                .zip(&self.workers)
                .all(|(id, worker)| *id == worker.id)
            && self.alive == living
            && self.links == self.workers.iter().filter(|w| w.link.is_some()).count()
            && self.by_degree.len() == living
            && (self.usable == WorkerState::Active) == active
            && self.largest_kv == self.find_largest_kv()
            && self
                .takers
                .iter()
                .copied()
                .eq((0..self.workers.len())
                    .filter(|&place| self.workers[place].state == self.usable))
            && self
                .workers
                .iter()
                .all(|w| w.suspect_until <= self.trusted_from)
            && (!self.settled || self.workers.iter().all(|w| w.belief.is_settled()))
    }
}
