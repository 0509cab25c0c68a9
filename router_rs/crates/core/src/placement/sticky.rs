//! The worker that the trajectory began on; it begins where the fewest trajectories are for the slots.

use super::{Ask, Choice, Memory, Placement, Scene, least_assigned};
use crate::WorkerId;

pub(super) struct Sticky;

impl Placement for Sticky {
    fn choose(
        &self,
        scene: &Scene<'_>,
        ask: &Ask<'_>,
        candidates: &[WorkerId],
        _: &mut Memory,
    ) -> Choice {
        match ask.home {
            Some(home) if candidates.binary_search(&home).is_ok() => Choice {
                worker: home,
                reason: "home",
            },
            _ => Choice {
                worker: least_assigned(scene, candidates),
                reason: "least_assigned",
            },
        }
    }
}
