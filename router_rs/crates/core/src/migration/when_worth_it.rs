//! The placement's own choice, asked with what a transfer costs instead of what computing the context again costs: the
//! part of the transfer that the tool gap does not hide, times the policy's margin. So the same comparison of gain and
//! cost, with the same hysteresis, decides about a move with KV and about one without.
//!
//! A transfer that takes longer than computing the context again is never made.

use super::{Memory, Migration, Outlook};
use crate::WorkerId;
use crate::placement::Placement;

pub(super) struct WhenWorthIt;

impl Migration for WhenWorthIt {
    fn moves(&self, placement: &dyn Placement) -> bool {
        placement.moves_homes()
    }

    fn target(&self, outlook: &Outlook<'_>, memory: &mut Memory) -> Option<WorkerId> {
        let Outlook {
            scene,
            ask,
            home,
            placement,
        } = *outlook;
        let choice = placement.choose(scene, ask, memory);
        let target = scene.candidate_with_id(choice.worker)?;
        if target.id == home.id {
            return None;
        }
        let transfer_us = home.transfer_us(target, ask.resident_tokens)?;
        let again_us = target.belief.prefill_us(ask.resident_tokens);
        (transfer_us <= again_us).then_some(target.id)
    }
}
