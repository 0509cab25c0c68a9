//! The paper's rule (section 5.3): sizes of the partition scale with the number of active trajectories, the new rank
//! falls into a worker's share, and that worker is the target. Nothing is weighed; only room is looked at.

use super::{Memory, Migration, Outlook};
use crate::WorkerId;
use crate::placement::rank_target;

pub(super) struct OnRankChange;

impl Migration for OnRankChange {
    fn target(&self, outlook: &Outlook<'_>, _: &mut Memory) -> Option<WorkerId> {
        let target = rank_target(outlook.scene, outlook.ask)?;
        let room = target.has_room(
            outlook.ask.footprint,
            outlook.ask.remaining,
            &outlook.scene.kv,
        );
        (target.id != outlook.home.id && room).then_some(target.id)
    }
}
