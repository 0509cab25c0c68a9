//! Which request is which step of which trajectory.
//!
//! [`Book`] is all that identity remembers. The rules of the untagged are in `matching.rs`, in the order in which
//! they are tried; that of a request which names its trajectory is `turns::place`. A request is told by its
//! [`heddle_wire::Scan`] alone: hashes of its history, never its text.
//!
//! Invariants: no I/O, no clock (time is an argument, monotonic seconds), no randomness (ids come from the
//! caller); `resolve` decides and changes nothing, `step_started` makes it so; memory is bounded.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod attempt;
mod book;
mod claim;
mod conversation;
mod evidence;
mod history;
mod holders;
mod index;
mod matching;
mod memory;
mod past;
mod prompts;
mod repeats;
mod resuming;
mod turns;

pub use attempt::Attempt;
pub use book::{Book, BookError, Limits};
pub use claim::{Claim, Identity, Request, Told, Verdict};
pub use history::History;
pub use past::Past;
pub use resuming::Under;
