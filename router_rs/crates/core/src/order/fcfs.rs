//! First come, first served, by step: what engines do by themselves.

use super::{Candidate, Order};

pub(super) struct Fcfs;

impl Order for Fcfs {
    fn measure(&self, _: &Candidate) -> u64 {
        0
    }

    fn level(&self, _: &Candidate, _: u8) -> u8 {
        0
    }

    fn may_starve(&self) -> bool {
        false
    }
}
