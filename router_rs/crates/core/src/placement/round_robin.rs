//! Workers take turns, step by step, whatever they have to do.

use super::{Ask, Choice, Memory, Placement, Scene};

pub(super) struct RoundRobin;

impl Placement for RoundRobin {
    fn choose(&self, scene: &Scene<'_>, _: &Ask<'_>, memory: &mut Memory) -> Choice {
        let had_its_turn = |id| memory.last_turn.is_some_and(|last| id <= last);
        let next = scene
            .candidates
            .partition_point(|&place| had_its_turn(scene.workers.at(place).id));
        let place = scene.candidates.get(next).unwrap_or(&scene.candidates[0]);
        let worker = scene.workers.at(*place);
        memory.last_turn = Some(worker.id);
        Choice::new(worker, "turn")
    }
}
