//! How moves end, and what follows from it.

use crate::action::Action;
use crate::event::{MigrationFailure, StepEnded};
use crate::machine::Core;
use crate::step::StepState;
use crate::worker::WorkerState;
use crate::{MigrationId, TrajectoryId, WorkerId};

use super::{Asker, Move, MoveState};

/// Share of the moved tokens that the next step must find for the move to count as found: pages are moved whole, and the
/// last one of a context may not be full.
const FOUND: f64 = 0.5;

impl Core {
    /// The target has the KV: it is the trajectory's home from now on.
    pub(crate) fn migration_landed(&mut self, id: MigrationId, tokens: u64) {
        let Some(landed) = self.transfer(id) else {
            return;
        };
        if landed.state == MoveState::Cancelling {
            self.end_move(id, MoveState::Cancelled);
            return;
        }
        self.end_move(id, MoveState::Landed);
        self.learn_transfer(&landed, tokens);
        self.ledger.totals.tokens += tokens;
        self.rehome(landed.trajectory, landed.to);
        let weights = self.workers.get(landed.to.worker).map(|to| to.weights);
        if let Some(trajectory) = self.trajectories.get_mut(landed.trajectory) {
            trajectory.resident_tokens = tokens.min(trajectory.context_tokens);
            trajectory.resident_weights = weights.unwrap_or(0);
            trajectory.moved = Some(tokens);
            if trajectory.gap_since.is_some() && !landed.waited_for {
                self.ledger.totals.hidden += 1;
            }
        }
    }

    /// The transfer did not come about; the trajectory is where it was.
    pub(crate) fn migration_failed(&mut self, id: MigrationId, why: MigrationFailure) {
        let Some(failed) = self.transfer(id) else {
            return;
        };
        let end = match why {
            _ if failed.state == MoveState::Cancelling => MoveState::Cancelled,
            MigrationFailure::Cancelled => MoveState::Cancelled,
            MigrationFailure::Deadline => MoveState::Expired,
            _ => MoveState::Failed,
        };
        let blamed: &[WorkerId] = match why {
            MigrationFailure::Cancelled | MigrationFailure::Declined => &[],
            MigrationFailure::TargetFull => &[failed.to.worker],
            _ => &[failed.from.worker, failed.to.worker],
        };
        if failed.state == MoveState::Moving {
            self.blame(blamed);
        }
        self.end_move(id, end);
    }

    /// A request has waited, or a transfer has run, for as long as it may.
    pub(crate) fn move_expired(&mut self, id: MigrationId) {
        let Some(late) = self.ledger.get(id).copied() else {
            return;
        };
        if late.state == MoveState::Moving {
            self.learn_lateness(&late);
            self.blame(&[late.from.worker, late.to.worker]);
            self.tell_to_stop(&late);
        }
        self.end_move(id, MoveState::Expired);
    }

    /// A worker's life is over, and with it every move from and to it.
    pub(crate) fn end_moves_of(&mut self, worker: WorkerId) {
        let touched: Vec<Move> = self
            .ledger
            .iter()
            .filter(|one| one.touches(worker))
            .copied()
            .collect();
        for one in touched {
            let end = match one.state {
                MoveState::Requested => MoveState::Cancelled,
                _ => MoveState::Failed,
            };
            if one.state == MoveState::Moving {
                self.tell_to_stop(&one);
            }
            self.end_move(one.id, end);
        }
    }

    /// A worker runs other weights: what KV it holds is void, and so is what comes or goes.
    pub(crate) fn weights_updated(&mut self, id: WorkerId, generation: u64, weights: u64) {
        let Some(worker) = self.workers.get_mut(id) else {
            self.counters.stale_events += 1;
            return;
        };
        if worker.generation != generation || worker.state == WorkerState::Down {
            self.counters.stale_events += 1;
            return;
        }
        if worker.weights != weights {
            worker.weights = weights;
            self.call_off_moves_of(id);
        }
    }

    /// Calls off what a worker sends and receives; it goes on living.
    pub(crate) fn call_off_moves_of(&mut self, worker: WorkerId) {
        let touched: Vec<Move> = self
            .ledger
            .iter()
            .filter(|one| one.touches(worker))
            .copied()
            .collect();
        for one in touched {
            self.call_off(&one);
        }
    }

    /// A step arrives: what the policy wanted of its gap and has not begun is dropped; a person's request waits for the
    /// next gap.
    pub(crate) fn drop_request_of(&mut self, id: TrajectoryId) {
        let claim = self.trajectories.get(id).and_then(|t| t.claim);
        let request = claim.and_then(|claim| self.ledger.get(claim.migration));
        if let Some(request) = request
            && request.state == MoveState::Requested
            && request.asker == Asker::Policy
        {
            let id = request.id;
            self.end_move(id, MoveState::Cancelled);
        }
    }

