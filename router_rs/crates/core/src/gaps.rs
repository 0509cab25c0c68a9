//! Tool gaps: when they begin and end, when a trajectory in one becomes dormant, and when it expires.
//!
//! No end signal can be relied on. A trajectory that stays away for longer than gaps usually last is dormant: taken for
//! ended in the statistics, out of the rankings, its KV given to others. All of that is taken back when it returns. One that
//! was announced leaves the rankings as well, later, and is remembered for longer: agents of a batch take turns, and a batch
//! may take days.
//!
//! Invariant: a trajectory is in its gap when it has no open step, and then its gap timer is armed.

use crate::action::ExpireReason;
use crate::machine::Core;
use crate::trajectory::Trajectory;
use crate::{Micros, StepId, TrajectoryId};

/// How long one that was announced stays in the rankings without a step. A trainer that has died leaves such behind.
const ANNOUNCED_RANKED: Micros = 30 * 60 * 1_000_000;
/// Idle TTLs after which one that was announced, and never came, is forgotten.
const ANNOUNCED_TTLS: u64 = 12;

impl Core {
    /// Begins the tool gap of the step's trajectory when it was the last open one.
    pub(crate) fn note_gap_of(&mut self, step: StepId) {
        if let Some(id) = self.steps.get(step).map(|step| step.trajectory) {
            self.note_gap(id);
        }
    }

    /// Begins the tool gap of a trajectory without an open step.
    pub(crate) fn note_gap(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        if trajectory.tally.open() > 0 || trajectory.gap_since.is_some() {
            return;
        }
        self.set_gap(id, Some(self.now));
        self.bound_gap(id);
        self.reconsider(id);
    }

    /// Begins or ends a tool gap, and counts the trajectory's KV as idle or not.
    pub(crate) fn set_gap(&mut self, id: TrajectoryId, since: Option<Micros>) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        let counted = trajectory.committed;
        let was = trajectory.idle_part(counted);
        trajectory.gap_since = since;
        if trajectory.ranked
            && let Some(worker) = self.workers.home_mut(trajectory.home)
        {
            worker.idle = worker.idle - was + trajectory.idle_part(counted);
        }
    }

    /// Sees to it that a trajectory in its gap is looked at in time.
    pub(crate) fn bound_gap(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get(id) else {
            return;
        };
        let Some(since) = trajectory.gap_since else {
            return;
        };
        let limit = if trajectory.ranked {
            self.ranked_gap(trajectory)
        } else {
            self.remembered(trajectory)
        };
        // The timer is left armed while steps run and looks again when it fires; only one that is too late is moved.
        let at = since.saturating_add(limit);
        if trajectory.gap_timer.is_none_or(|armed| armed > at) {
            self.arm_gap(id, at);
        }
    }

    fn arm_gap(&mut self, id: TrajectoryId, at: Micros) {
        if let Some(trajectory) = self.trajectories.get_mut(id) {
            self.timers
                .gaps
                .set(id, &mut trajectory.gap_timer, Some(at));
        }
    }

    /// How long a trajectory without an open step stays in the rankings.
    fn ranked_gap(&self, trajectory: &Trajectory) -> Micros {
        let limit = if trajectory.expected {
            ANNOUNCED_RANKED
        } else {
            self.estimator.dormant_after(&self.policy)
        };
        limit.min(self.policy.idle_ttl_ms.saturating_mul(1000))
    }

    /// How long a trajectory without an open step is known.
    pub(crate) fn remembered(&self, trajectory: &Trajectory) -> Micros {
        let ttls = if trajectory.expected {
            ANNOUNCED_TTLS
        } else {
            1
        };
        self.policy.idle_ttl_ms.saturating_mul(1000 * ttls)
    }

    /// A trajectory's gap timer fired: it becomes dormant, expires, or is looked at again later.
    pub(crate) fn gap_expired(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        trajectory.gap_timer = None;
        let (ranked, Some(since)) = (trajectory.ranked, trajectory.gap_since) else {
            return;
        };
        let Some(trajectory) = self.trajectories.get(id) else {
            return;
        };
        let expires = since.saturating_add(self.remembered(trajectory));
        if self.now >= expires {
            self.expire(id, ExpireReason::Idle);
            return;
        }
        let dormant = since.saturating_add(self.ranked_gap(trajectory));
        if ranked && self.now < dormant {
            self.arm_gap(id, dormant);
            return;
        }
        if ranked {
            self.count_as_ended(id);
            self.unrank(id);
        }
        self.arm_gap(id, expires);
    }

    /// Takes a trajectory for ended in the statistics of lengths. Taken back if it returns.
    pub(crate) fn count_as_ended(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        if trajectory.counted_as.is_some() || trajectory.generated == 0 {
            return;
        }
        let tokens = trajectory.generated;
        trajectory.counted_as = Some(tokens);
        self.estimator.trajectory_ended(tokens);
        if let Some(group) = trajectory
            .group
            .and_then(|group| self.groups.get_mut(group))
        {
            group.ended.add(tokens as f64);
            group.lessons += 1;
        }
        self.judge_prediction(id);
    }
}
