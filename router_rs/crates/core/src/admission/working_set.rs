//! Trajectories are admitted, not requests: each holds its context and its expected growth through its tool gaps.
//!
//! Longest first, because the longest decide the makespan. A trajectory that was let in is never held again: taking
//! its KV away in mid-run costs more than the room it gives.

use super::{Admission, Applicant};
use crate::worker::Worker;

pub(super) struct WorkingSet;

impl Admission for WorkingSet {
    fn passes(&self, applicant: &Applicant) -> bool {
        applicant.admitted || applicant.fits_nowhere
    }

    fn fits(&self, worker: &Worker, applicant: &Applicant) -> bool {
        worker.has_room(applicant.footprint, &applicant.kv)
    }

    fn longest_first(&self) -> bool {
        true
    }
}
