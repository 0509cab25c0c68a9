//! A step arrives while its trajectory's KV is on the way.
//!
//! It waits for a transfer that is nearly done when that is better than going on where the trajectory was; the placement
//! says which, asked with the rest of the transfer as the price of the target. Else the transfer is called off. A wait
//! is bounded by what was reckoned with: a transfer that turns out slower is called off then.

use crate::StepId;
use crate::machine::Core;
use crate::placement::{Ask, Carry, Scene};
use crate::step::{Step, StepState};
use crate::worker::WorkerState;

use super::{Asker, Move};

/// Least share of its expected time that a transfer still takes: one that is overdue is not done at once.
const LEAST_LEFT: f64 = 0.1;

impl Core {
    /// True when a step that was admitted waits for the transfer of its trajectory's KV. Otherwise nothing is on the way
    /// any more.
    pub(crate) fn waits_for_move(&mut self, id: StepId) -> bool {
        let Some(step) = self.steps.get(id) else {
            return false;
        };
        let trajectory = step.trajectory;
        let claim = self.trajectories.get(trajectory).and_then(|t| t.claim);
        let Some(claim) = claim.filter(|claim| claim.moving) else {
            return false;
        };
        let Some(one) = self.ledger.get(claim.migration).copied() else {
            return false;
        };
        let left_us = (one.left_us(self.now) as f64).max(LEAST_LEFT * one.expected_us as f64);
        if !self.is_worth_waiting(id, &one, left_us) {
            self.call_off_move_of(trajectory);
            return false;
        }
        self.ledger.note_wait(one.id);
        self.set_state(id, StepState::HeldMigration);
        let bound_us = (self.policy.move_margin * left_us).ceil() as u64 + 1;
        self.arm_hold(id, self.now, bound_us.div_ceil(1000));
        true
    }

    fn is_worth_waiting(&mut self, id: StepId, one: &Move, left_us: f64) -> bool {
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut memory = std::mem::take(&mut self.memory);
        let waits = self.steps.get(id).and_then(|step| {
            let trajectory = self.trajectories.get(step.trajectory)?;
            let target = self.workers.get(one.to.worker)?;
            let takes = |worker: &crate::worker::Worker| {
                worker.state == self.workers.usable_state() && !step.failed_on.contains(&worker.id)
            };
            if target.state == WorkerState::Down || !takes(target) || pinned_off(step, one) {
                return Some(false);
            }
            if one.asker == Asker::Operator {
                return Some(left_us <= target.belief.prefill_us(one.tokens));
            }
            candidates.clear();
            candidates.extend(
                self.workers
                    .iter()
                    .enumerate()
                    .filter_map(|(place, worker)| {
                        (one.touches(worker.id) && takes(worker)).then_some(place)
                    }),
            );
            let ask = Ask {
                carry: Carry::Arriving {
                    to: target.id,
                    left_us,
                },
                ..self.ask_for(trajectory, &step.chain)
            };
            let scene = Scene {
                candidates: &candidates,
                ..self.scene()
            };
            let choice = self
                .policy
                .placement
                .variant()
                .choose(&scene, &ask, &mut memory);
            Some(choice.worker == target.id)
        });
        self.candidates = candidates;
        self.memory = memory;
        waits.unwrap_or(false)
    }

    /// Lets steps on that waited for a transfer which is over.
    pub(crate) fn release_unmoved(&mut self) {
        for trajectory in std::mem::take(&mut self.unmoved) {
            let Some(trajectory) = self.trajectories.get(trajectory) else {
                continue;
            };
            let live = trajectory.live.clone();
            for &step in live.iter() {
                let waits = |step: &Step| step.state == StepState::HeldMigration;
                if self.steps.get(step).is_some_and(waits) {
                    self.admit(step);
                }
            }
        }
    }
}

/// The request asks for a worker that is not the target.
fn pinned_off(step: &Step, one: &Move) -> bool {
    step.pinned.is_some_and(|pinned| pinned != one.to.worker)
}
