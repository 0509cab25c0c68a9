//! Tool gaps: when they begin and end, when a trajectory in one becomes dormant, and when it expires.
//!
//! No end signal can be relied on. A trajectory that stays away for longer than gaps usually last is dormant: taken for
//! ended in the statistics, out of the rankings, its KV given to others. All of that is taken back when it returns.
//!
//! Invariant: a trajectory is in its gap when it has no open step, and then its gap timer is armed.

use crate::action::ExpireReason;
use crate::machine::Core;
use crate::{Micros, StepId, TrajectoryId};

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
        let limit = if trajectory.ranked && !trajectory.expected {
            self.first_gap_limit()
        } else {
            self.idle_ttl()
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

    fn first_gap_limit(&self) -> u64 {
        self.estimator
            .dormant_after(&self.policy)
            .min(self.idle_ttl())
    }

    fn idle_ttl(&self) -> u64 {
        self.policy.idle_ttl_ms.saturating_mul(1000)
    }

    /// A trajectory's gap timer fired: it becomes dormant, expires, or is looked at again later.
    pub(crate) fn gap_expired(&mut self, id: TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else {
            return;
        };
        trajectory.gap_timer = None;
        // One that was announced is waited for as long as any idle one is remembered.
        let (ranked, Some(since)) = (
            trajectory.ranked && !trajectory.expected,
            trajectory.gap_since,
        ) else {
            return;
        };
        let expires = since.saturating_add(self.idle_ttl());
        if self.now >= expires {
            self.expire(id, ExpireReason::Idle);
            return;
        }
        let dormant = since.saturating_add(self.first_gap_limit());
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
    }
}
