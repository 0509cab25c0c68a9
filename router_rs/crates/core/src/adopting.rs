//! Steps that another process sent to their workers, and that are decided about here from now on.
//!
//! Invariant: nothing is sent for them. One whose worker is not known here has no seat; it is as if it had been
//! withdrawn, except that nobody is told to cancel it.

use std::cmp::Reverse;

use crate::event::{EventError, StepAdopted, StepArrived};
use crate::machine::Core;
use crate::step::{Attempt, StepState};
use crate::worker::{Seat, WorkerState};

impl Core {
    pub(crate) fn step_adopted(&mut self, adopted: &StepAdopted) -> Result<(), EventError> {
        let id = adopted.step;
        self.take_in(StepArrived {
            step: id,
            trajectory: adopted.trajectory,
            group: adopted.group,
            prompt_tokens: adopted.prompt_tokens,
            ..StepArrived::default()
        })?;
        self.counters.adopted += 1;
        // It runs where it runs: KV that is on its way elsewhere comes too late.
        self.call_off_move_of(adopted.trajectory);
        let worker = adopted.worker;
        let level = adopted
            .level
            .min(self.policy.priority_levels.saturating_sub(1));
        let seated = self
            .workers
            .get(worker)
            .is_some_and(|at| at.generation == adopted.generation && at.state != WorkerState::Down);
        self.dispatches += 1;
        let seq = self.dispatches;
        let mut batch = 1;
        if seated {
            self.give_home(id, worker);
            if let Some(at) = self.workers.get_mut(worker) {
                at.seat(Seat {
                    level,
                    seq: Reverse(seq),
                    step: id,
                });
                batch = (at.seats() as u32).min(at.slots);
            }
        }
        let dispatched_at = self.now.saturating_sub(adopted.running_us);
        if let Some(step) = self.steps.get_mut(id) {
            step.reason = "adopted";
            step.attempts = 1;
            step.attempt = Some(Attempt {
                worker,
                generation: adopted.generation,
                level,
                seq,
                dispatched_at,
                first_byte_at: adopted.streaming.then_some(self.now),
                batch,
                // What else ran beside it is not known: its times say nothing about the worker.
                disturbed: true,
                put_aside: false,
                seated,
            });
        }
        if let Some(trajectory) = self.trajectories.get_mut(adopted.trajectory) {
            trajectory.turns += 1;
        }
        self.set_state(id, StepState::Dispatched);
        if !seated {
            self.set_state(id, StepState::Withdrawn);
        } else if adopted.streaming {
            self.set_state(id, StepState::Streaming);
        }
        Ok(())
    }
}
