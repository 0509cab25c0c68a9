//! The worker with the fewest steps for its slots, step by step.

use super::{Ask, Choice, Memory, Placement, Scene, least_loaded};
use crate::WorkerId;

pub(super) struct LeastLoad;

impl Placement for LeastLoad {
    fn choose(
        &self,
        scene: &Scene<'_>,
        _: &Ask<'_>,
        candidates: &[WorkerId],
        _: &mut Memory,
    ) -> Choice {
        Choice {
            worker: least_loaded(scene, candidates),
            reason: "least_load",
        }
    }
}
