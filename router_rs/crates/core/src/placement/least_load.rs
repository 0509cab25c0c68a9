//! The worker with the fewest steps for its slots, step by step.

use super::{Ask, Choice, Memory, Placement, Scene, by_load, least_candidate};

pub(super) struct LeastLoad;

impl Placement for LeastLoad {
    fn choose(&self, scene: &Scene<'_>, _: &Ask<'_>, _: &mut Memory) -> Choice {
        Choice::new(least_candidate(scene, by_load(scene)), "least_load")
    }
}
