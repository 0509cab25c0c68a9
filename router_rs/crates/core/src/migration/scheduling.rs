//! Which moves are asked for, and when their transfers begin.
//!
//! A trajectory is looked at when its tool gap begins and when a prediction comes in the gap. What it asks for begins at
//! once if both workers are free; else it waits, and each transfer that ends lets the waiting ones be looked at again,
//! the longest trajectory first. Nothing begins under a live step.

use std::cmp::Reverse;

use crate::action::{Action, Migrate};
use crate::fleet::Place;
use crate::machine::Core;
use crate::placement::{Ask, Carry, Memory, Scene};
use crate::trajectory::{Home, Trajectory};
use crate::worker::Worker;
use crate::{Micros, MigrationId, TrajectoryId, WorkerId};

use super::{Asker, Claim, Migration, Move, MoveState, Outlook};

/// How long a person's request waits for a tool gap and for its workers.
const REQUEST_TTL: Micros = 60_000_000;
/// A transfer may take so many times as long as expected before it is given up.
const PATIENCE: f64 = 4.0;
/// Shortest time that a transfer is given.
const WITHIN_LEAST: Micros = 1_000_000;
/// Shortest time that a transfer is given which a person wants: it is not weighed against anything.
const WITHIN_LEAST_ASKED: Micros = 30_000_000;
/// Longest.
const WITHIN_MOST: Micros = 120_000_000;
/// How long the workers' own word on a missed deadline is waited for.
pub(super) const GRACE: Micros = 2_000_000;

/// What becomes of a request that is looked at.
enum Readiness {
    Begins,
    Waits,
    Lapses,
}

impl Core {
    /// Context tokens of a trajectory whose KV lies at home and is worth something there.
    pub(crate) fn resident_tokens(&self, trajectory: &Trajectory) -> u64 {
        match self.home_of(trajectory) {
            Some(home) if home.weights == trajectory.resident_weights => trajectory.resident_tokens,
            _ => 0,
        }
    }

    /// Looks at the trajectories whose gap began or whose estimate changed, and at requests whose workers came free.
    pub(crate) fn settle_moves(&mut self) {
        let mut list = std::mem::take(&mut self.reconsidered);
        for id in list.drain(..) {
            self.reconsider_move(id);
        }
        self.reconsidered = list;
        while std::mem::take(&mut self.links_freed) {
            let requests: Vec<MigrationId> = self.ledger.requests().collect();
            for id in requests {
                self.look_at_request(id);
            }
        }
    }

    /// Marks a trajectory in its gap for a look once the event has been taken in.
    pub(crate) fn reconsider(&mut self, id: TrajectoryId) {
        if self.workers.links() > 1 {
            self.reconsidered.push(id);
        }
    }

    /// Marks every trajectory in its gap, the longest first: where they belong has changed.
    pub(crate) fn reconsider_all(&mut self) {
        if self.workers.links() < 2 {
            return;
        }
        let mut in_gaps: Vec<(Reverse<u64>, TrajectoryId)> = Vec::new();
        for id in self.trajectories.sorted_ids() {
            if let Some(trajectory) = self.trajectories.get(id)
                && trajectory.gap_since.is_some()
                && trajectory.home.is_some()
            {
                in_gaps.push((Reverse(trajectory.remaining), id));
            }
        }
        in_gaps.sort_unstable();
        self.reconsidered
            .extend(in_gaps.into_iter().map(|(_, id)| id));
    }

    fn reconsider_move(&mut self, id: TrajectoryId) {
        let claim = self.trajectories.get(id).and_then(|t| t.claim);
        let request = match claim {
            Some(claim) if claim.moving => return,
            Some(claim) => self.ledger.get(claim.migration).copied(),
            None => None,
        };
        if let Some(request) = request.filter(|request| request.asker == Asker::Operator) {
            self.look_at_request(request.id);
            return;
        }
        let target = self.move_target(id);
        if let Some(request) = request {
            if target == Some(request.to.worker) {
                let remaining = self.trajectories.get(id).map_or(0, |t| t.remaining);
                self.ledger.rank_anew(request.id, remaining);
                return;
            }
            self.end_move(request.id, MoveState::Cancelled);
        }
        if let Some(to) = target {
            self.request_move(id, to, Asker::Policy, None);
        }
    }

