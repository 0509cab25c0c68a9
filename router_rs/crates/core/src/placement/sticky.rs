//! The worker that the trajectory began on; it begins where the fewest trajectories are for the slots.

use super::{Ask, Choice, Memory, Placement, Scene, by_assigned, least_candidate};

pub(super) struct Sticky;

impl Placement for Sticky {
    fn choose(&self, scene: &Scene<'_>, ask: &Ask<'_>, _: &mut Memory) -> Choice {
        match ask.home.and_then(|home| scene.candidate(home)) {
            Some(home) => Choice::new(home, "home"),
            None => Choice::new(least_candidate(scene, by_assigned), "least_assigned"),
        }
    }
}
