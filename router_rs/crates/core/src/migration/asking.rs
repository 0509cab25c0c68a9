//! A person wants a trajectory's KV on another worker.

use crate::event::EventError;
use crate::machine::Core;
use crate::trajectory::Trajectory;
use crate::worker::WorkerState;
use crate::{Micros, TrajectoryId, WorkerId};

use super::{Asker, MoveState};

impl Core {
    /// A person wants a move. It is refused if it cannot be; else it begins in the trajectory's tool gap.
    pub(crate) fn migration_asked(
        &mut self,
        id: TrajectoryId,
        to: WorkerId,
        within_us: Option<Micros>,
    ) -> Result<(), EventError> {
        if within_us == Some(0) {
            return Err(EventError::BadField {
                field: "within_us",
                why: "must be above 0".to_owned(),
            });
        }
        let trajectory = self
            .trajectories
            .get(id)
            .ok_or(EventError::UnknownTrajectory(id))?;
        let claim = trajectory.claim;
        self.check_asked(trajectory, to)
            .map_err(|(field, why)| EventError::BadField { field, why })?;
        if let Some(claim) = claim {
            self.end_move(claim.migration, MoveState::Cancelled);
        }
        self.request_move(id, to, Asker::Operator, within_us);
        Ok(())
    }

    fn check_asked(
        &self,
        trajectory: &Trajectory,
        to: WorkerId,
    ) -> Result<(), (&'static str, String)> {
        let of_trajectory = |why: &str| Err(("trajectory", why.to_owned()));
        if let Some(claim) = trajectory.claim.filter(|claim| claim.moving) {
            let why = format!("is being moved by migration {}", claim.migration);
            return Err(("trajectory", why));
        }
        let Some(home) = self.home_of(trajectory) else {
            return of_trajectory("has no KV on a living worker");
        };
        if trajectory.finishing {
            return of_trajectory("ends with its live steps");
        }
        if trajectory.gap_since.is_some() && self.resident_tokens(trajectory) == 0 {
            return of_trajectory("has no KV that is known of on its worker");
        }
        let Some(target) = self
            .workers
            .get(to)
            .filter(|w| w.state != WorkerState::Down)
        else {
            return Err(("to", format!("there is no living worker {to}")));
        };
        let why = if target.id == home.id {
            "is where the trajectory is".to_owned()
        } else if target.state != self.workers.usable_state() {
            "is draining".to_owned()
        } else if home.link.is_none() {
            format!("worker {} cannot send KV", home.id)
        } else if target.link.is_none() {
            "cannot receive KV".to_owned()
        } else if target.weights != home.weights {
            "runs other weights than the trajectory's worker".to_owned()
        } else {
            return Ok(());
        };
        Err(("to", why))
    }
}