    /// Where the policy wants the KV of a trajectory in its gap.
    fn move_target(&mut self, id: TrajectoryId) -> Option<WorkerId> {
        let rule = self.policy.migration.variant();
        let placement = self.policy.placement.variant();
        if self.workers.links() < 2 || !rule.moves(placement) {
            return None;
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut memory = std::mem::take(&mut self.memory);
        let target = self.find_target(id, rule, &mut candidates, &mut memory);
        self.candidates = candidates;
        self.memory = memory;
        target
    }

    fn find_target(
        &self,
        id: TrajectoryId,
        rule: &dyn Migration,
        candidates: &mut Vec<Place>,
        memory: &mut Memory,
    ) -> Option<WorkerId> {
        let trajectory = self.trajectories.get(id)?;
        let home = self.home_of(trajectory)?;
        let stays = trajectory.gap_since.is_none()
            || !trajectory.ranked
            || trajectory.finishing
            || self.resident_tokens(trajectory) == 0
            || !home.is_linked(self.now);
        if stays {
            return None;
        }
        let usable = self.workers.usable_state();
        candidates.clear();
        for (place, worker) in self.workers.iter().enumerate() {
            let is_candidate = worker.state == usable
                && (worker.id == home.id
                    || worker.is_linked(self.now) && worker.weights == home.weights);
            if is_candidate {
                candidates.push(place);
            }
        }
        let ask = Ask {
            carry: Carry::Transfer {
                gap_left_us: self.gap_left_us(trajectory),
            },
            ..self.ask_for(trajectory, &[])
        };
        let scene = Scene {
            candidates,
            ..self.scene()
        };
        if scene.candidates().all(|worker| worker.id == home.id) {
            return None;
        }
        let outlook = Outlook {
            scene: &scene,
            ask: &ask,
            home,
            placement: self.policy.placement.variant(),
        };
        rule.target(&outlook, memory)
    }

    /// Microseconds that a trajectory's tool gap is expected to last still: by its prediction, else by what is usual.
    fn gap_left_us(&self, trajectory: &Trajectory) -> f64 {
        let Some(since) = trajectory.gap_since else {
            return 0.0;
        };
        let usual = || self.estimator.usual_gap_us();
        let expected = trajectory.gap_expected.map_or_else(usual, |us| us as f64);
        (expected - self.now.saturating_sub(since) as f64).max(0.0)
    }

    /// Writes a move down and looks at it at once.
    pub(super) fn request_move(
        &mut self,
        id: TrajectoryId,
        to: WorkerId,
        asker: Asker,
        within_us: Option<Micros>,
    ) {
        let Some(trajectory) = self.trajectories.get(id) else {
            return;
        };
        let (Some(from), Some(target)) = (trajectory.home, self.workers.get(to)) else {
            return;
        };
        let wanted = Move {
            id: 0,
            trajectory: id,
            from,
            to: Home {
                worker: to,
                life: target.life,
            },
            tokens: self.resident_tokens(trajectory),
            remaining: trajectory.remaining,
            asker,
            within_us,
            state: MoveState::Requested,
            asked_at: self.now,
            began_at: 0,
            expected_us: 0,
            reserved: 0,
            waited_for: false,
        };
        let migration = self.ledger.request(wanted);
        if let Some(trajectory) = self.trajectories.get_mut(id) {
            trajectory.claim = Some(Claim {
                migration,
                moving: false,
            });
        }
        if asker == Asker::Operator {
            self.timers.moves.arm(migration, self.now + REQUEST_TTL);
        }
        match self.readiness(migration) {
            Readiness::Begins => self.begin_move(migration),
            Readiness::Waits => {}
            Readiness::Lapses => self.end_move(migration, MoveState::Cancelled),
        }
    }

    /// Begins a request, drops it, or leaves it where it waits.
    fn look_at_request(&mut self, id: MigrationId) {
        let Some(request) = self.ledger.get(id).copied() else {
            return;
        };
        if request.state != MoveState::Requested {
            return;
        }
        match self.readiness(id) {
            Readiness::Begins if request.asker == Asker::Policy => {
                // It has waited: what was worth it then may not be now.
                if self.move_target(request.trajectory) == Some(request.to.worker) {
                    self.begin_move(id);
                } else {
                    self.end_move(id, MoveState::Cancelled);
                }
            }
            Readiness::Begins => self.begin_move(id),
            Readiness::Waits => {}
            Readiness::Lapses => self.end_move(id, MoveState::Cancelled),
        }
    }

    fn readiness(&self, id: MigrationId) -> Readiness {
        let Some(request) = self.ledger.get(id) else {
            return Readiness::Lapses;
        };
        let Some(trajectory) = self.trajectories.get(request.trajectory) else {
            return Readiness::Lapses;
        };
        let by_policy = request.asker == Asker::Policy;
        let in_gap = trajectory.gap_since.is_some();
        let source = self
            .home_of(trajectory)
            .filter(|home| home.life == request.from.life);
        let target = self
            .workers
            .get(request.to.worker)
            .filter(|to| to.life == request.to.life && to.state == self.workers.usable_state());
        let (Some(source), Some(target)) = (source, target) else {
            return Readiness::Lapses;
        };
        let fits = |to: &Worker| to.has_room(request.tokens, 0, &self.kv_rule());
        let impossible = source.transfer_us(target, request.tokens).is_none()
            || by_policy && !(in_gap && fits(target))
            || in_gap && self.resident_tokens(trajectory) == 0;
        if impossible {
            Readiness::Lapses
        } else if self.paused
            || !in_gap
            || self.ledger.is_busy(source.id)
            || self.ledger.is_busy(target.id)
        {
            Readiness::Waits
        } else {
            Readiness::Begins
        }
    }

    fn begin_move(&mut self, id: MigrationId) {
        let Some(request) = self.ledger.get(id).copied() else {
            return;
        };
        let Some(trajectory) = self.trajectories.get(request.trajectory) else {
            return;
        };
        let tokens = self.resident_tokens(trajectory);
        let (Some(source), Some(target)) = (
            self.workers.get(request.from.worker),
            self.workers.get(request.to.worker),
        ) else {
            return;
        };
        let transfer_us = source.transfer_us(target, tokens).unwrap_or(0.0);
        let least = match request.asker {
            Asker::Policy => WITHIN_LEAST,
            Asker::Operator => WITHIN_LEAST_ASKED,
        };
        let within_us = request
            .within_us
            .unwrap_or_else(|| ((PATIENCE * transfer_us) as Micros).clamp(least, WITHIN_MOST));
        let worth_us = (request.asker == Asker::Policy)
            .then(|| (target.belief.prefill_us(tokens).ceil() as Micros).max(1));
        let action = Migrate {
            migration: id,
            trajectory: request.trajectory,
            from: source.id,
            from_generation: source.generation,
            to: target.id,
            to_generation: target.generation,
            tokens,
            within_us,
            worth_us,
        };
        self.ledger.begin(Move {
            tokens,
            reserved: tokens,
            began_at: self.now,
            expected_us: transfer_us.ceil() as Micros,
            ..request
        });
        if let Some(target) = self.workers.get_mut(request.to.worker) {
            target.incoming = tokens;
        }
        if let Some(trajectory) = self.trajectories.get_mut(request.trajectory) {
            trajectory.claim = Some(Claim {
                migration: id,
                moving: true,
            });
            let phase = trajectory.phase_now();
            self.set_phase(request.trajectory, phase);
        }
        self.timers.moves.arm(id, self.now + within_us + GRACE);
        self.actions.push_back(Action::Migrate(action));
    }
}
