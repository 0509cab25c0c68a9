//! What is known of a running trajectory, as numbers: what the length predictor learns from and is asked with.
//!
//! A `Progress` takes a trajectory's steps as they end and keeps running figures, not the steps: memory and
//! time a step do not grow with the trajectory. There is one way from steps to numbers, for training and for
//! serving; the gateway's planner goes it for hundreds of trajectories at once, in every tool gap.

mod bag;
mod cues;
mod names;
mod progress;
mod running;
mod siblings;
mod text;
mod tools;

pub use bag::{BUCKETS, Bag};
pub use cues::RecentText;
pub use names::names;
pub use progress::{Progress, Step};
pub use siblings::{Sibling, Siblings};
