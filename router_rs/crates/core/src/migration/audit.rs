//! The ledger, computed again from trajectories, steps and workers.

use std::collections::BTreeMap;

use crate::machine::Core;
use crate::step::StepState;
use crate::{MigrationId, WorkerId};

use super::{Asker, Move, MoveState};

impl Core {
    /// What does not hold of the moves; empty when all is well.
    pub(crate) fn audit_moves(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut ends: BTreeMap<WorkerId, u32> = BTreeMap::new();
        let mut incoming: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for one in self.ledger.iter() {
            for fault in self.faults_of(one) {
                faults.push(format!("migration {}: {fault}", one.id));
            }
            if one.state != MoveState::Requested {
                *ends.entry(one.from.worker).or_default() += 1;
                *ends.entry(one.to.worker).or_default() += 1;
                *incoming.entry(one.to.worker).or_default() += one.reserved;
            }
        }
        for (worker, transfers) in ends {
            if transfers > 1 {
                faults.push(format!("worker {worker}: in {transfers} transfers at once"));
            }
        }
        for worker in self.workers.iter() {
            let expected = incoming.get(&worker.id).copied().unwrap_or(0);
            if worker.incoming != expected {
                faults.push(format!(
                    "worker {}: {} KV tokens set aside, {expected} on the way",
                    worker.id, worker.incoming
                ));
            }
        }
        for id in self.trajectories.sorted_ids() {
            let Some(trajectory) = self.trajectories.get(id) else {
                continue;
            };
            let claimed = trajectory.claim.map(|claim| claim.migration);
            if claimed.is_some_and(|migration| !self.claims(migration, id)) {
                faults.push(format!("trajectory {id}: claimed by no move of its own"));
            }
            let waits = trajectory.tally.count(StepState::HeldMigration) > 0;
            if waits && trajectory.claim.is_none_or(|claim| !claim.moving) {
                faults.push(format!("trajectory {id}: a step waits for no transfer"));
            }
        }
        if !self.ledger.is_consistent() {
            faults.push("migrations: the indices differ".into());
        }
        if !(self.unmoved.is_empty() && self.reconsidered.is_empty()) || self.links_freed {
            faults.push("migrations: not settled".into());
        }
        faults
    }

    fn claims(&self, migration: MigrationId, trajectory: u64) -> bool {
        self.ledger
            .get(migration)
            .is_some_and(|one| one.trajectory == trajectory)
    }

    fn faults_of(&self, one: &Move) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |holds: bool, what: &str| {
            if !holds {
                faults.push(what.to_owned());
            }
        };
        let timer = self.timers.moves.at(one.id).is_some();
        let lives = |home: crate::trajectory::Home| {
            self.workers
                .get(home.worker)
                .is_some_and(|worker| worker.life == home.life)
        };
        check(one.from.worker != one.to.worker, "goes nowhere");
        check(
            lives(one.from) && lives(one.to),
            "has outlived one of its workers",
        );
        let trajectory = self.trajectories.get(one.trajectory);
        let claim = trajectory.and_then(|t| t.claim);
        let claimed = claim.is_some_and(|claim| claim.migration == one.id);
        match one.state {
            MoveState::Requested => {
                check(claimed, "its trajectory does not know of it");
                check(claim.is_some_and(|claim| !claim.moving), "moves unbegun");
                check(
                    timer == (one.asker == Asker::Operator),
                    "a request with the wrong timer",
                );
                let waits = self.paused
                    || self.ledger.is_busy(one.from.worker)
                    || self.ledger.is_busy(one.to.worker)
                    || trajectory.is_some_and(|t| t.gap_since.is_none());
                check(waits, "waits for nothing");
            }
            MoveState::Moving => {
                check(claimed, "its trajectory does not know of it");
                check(claim.is_some_and(|claim| claim.moving), "moves unclaimed");
                check(
                    trajectory.is_some_and(|t| t.home == Some(one.from)),
                    "moves what is not at its source",
                );
                let runs = [
                    StepState::HeldAdmission,
                    StepState::HeldSlot,
                    StepState::HeldNoWorker,
                    StepState::Dispatched,
                    StepState::Streaming,
                    StepState::Withdrawn,
                ];
                let under_way = |state| trajectory.is_some_and(|t| t.tally.count(state) > 0);
                check(!runs.into_iter().any(under_way), "moves under a live step");
                check(timer, "has no bound");
            }
            MoveState::Cancelling => {
                check(!claimed, "is called off and claims its trajectory");
                check(timer, "has no bound");
            }
            _ => check(false, "has ended and is kept"),
        }
        faults
    }
}
