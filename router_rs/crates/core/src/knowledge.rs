//! Keeping up what is known of lengths: estimates, rankings, homes and the KV they stand for.
//!
//! Every change of a trajectory's estimate, home or footprint goes through here, so the rankings cannot drift from it.
//! Estimates are renewed by a trajectory's own events only; what an ended sibling teaches reaches the others with their
//! next step. That bounds the work per event.

use crate::estimate::{LogNormal, Prediction, Progress};
use crate::event::EventError;
use crate::machine::Core;
use crate::trajectory::{Home, Phase, Trajectory};
use crate::worker::Worker;
use crate::{GroupId, TrajectoryId, WorkerId};

impl Core {
    /// The worker that a trajectory is at home on, if that life of the worker still lasts.
    pub(crate) fn home_of(&self, trajectory: &Trajectory) -> Option<&Worker> {
        self.workers.home(trajectory.home)
    }

    /// KV tokens that a trajectory needs.
    pub(crate) fn footprint(&self, trajectory: &Trajectory) -> u64 {
        trajectory.footprint(self.estimator.expected_answer())
    }

    /// The trajectory of an arriving step, made known if it is new, and back among the active ones.
    pub(crate) fn greet(&mut self, id: TrajectoryId, group: Option<GroupId>) {
        if !self.trajectories.contains(id) {
            self.trajectories.insert(id, Trajectory::new(id, group));
            self.phases[Phase::Created as usize] += 1;
            if let Some(group) = group {
                self.groups.join(group);
            }
        }
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        // The group may be learned later than the first step.
        if let (None, Some(group)) = (trajectory.group, group) {
            trajectory.group = Some(group);
            self.groups.join(group);
        }
        // The wait for the first step of one that was announced is no tool gap.
        let announced = std::mem::take(&mut trajectory.expected);
        self.estimator
            .step_arrived(trajectory.phase != Phase::Created && !announced);
        if let Some(since) = trajectory.gap_since {
            self.set_gap(id, None);
            if !announced {
                self.estimator.gap_seen(self.now.saturating_sub(since));
            }
        }
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        let verdict = trajectory.verdict.take();
        if let Some(tokens) = trajectory.counted_as.take() {
            self.estimator.trajectory_returned(tokens);
            if let Some(group) = trajectory
                .group
                .and_then(|group| self.groups.get_mut(group))
            {
                group.ended.take_back(tokens as f64);
                group.lessons += 1;
            }
            self.weigh_predictions(|core| {
                if let Some(verdict) = verdict {
                    core.trust.take_back(verdict);
                }
            });
        }
        // Its own progress was taken in when its last step ended; siblings may have ended since.
        let taught = self.lessons(id);
        if self
            .trajectories
            .get(id)
            .is_some_and(|t| !t.ranked || t.lessons != taught)
        {
            self.renew_estimate(id);
        }
        self.rank(id);
    }

    /// Ended siblings of a trajectory.
    fn lessons(&self, id: TrajectoryId) -> u64 {
        let group = self
            .trajectories
            .get(id)
            .and_then(|t| t.group)
            .and_then(|group| self.groups.get(group));
        group.map_or(0, |group| group.lessons)
    }

    /// Puts a trajectory among the active ones.
    pub(crate) fn rank(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        if trajectory.ranked {
            return;
        }
        trajectory.ranked = true;
        self.active.insert(id, trajectory.remaining);
        self.enter_home(id);
    }

    /// Takes a trajectory out of the active ones; it keeps its home, but is not counted there.
    pub(crate) fn unrank(&mut self, id: TrajectoryId) {
        self.leave_home(id);
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        if trajectory.ranked {
            trajectory.ranked = false;
            self.active.remove(id, trajectory.remaining);
        }
    }

    /// Renews the estimate of what is still to come, and the places that depend on it.
    pub(crate) fn renew_estimate(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        let group = trajectory.group.and_then(|group| self.groups.get(group));
        let progress = Progress {
            generated: trajectory.generated,
            steps: trajectory.steps,
            prediction: trajectory.prediction.filter(|_| self.trust.holds()),
            siblings: group.map(|group| &group.ended),
        };
        trajectory.lessons = group.map_or(0, |group| group.lessons);
        let new = self.estimator.remaining(&self.policy, &progress);
        let old = std::mem::replace(&mut trajectory.remaining, new);
        if trajectory.ranked && old != new {
            self.active.update(id, old, new);
            if let Some(worker) = self.workers.home_mut(trajectory.home) {
                worker.homed.update(id, old, new);
            }
        }
    }

    /// Gives a trajectory a home; counts a move when the old home still lives.
    pub(crate) fn settle_home(&mut self, id: TrajectoryId, worker: WorkerId) {
        let Some(trajectory) = self.trajectories.get(id) else {
            return;
        };
        let Some(life) = self.workers.get(worker).map(|worker| worker.life) else {
            return;
        };
        let home = Home { worker, life };
        if trajectory.home == Some(home) {
            return;
        }
        if self.home_of(trajectory).is_some() {
            self.counters.moves += 1;
        }
        self.rehome(id, home);
    }