    /// Takes back a trajectory's move: a request is dropped, a transfer is stopped and its workers stay busy until it has.
    pub(crate) fn call_off_move_of(&mut self, id: TrajectoryId) {
        let claim = self.trajectories.get(id).and_then(|t| t.claim);
        if let Some(one) = claim.and_then(|claim| self.ledger.get(claim.migration).copied()) {
            self.call_off(&one);
        }
    }

    fn call_off(&mut self, one: &Move) {
        match one.state {
            MoveState::Moving => {
                self.learn_lateness(one);
                self.tell_to_stop(one);
                self.ledger.call_off(one.id);
                self.unclaim(one.trajectory, one.id);
            }
            MoveState::Requested => self.end_move(one.id, MoveState::Cancelled),
            _ => {}
        }
    }

    fn tell_to_stop(&mut self, one: &Move) {
        self.actions.push_back(Action::CancelMigration {
            migration: one.id,
            trajectory: one.trajectory,
            from: one.from.worker,
            to: one.to.worker,
        });
    }

    /// A transfer that runs or is being stopped; anything else is counted as stale.
    fn transfer(&mut self, id: MigrationId) -> Option<Move> {
        let found = self
            .ledger
            .get(id)
            .filter(|one| one.state != MoveState::Requested)
            .copied();
        if found.is_none() {
            self.counters.stale_events += 1;
        }
        found
    }

    /// Takes a move out of the ledger and lets go of what it held.
    pub(super) fn end_move(&mut self, id: MigrationId, end: MoveState) {
        let Some(ended) = self.ledger.end(id, end) else {
            return;
        };
        if !ended.state.moves().contains(&end) && ended.state != MoveState::Cancelling {
            self.counters.illegal_moves += 1;
        }
        self.timers.moves.disarm(id);
        if ended.state != MoveState::Requested {
            self.links_freed = true;
            if let Some(target) = self.workers.get_mut(ended.to.worker)
                && target.life == ended.to.life
            {
                target.incoming = 0;
            }
        }
        self.unclaim(ended.trajectory, id);
    }

    /// A trajectory is free of a move; its steps that wait for it go on.
    fn unclaim(&mut self, id: TrajectoryId, migration: MigrationId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        if trajectory
            .claim
            .is_none_or(|claim| claim.migration != migration)
        {
            return;
        }
        trajectory.claim = None;
        let waits = trajectory.tally.count(StepState::HeldMigration) > 0;
        let phase = trajectory.phase_now();
        self.set_phase(id, phase);
        if waits {
            self.unmoved.push(id);
        }
    }

    fn blame(&mut self, workers: &[WorkerId]) {
        let now = self.now;
        for &id in workers {
            if let Some(link) = self.workers.get_mut(id).and_then(|w| w.link.as_mut()) {
                link.fault(now);
            }
        }
    }

    /// A transfer that is stopped late has taken at least so long. Without this, only the quick ones would be learned from:
    /// the slow ones are called off.
    fn learn_lateness(&mut self, one: &Move) {
        if self.now.saturating_sub(one.began_at) > one.expected_us {
            self.learn_transfer(one, one.tokens);
        }
    }

    /// The slower end held the transfer up: it is the one that is learned about.
    fn learn_transfer(&mut self, landed: &Move, tokens: u64) {
        let actual = self.now.saturating_sub(landed.began_at) as f64;
        let us = |id: WorkerId| self.workers.get(id).map_or(0.0, |w| w.link_us(tokens));
        let (from, to) = (us(landed.from.worker), us(landed.to.worker));
        for (id, own, other) in [(landed.from.worker, from, to), (landed.to.worker, to, from)] {
            if own >= other
                && let Some(worker) = self.workers.get_mut(id)
            {
                worker.learn_transfer(tokens, actual);
            }
        }
    }

    /// The first step after a move says whether the KV is there. The home is right either way: the step ran there.
    pub(crate) fn verify_move(&mut self, id: TrajectoryId, ran_on: WorkerId, ended: &StepEnded) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        let Some(moved) = trajectory.moved.take() else {
            return;
        };
        if trajectory.home.is_none_or(|home| home.worker != ran_on) {
            return;
        }
        let found = ended.cached_tokens as f64 >= FOUND * moved as f64;
        if found {
            self.ledger.totals.found += 1;
        } else {
            self.ledger.totals.not_found += 1;
        }
        let now = self.now;
        if let Some(link) = self.workers.get_mut(ran_on).and_then(|w| w.link.as_mut()) {
            if found {
                link.clear();
            } else {
                link.fault(now);
            }
        }
    }
}
