//! Placement of a step: which workers may take it at all, the choice among them, and the home that follows from it.

use crate::action::RejectReason;
use crate::fleet::Place;
use crate::kv_room::{Gaps, KvRule};
use crate::machine::Core;
use crate::placement::{Ask, Carry, Choice, Memory, Scene};
use crate::step::{Step, StepState};
use crate::trajectory::Trajectory;
use crate::worker::WorkerState;
use crate::{StepId, WorkerId};

impl Core {
    /// Holds a step for a worker to come, or rejects it.
    pub(crate) fn no_worker(&mut self, id: StepId) {
        let wait = self.policy.worker_wait_ms.saturating_mul(1000);
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let since = step.arrived_at;
        if since.saturating_add(wait) <= self.now {
            self.reject(id, RejectReason::NoWorker);
            return;
        }
        self.unplaced.insert(id);
        self.set_state(id, StepState::HeldNoWorker);
        self.arm_hold(id, since, self.policy.worker_wait_ms);
    }

    /// Chooses a worker for a step and sends it there, or queues it there.
    pub(crate) fn place(&mut self, id: StepId) {
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut memory = std::mem::take(&mut self.memory);
        let choice = self.choose(id, &mut candidates, &mut memory);
        self.candidates = candidates;
        self.memory = memory;
        match choice {
            Some(choice) => {
                self.give_home(id, choice.worker);
                self.enqueue(id, choice);
            }
            None => self.no_worker(id),
        }
    }

    fn choose(
        &self,
        id: StepId,
        candidates: &mut Vec<Place>,
        memory: &mut Memory,
    ) -> Option<Choice> {
        let step = self.steps.get(id)?;
        let trajectory = self.trajectories.get(step.trajectory)?;
        if let Some(worker) = step.pinned.and_then(|pinned| self.workers.get(pinned))
            && worker.state != WorkerState::Down
            && (step.bound || !step.failed_on.contains(&worker.id))
        {
            return Some(Choice {
                worker: worker.id,
                reason: "pinned",
            });
        }
        if step.bound {
            return None;
        }
        // The best class that is not empty: fresh, then failed before, then suspect, then both.
        candidates.clear();
        let takers = self.workers.takers();
        if step.failed_on.is_empty() && self.workers.are_all_trusted(self.now) {
            candidates.extend_from_slice(takers);
        } else {
            let mut best = u8::MAX;
            for &place in takers {
                let worker = self.workers.at(place);
                let suspect = u8::from(self.now < worker.suspect_until);
                let class = 2 * suspect + u8::from(step.failed_on.contains(&worker.id));
                if class < best {
                    best = class;
                    candidates.clear();
                }
                if class == best {
                    candidates.push(place);
                }
            }
        }
        let ask = self.ask(step, trajectory);
        let applicant = self.applicant(trajectory);
        if !applicant.admitted {
            let rule = self.policy.admission.variant();
            let fits = |place: &Place| self.fits_at(*place, &applicant);
            if candidates.iter().any(fits) {
                candidates.retain(fits);
            } else {
                let fullness = |place: Place| rule.fullness(self.workers.at(place), &applicant);
                let full = candidates
                    .iter()
                    .filter_map(|&place| fullness(place).map(|share| (share, place)));
                if let Some((_, least)) = full.min_by(|a, b| a.0.total_cmp(&b.0)) {
                    candidates.clear();
                    candidates.push(least);
                }
            }
        }
        if candidates.is_empty() {
            return None;
        }
        let scene = Scene {
            candidates,
            ..self.scene()
        };
        Some(self.policy.placement.variant().choose(&scene, &ask, memory))
    }

    pub(crate) fn kv_rule(&self) -> KvRule {
        KvRule {
            headroom: self.policy.kv_headroom,
            return_share: self.estimator.return_share(),
            growth_share: self.policy.kv_growth_share,
            growth_per_output: self.estimator.growth_per_output(),
            gaps: self.estimator.gap_lengths().map(|lengths| Gaps {
                lengths,
                most_us: self.estimator.dormant_after(&self.policy) as f64,
            }),
            recompute_weight: self.policy.recompute_weight,
        }
    }

    pub(crate) fn scene(&self) -> Scene<'_> {
        Scene {
            now: self.now,
            workers: &self.workers,
            candidates: &[],
            active: &self.active,
            plan: self.plan.as_ref(),
            policy: &self.policy,
            kv: self.kv_rule(),
            duty: self.estimator.duty(),
            step_tokens: self.estimator.step_tokens(),
        }
    }

    pub(crate) fn ask<'a>(&'a self, step: &'a Step, trajectory: &Trajectory) -> Ask<'a> {
        self.ask_for(trajectory, &step.chain)
    }

    /// What a placement is asked about a trajectory, with the prompt's hash chain.
    pub(crate) fn ask_for<'a>(&'a self, trajectory: &Trajectory, chain: &'a [u64]) -> Ask<'a> {
        let group = trajectory.group.and_then(|group| self.groups.get(group));
        Ask {
            trajectory: trajectory.id,
            remaining: trajectory.remaining,
            home: self
                .home_of(trajectory)
                .and_then(|worker| self.workers.place_of(worker.id)),
            resident_tokens: self.resident_tokens(trajectory),
            footprint: self.footprint(trajectory),
            sibling_home: group.and_then(|group| group.last_home),
            informed: !self.is_blank(trajectory),
            foretold: self.prediction_of(trajectory).is_some(),
            chain,
            carry: Carry::Recompute,
        }
    }

    /// Nothing is known of a trajectory that is not known of its siblings.
    fn is_blank(&self, trajectory: &Trajectory) -> bool {
        trajectory.generated == 0 && (trajectory.prediction.is_none() || !self.trust.holds())
    }

    pub(crate) fn give_home(&mut self, id: StepId, worker: WorkerId) {
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let Some(trajectory) = self.trajectories.get(step.trajectory) else {
            return;
        };
        let blank = self.is_blank(trajectory);
        let (id, group) = (trajectory.id, trajectory.group);
        if blank && let Some(group) = group.and_then(|group| self.groups.get_mut(group)) {
            group.last_home = Some(worker);
        }
        self.settle_home(id, worker);
    }
}
