//! Trajectories are admitted, not requests: each holds its context through its tool gaps.
//!
//! Newcomers are let in longest first, while their context and a share of what all are expected to grow to fits. What
//! outgrows the KV all the same would evict each other at every step, so that every step computes its whole context again.
//! Then as few as will do are set aside, at their next step and until there is room: those with most KV, because each
//! costs one computation of its context, and fewer have to go. Where the KV fits, nobody waits. Of the KV in tool gaps
//! only what is worth holding counts as taken (`kv_room.rs`), and that keeps newcomers off an idle engine for no longer
//! than it would take to compute it again.
//!
//! Who has waited as long as it may is let in where there is least too little room, and has no other privilege: others are
//! set aside in its place, or it is again. Sent where the placement likes it, and never set aside again, those that had
//! waited came to lie on one worker, which then computed every context anew at every step.

use super::{Admission, Applicant};
use crate::Micros;
use crate::worker::Worker;

pub(super) struct WorkingSet;

impl Admission for WorkingSet {
    fn passes(&self, applicant: &Applicant) -> bool {
        applicant.admitted || applicant.fits_nowhere
    }

    fn fits(&self, worker: &Worker, applicant: &Applicant) -> bool {
        worker.has_room(applicant.footprint, applicant.remaining, &applicant.kv)
    }

    fn gives_way_at(&self, worker: &Worker, applicant: &Applicant) -> Option<Micros> {
        worker.gives_way_at(applicant.footprint, &applicant.kv)
    }

    fn fullness(&self, worker: &Worker, applicant: &Applicant) -> Option<f64> {
        Some(worker.fullness_with(applicant.footprint, &applicant.kv))
    }

    fn sets_aside(&self, home: &Worker, larger: u64, applicant: &Applicant) -> bool {
        home.homed.len() > 1 && (larger as f64) < home.overflow(&applicant.kv)
    }

    fn longest_first(&self) -> bool {
        true
    }
}
