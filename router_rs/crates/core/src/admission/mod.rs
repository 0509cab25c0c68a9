//! Who may hold a worker's slots and KV at all: one file a variant, one table.
//!
//! Held steps wait in one queue over all workers; only its head is asked, so a long trajectory is not passed for ever
//! by small ones that still fit. The wait is bounded by `max_hold_ms`.

mod slots;
mod unlimited;
mod working_set;

use serde::{Deserialize, Serialize};

use crate::Micros;
use crate::kv_room::KvRule;
use crate::worker::Worker;

/// The variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionKind {
    /// Every step is placed when it arrives.
    Unlimited,
    /// A step is placed when some worker has a free slot.
    Slots,
    /// A trajectory is placed when its KV fits beside those already admitted.
    WorkingSet,
}

impl AdmissionKind {
    /// The variant behind the name.
    pub const fn variant(self) -> &'static dyn Admission {
        match self {
            Self::Unlimited => &unlimited::Unlimited,
            Self::Slots => &slots::Slots,
            Self::WorkingSet => &working_set::WorkingSet,
        }
    }
}

/// What an admission may look at.
#[derive(Debug, Clone, Copy)]
pub struct Applicant {
    /// The trajectory was let in before and still holds its KV.
    pub admitted: bool,
    /// KV tokens that it needs: context and expected answer.
    pub footprint: u64,
    /// Output tokens that it still has to come.
    pub remaining: u64,
    /// Its context alone is more than any usable worker has: waiting gains nothing, and the engine says so itself.
    pub fits_nowhere: bool,
    /// Steps beyond the slots that a worker may be given.
    pub backlog: u32,
    /// How KV is given out.
    pub kv: KvRule,
}

/// A rule of admission.
pub trait Admission: Sync {
    /// The step need not ask.
    fn passes(&self, applicant: &Applicant) -> bool;

    /// `worker` could take it.
    fn fits(&self, worker: &Worker, applicant: &Applicant) -> bool;

    /// When `worker`, which runs nothing, takes it although it does not fit; none where it never does.
    fn gives_way_at(&self, _worker: &Worker, _applicant: &Applicant) -> Option<Micros> {
        None
    }

    /// How full `worker` would be with it, 1 being full. A step that has waited as long as it may goes where this is least,
    /// whatever the placement; none where the placement may choose all the same.
    fn fullness(&self, _worker: &Worker, _applicant: &Applicant) -> Option<f64> {
        None
    }

    /// A trajectory at home on a worker is set aside at its next step; `larger` KV tokens of the worker are held by
    /// trajectories that hold more than this one.
    fn sets_aside(&self, _home: &Worker, _larger: u64, _applicant: &Applicant) -> bool {
        false
    }

    /// Held steps go by remaining length, whatever the order on the workers is.
    fn longest_first(&self) -> bool {
        false
    }
}
