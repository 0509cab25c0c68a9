//! Trajectories that are announced before their first step.
//!
//! A rollout starts all its agents at once, and each first step is placed when it arrives. By rank among those that have
//! arrived so far, the first one would be the longest of all, whatever it is. Announced ones are ranked from the start.
//!
//! Invariant: an announced trajectory is in its gap, with its gap timer armed, until its first step; one that does not
//! come leaves the ranking, and much later is forgotten (`gaps.rs`).

use crate::estimate::Prediction;
use crate::event::EventError;
use crate::machine::Core;
use crate::trajectory::{Phase, Trajectory};
use crate::{GroupId, TrajectoryId};

impl Core {
    /// Ranks a trajectory of which nothing but a prediction is known.
    pub(crate) fn trajectory_expected(
        &mut self,
        id: TrajectoryId,
        group: Option<GroupId>,
        mean: f64,
        sigma: f64,
    ) -> Result<(), EventError> {
        if self.trajectories.contains(id) {
            return self.predicted(id, mean, sigma, None);
        }
        Prediction::check(mean, sigma)?;
        let mut trajectory = Trajectory::new(id, group);
        trajectory.expected = true;
        self.trajectories.insert(id, trajectory);
        self.phases[Phase::Created as usize] += 1;
        if let Some(group) = group {
            self.groups.join(group);
        }
        self.set_phase(id, Phase::InToolGap);
        self.predicted(id, mean, sigma, None)?;
        self.rank(id);
        self.note_gap(id);
        Ok(())
    }
}
