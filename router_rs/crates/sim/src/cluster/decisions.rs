//! The core's side: it is told what happened, and what it wants is done.

use heddle_core::event::{FailureKind, Outcome};
use heddle_core::{Action, Event, StepId, WorkerId};

use super::{Cluster, Due, SimError, ended, seconds};
use crate::engine::Request;

impl Cluster<'_> {
    /// Tells the core what is in the inbox and carries out what it wants, until both are quiet; then asks the engines
    /// when to look at them next.
    pub(super) fn settle(&mut self) -> Result<(), SimError> {
        loop {
            while let Some(event) = self.inbox.pop_front() {
                self.core
                    .handle(self.now, event)
                    .map_err(|why| SimError::Refused {
                        at_s: seconds(self.now),
                        why,
                    })?;
                self.drain();
            }
            let Some(worker) = self.touched.pop() else {
                return Ok(());
            };
            self.look_at(worker);
        }
    }

    pub(super) fn drain(&mut self) {
        while let Some(action) = self.core.poll_action() {
            self.digest.add(&action);
            match action {
                Action::Dispatch(dispatch) => {
                    self.dispatch(dispatch.step, dispatch.worker as usize, dispatch.priority);
                }
                Action::Reject(reject) => {
                    // The agent tries again, as the SDK does, with a request that is a new step to the core.
                    let trajectory = self.owners[reject.step as usize];
                    self.inbox
                        .push_back(ended(reject.step, Outcome::Rejected, 0, 0, 0));
                    let at = self.now + reject.retry_after_ms * 1000;
                    self.schedule(at, Due::Arrival(trajectory));
                }
                Action::Withdraw {
                    step,
                    worker,
                    generation,
                } => {
                    self.traces[self.owners[step as usize]].lost_attempts += 1;
                    self.inbox.push_back(Event::AttemptFailed {
                        step,
                        worker,
                        generation,
                        kind: FailureKind::Unreachable,
                    });
                }
                Action::Migrate(migrate) => self.migrate(&migrate),
                Action::CancelMigration { migration, .. } => self.cancel_transfer(migration),
                Action::Expire { .. } => {}
            }
        }
        if self.spec.journal {
            self.journal.extend(self.core.take_journal());
        }
    }

    pub(super) fn dispatch(&mut self, step: StepId, worker: usize, priority: i64) {
        let trajectory = self.owners[step as usize];
        let script = &self.workload.scripts()[trajectory];
        let path = self.path_of(trajectory);
        let agent = &mut self.agents[trajectory];
        let now = seconds(self.now);
        if !agent.dispatched {
            agent.dispatched = true;
            let held = now - agent.arrived_at;
            let trace = &mut self.traces[trajectory];
            trace.held_s += held;
            trace.longest_hold_s = trace.longest_hold_s.max(held);
        }
        agent.worker = worker;
        let request = Request {
            step,
            path,
            prompt: agent.prompt,
            output: script.turns[agent.turn].output,
            most_output: self.spec.most_output.max(script.turns[agent.turn].output),
            priority,
        };
        let machine = &mut self.machines[worker];
        match &mut machine.engine {
            Some(engine) => {
                engine.submit(now, request);
                self.touched.push(worker);
            }
            None => self.inbox.push_back(Event::AttemptFailed {
                step,
                worker: worker as WorkerId,
                generation: machine.generation,
                kind: FailureKind::Unreachable,
            }),
        }
    }
}
