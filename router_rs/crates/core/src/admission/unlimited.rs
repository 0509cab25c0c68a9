//! No admission: every step is placed when it arrives.

use super::{Admission, Applicant};
use crate::worker::Worker;

pub(super) struct Unlimited;

impl Admission for Unlimited {
    fn passes(&self, _: &Applicant) -> bool {
        true
    }

    fn fits(&self, _: &Worker, _: &Applicant) -> bool {
        true
    }
}
