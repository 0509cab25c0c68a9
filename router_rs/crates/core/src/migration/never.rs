//! KV stays where it was computed. A trajectory that is placed elsewhere computes its context again.

use super::{Memory, Migration, Outlook};
use crate::WorkerId;
use crate::placement::Placement;

pub(super) struct Never;

impl Migration for Never {
    fn moves(&self, _: &dyn Placement) -> bool {
        false
    }

    fn target(&self, _: &Outlook<'_>, _: &mut Memory) -> Option<WorkerId> {
        None
    }
}
