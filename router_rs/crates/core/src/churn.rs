//! Workers come, drain, go and come back.
//!
//! Invariant: a life of a worker ends once. With it go its seats (the attempts are withdrawn), its queue (placed anew)
//! and all residency: homes name the life, so none has to be looked up.

use crate::action::Action;
use crate::event::{EventError, WorkerUp};
use crate::machine::Core;
use crate::step::StepState;
use crate::worker::{Worker, WorkerState};
use crate::{StepId, WorkerId};

impl Core {
    pub(crate) fn worker_up(&mut self, up: &WorkerUp) -> Result<(), EventError> {
        let bad = |field, why: &str| {
            Err(EventError::BadField {
                field,
                why: why.to_owned(),
            })
        };
        if up.slots == 0 {
            return bad("slots", "must be at least 1");
        }
        if up.degree == 0 {
            return bad("degree", "must be at least 1");
        }
        if let Some(link) = &up.link
            && !(link.tokens_per_s.is_finite() && link.tokens_per_s > 0.0)
        {
            return bad("tokens_per_s", "must be a finite number above 0");
        }
        let mut orphans = Vec::new();
        match self.workers.get_mut(up.worker) {
            Some(known) if up.generation < known.generation => {
                self.counters.stale_events += 1;
                return Ok(());
            }
            Some(known)
                if up.generation == known.generation && known.state != WorkerState::Down =>
            {
                let void = up.link.is_none() || up.weights != known.weights;
                known.refresh(up);
                if void {
                    self.call_off_moves_of(up.worker);
                }
            }
            known => {
                let lives = known.is_some_and(|worker| worker.state != WorkerState::Down);
                if lives {
                    orphans = self.end_life(up.worker);
                }
                self.lives += 1;
                let mut worker = Worker::new(up, self.lives);
                worker.note_idle(self.now);
                self.workers.insert(worker);
            }
        }
        self.workers.refresh();
        self.workers.share_speed();
        self.touched.push(up.worker);
        for step in orphans {
            self.place(step);
        }
        for step in std::mem::take(&mut self.unplaced) {
            self.admit(step);
        }
        Ok(())
    }

    pub(crate) fn worker_draining(&mut self, id: WorkerId, generation: u64) {
        let Some(worker) = self.current(id, generation) else {
            return;
        };
        if worker.state == WorkerState::Down {
            self.counters.stale_events += 1;
            return;
        }
        worker.state = WorkerState::Draining;
        self.workers.refresh();
        self.reconsider_all();
        if self.workers.usable_state() == WorkerState::Active {
            self.replace_queue(id);
        }
    }

    pub(crate) fn worker_down(&mut self, id: WorkerId, generation: u64) {
        let Some(worker) = self.current(id, generation) else {
            return;
        };
        if worker.state == WorkerState::Down {
            return;
        }
        let orphans = self.end_life(id);
        self.workers.refresh();
        for step in orphans {
            self.place(step);
        }
    }

    pub(crate) fn worker_removed(&mut self, id: WorkerId, generation: u64) {
        if self.current(id, generation).is_none() {
            return;
        }
        self.worker_down(id, generation);
        self.workers.remove(id);
        self.memory.prefixes.remove_worker(id);
    }

    pub(crate) fn load_report(
        &mut self,
        id: WorkerId,
        generation: u64,
        running: u32,
        waiting: u32,
        kv_used: u64,
    ) {
        let now = self.now;
        if let Some(worker) = self.current(id, generation) {
            worker.report(now, running, waiting, kv_used);
        }
    }

    /// The worker if this is its generation; anything else is counted as stale.
    fn current(&mut self, id: WorkerId, generation: u64) -> Option<&mut Worker> {
        if self
            .workers
            .get(id)
            .is_none_or(|worker| worker.generation != generation)
        {
            self.counters.stale_events += 1;
            return None;
        }
        self.workers.get_mut(id)
    }

    /// Ends the life of a worker: its attempts are withdrawn, its trajectories have no home any more. Its queue is
    /// handed back, to be placed anew.
    fn end_life(&mut self, id: WorkerId) -> Vec<StepId> {
        let Some(worker) = self.workers.get_mut(id) else {
            return Vec::new();
        };
        let generation = worker.generation;
        let seats: Vec<StepId> = worker
            .running
            .iter()
            .chain(&worker.preempted)
            .map(|seat| seat.step)
            .collect();
        worker.state = WorkerState::Down;
        worker.running.clear();
        worker.preempted.clear();
        worker.homed = crate::rank::Ranking::new();
        worker.holders = crate::rank::Ranking::new();
        worker.idle = 0;
        worker.link = None;
        self.end_moves_of(id);
        let Some(worker) = self.workers.get(id) else {
            return Vec::new();
        };
        let queue: Vec<StepId> = worker.queue.iter().map(|queued| queued.step).collect();
        for &step in &queue {
            self.leave_queue(step);
        }
        for id in seats {
            let Some(step) = self.steps.get_mut(id) else {
                continue;
            };
            let Some(attempt) = &mut step.attempt else {
                continue;
            };
            attempt.seated = false;
            let worker = attempt.worker;
            if step.state == StepState::Aborting {
                continue;
            }
            self.set_state(id, StepState::Withdrawn);
            self.counters.withdrawn += 1;
            self.actions.push_back(Action::Withdraw {
                step: id,
                worker,
                generation,
            });
        }
        queue
    }
}
