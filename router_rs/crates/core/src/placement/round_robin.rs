//! Workers take turns, step by step, whatever they have to do.

use super::{Ask, Choice, Memory, Placement, Scene};
use crate::WorkerId;

pub(super) struct RoundRobin;

impl Placement for RoundRobin {
    fn choose(
        &self,
        _: &Scene<'_>,
        _: &Ask<'_>,
        candidates: &[WorkerId],
        memory: &mut Memory,
    ) -> Choice {
        let next = memory
            .last_turn
            .map_or(0, |last| candidates.partition_point(|&id| id <= last));
        let worker = candidates.get(next).copied().unwrap_or(candidates[0]);
        memory.last_turn = Some(worker);
        Choice {
            worker,
            reason: "turn",
        }
    }
}
