//! Progressive priority scheduling, paper section 4 and Algorithm 1: the trajectory with the longest predicted remaining
//! length is next; every prediction ranks its held steps anew, and a held step that outranks a running one clearly makes
//! the engine put that one aside.

use super::{Candidate, Order};
use crate::priority::level_of;

pub(super) struct LongestFirst;

impl Order for LongestFirst {
    fn measure(&self, candidate: &Candidate) -> u64 {
        u64::MAX - candidate.remaining
    }

    fn level(&self, candidate: &Candidate, levels: u8) -> u8 {
        level_of(candidate.remaining, levels)
    }

    fn may_starve(&self) -> bool {
        true
    }

    fn preempts(&self) -> bool {
        true
    }
}