    /// Takes a trajectory from its home to another, where nothing of it is known to be.
    pub(crate) fn rehome(&mut self, id: TrajectoryId, home: Home) {
        self.leave_home(id);
        if let Some(trajectory) = self.trajectories.get_mut(id) {
            trajectory.home = Some(home);
            trajectory.resident_tokens = 0;
            trajectory.moved = None;
        }
        self.enter_home(id);
    }

    /// Takes its home from a trajectory: what of its KV lies there may go.
    pub(crate) fn set_aside(&mut self, id: TrajectoryId) {
        self.leave_home(id);
        if let Some(trajectory) = self.trajectories.get_mut(id) {
            trajectory.home = None;
            trajectory.resident_tokens = 0;
            trajectory.moved = None;
        }
        self.counters.set_aside += 1;
    }

    fn enter_home(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        if trajectory.ranked
            && let Some(worker) = self.workers.home_mut(trajectory.home)
        {
            let footprint = trajectory.footprint(self.estimator.expected_answer());
            worker.homed.insert(id, trajectory.remaining);
            worker.holders.insert(id, footprint);
            worker.idle += trajectory.idle_part(footprint);
            trajectory.committed = footprint;
        }
    }

    fn leave_home(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        if !trajectory.ranked {
            return;
        }
        let committed = std::mem::take(&mut trajectory.committed);
        if let Some(worker) = self.workers.home_mut(trajectory.home) {
            worker.homed.remove(id, trajectory.remaining);
            worker.holders.remove(id, committed);
            worker.idle -= trajectory.idle_part(committed);
        }
    }

    /// Counts the KV of a trajectory anew after its context changed.
    pub(crate) fn renew_footprint(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        if trajectory.ranked
            && let Some(worker) = self.workers.home_mut(trajectory.home)
        {
            let new = trajectory.footprint(self.estimator.expected_answer());
            let old = std::mem::replace(&mut trajectory.committed, new);
            if old != new {
                worker.holders.update(id, old, new);
                worker.idle = worker.idle - trajectory.idle_part(old) + trajectory.idle_part(new);
            }
        }
    }

    /// A predictor's word: ranks the trajectory and its held steps anew.
    pub(crate) fn predicted(
        &mut self,
        id: TrajectoryId,
        mean: f64,
        sigma: f64,
        gap_us: Option<u64>,
    ) -> Result<(), EventError> {
        Prediction::check(mean, sigma)?;
        let trajectory = self
            .trajectories
            .get_mut(id)
            .ok_or(EventError::UnknownTrajectory(id))?;
        trajectory.gap_expected = gap_us;
        if trajectory.foretold.is_none() {
            let whole = (trajectory.generated as f64 + mean) as f32;
            trajectory.foretold = Some(whole);
            self.trust.foretold(id, whole);
        }
        trajectory.prediction = Some(Prediction {
            length: LogNormal::with_mean(mean.max(1.0), sigma),
            generated: trajectory.generated,
            steps: trajectory.steps,
        });
        self.renew_estimate(id);
        self.rekey_held(id);
        self.reconsider(id);
        Ok(())
    }

    /// The prediction of a trajectory that is in force.
    pub(crate) fn prediction_of(&self, trajectory: &Trajectory) -> Option<Prediction> {
        let holds = |said: &Prediction| said.holds_at(trajectory.steps, &self.policy);
        trajectory
            .prediction
            .filter(|said| self.trust.holds() && holds(said))
    }

    /// Takes in what is learned of predictions; when they come into use or out of it, held steps are ranked anew.
    pub(crate) fn weigh_predictions(&mut self, learn: impl FnOnce(&mut Self)) {
        let held = self.trust.holds();
        learn(self);
        if self.trust.holds() != held {
            for step in self.steps.sorted_ids() {
                self.requeue(step);
            }
        }
    }

    /// A trajectory is over, as far as can be told: what was foretold of it is held against what was foretold of others.
    pub(crate) fn judge_prediction(&mut self, id: TrajectoryId) {
        let ended = self.trajectories.get(id);
        let Some((foretold, length)) = ended.and_then(|t| Some((t.foretold?, t.generated))) else {
            return;
        };
        self.weigh_predictions(|core| {
            let generated = |other| core.trajectories.get(other).map(|t| t.generated);
            let verdict = core.trust.ended(id, foretold, length, generated);
            if let Some(trajectory) = core.trajectories.get_mut(id) {
                trajectory.verdict = verdict;
            }
        });
    }

    /// Puts the held steps of a trajectory where they belong now.
    pub(crate) fn rekey_held(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get(id) else {
            return;
        };
        if trajectory.tally.held() == 0 {
            return;
        }
        let live = trajectory.live.clone();
        for &step in live.iter() {
            self.requeue(step);
        }
    }
}
