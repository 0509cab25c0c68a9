//! Trajectories take turns: the one that had the fewest turns is next, then by arrival.
//!
//! A turn is a step that was given a worker. Newcomers catch up with those that run for long.

use super::{Candidate, Order};

pub(super) struct RoundRobin;

impl Order for RoundRobin {
    fn measure(&self, candidate: &Candidate) -> u64 {
        candidate.turns
    }

    fn level(&self, _: &Candidate, _: u8) -> u8 {
        0
    }

    fn may_starve(&self) -> bool {
        true
    }
}
