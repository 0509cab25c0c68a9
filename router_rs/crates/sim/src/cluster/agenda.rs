//! What is due when: the order in which things happen, and when nothing more can.

use std::cmp::Reverse;

use heddle_core::{Event, Micros, WorkerId};

use super::{Cluster, SimError, seconds};
use crate::engine::Engine;

/// A rollout that takes longer than this many microseconds, 60 days, will not end: something goes round in circles.
const LONGEST_RUN: Micros = 60 * 86_400 * 1_000_000;

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A trajectory's next request comes in.
    Arrival(usize),
    /// A worker's batch changes; void unless it is the last one asked for.
    Boundary { worker: usize, ask: u64 },
    /// All workers write load reports.
    Survey,
    /// A load report arrives.
    Report {
        worker: usize,
        generation: u64,
        running: u32,
        waiting: u32,
        kv_used: u64,
    },
    /// A transfer ends, or its deadline comes; void unless it is the last look asked for.
    Network { ask: u64 },
    /// A worker is lost.
    Loss(usize),
    /// Another one takes its place.
    Return(usize),
    /// The planner is asked; `again` once more a period later.
    Question { again: bool },
    /// What it answered is put in force.
    Answer,
    /// The time of a plan is over, by its number.
    PlanOver(u64),
}

impl Cluster<'_> {
    pub(super) fn schedule(&mut self, at: Micros, due: Due) {
        self.queued += 1;
        self.pending += usize::from(moves_on(due));
        self.queue.push(Reverse((at, self.queued, due)));
    }

    /// What is due next. At one moment the core's timers come first, then what was scheduled first.
    pub(super) fn advance(&mut self) -> Result<(), SimError> {
        let timer = self.core.poll_timeout();
        let next = self.queue.peek().map(|Reverse((at, _, _))| *at);
        if (self.pending == 0 && timer.is_none()) || self.is_dead() || self.now > LONGEST_RUN {
            return Err(self.stalled());
        }
        match (timer, next) {
            (Some(timer), next) if next.is_none_or(|next| timer <= next) => {
                self.now = self.now.max(timer);
                self.core.handle_timeout(self.now);
                self.drain();
            }
            _ => {
                let Some(Reverse((at, _, due))) = self.queue.pop() else {
                    return Err(self.stalled());
                };
                self.pending -= usize::from(moves_on(due));
                self.now = self.now.max(at);
                self.happen(due)?;
            }
        }
        self.settle()
    }

    /// No worker lives and none will: agents would try again for ever.
    fn is_dead(&self) -> bool {
        self.returns == 0 && self.machines.iter().all(|machine| machine.engine.is_none())
    }

    fn stalled(&self) -> SimError {
        SimError::Stalled {
            at_s: seconds(self.now),
            left: self.left,
            held: self
                .agents
                .iter()
                .filter(|agent| agent.step != 0 && !agent.dispatched)
                .count(),
        }
    }

    fn happen(&mut self, due: Due) -> Result<(), SimError> {
        match due {
            Due::Arrival(trajectory) => self.arrive(trajectory),
            Due::Boundary { worker, ask } => {
                let machine = &mut self.machines[worker];
                if machine.ask == ask
                    && let Some(engine) = &mut machine.engine
                {
                    engine.advance(seconds(self.now));
                    self.touched.push(worker);
                }
            }
            Due::Survey => self.survey(),
            Due::Report {
                worker,
                generation,
                running,
                waiting,
                kv_used,
            } => self.inbox.push_back(Event::LoadReport {
                worker: worker as WorkerId,
                generation,
                running,
                waiting,
                kv_used,
            }),
            Due::Network { ask } => {
                if ask == self.network_ask {
                    self.look_at_network();
                }
            }
            Due::Loss(worker) => {
                self.lose_worker(worker);
                self.replan_soon();
            }
            Due::Return(worker) => {
                self.returns -= 1;
                self.start_worker(worker);
                self.replan_soon();
            }
            Due::Question { again } => self.ask_planner(again)?,
            Due::Answer => self.take_answer(),
            Due::PlanOver(plan) => self.end_plan(plan),
        }
        if cfg!(debug_assertions) {
            self.audit()?;
        }
        Ok(())
    }

    fn audit(&self) -> Result<(), SimError> {
        let engines = self
            .machines
            .iter()
            .filter_map(|machine| machine.engine.as_ref());
        match engines.flat_map(Engine::audit).next() {
            Some(fault) => Err(SimError::Invariant(fault)),
            None => Ok(()),
        }
    }
}

/// Whether it can move a trajectory on.
fn moves_on(due: Due) -> bool {
    matches!(
        due,
        Due::Arrival(_)
            | Due::Boundary { .. }
            | Due::Network { .. }
            | Due::Loss(_)
            | Due::Return(_)
    )
}
