//! Late binding: a step is held before placement until some worker has a free slot, in the order of the policy.

use super::{Admission, Applicant};
use crate::worker::Worker;

pub(super) struct Slots;

impl Admission for Slots {
    fn passes(&self, _: &Applicant) -> bool {
        false
    }

    fn fits(&self, worker: &Worker, applicant: &Applicant) -> bool {
        worker.has_free_slot(applicant.backlog)
    }
}
