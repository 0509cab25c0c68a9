//! Heddle's decision core: when a step runs, where, and at which priority.
//!
//! A state machine without I/O, clock, threads or randomness. [`Core::handle`] takes an event, [`Core::poll_action`]
//! gives what is to be done, [`Core::poll_timeout`] says when to call [`Core::handle_timeout`]. The gateway drives it
//! with real time, the simulator with modelled time; the same events give the same actions.
//!
//! The way of a step: `pipeline` (arrival, admission), `placing`, `queue` (to dispatch), `ending`. Workers come and go in
//! `churn`. What is known of lengths is kept up in `knowledge`, tool gaps in `gaps`. Families of alternatives: [`order`],
//! [`placement`], [`admission`], [`migration`].

pub mod action;
pub mod admission;
mod adopting;
mod audit;
pub mod belief;
mod churn;
pub mod counters;
mod ending;
pub mod estimate;
pub mod event;
mod expected;
mod fleet;
mod gaps;
mod gathering;
mod group;
mod id_map;
pub mod journal;
mod knowledge;
pub mod kv_room;
pub mod lognormal;
mod machine;
pub mod migration;
pub mod order;
mod patience;
mod pipeline;
pub mod placement;
mod placing;
pub mod plan;
pub mod policy;
pub mod priority;
mod queue;
pub mod rank;
pub mod replay;
pub mod solver;
pub mod step;
mod timer;
pub mod trajectory;
mod trust;
pub mod view;
pub mod worker;

pub use action::Action;
pub use event::{Event, EventError};
pub use machine::Core;
pub use policy::Policy;

/// Microseconds of one monotonic clock.
pub type Micros = u64;
/// Handle of a step.
pub type StepId = u64;
/// Handle of a trajectory.
pub type TrajectoryId = u64;
/// Handle of a worker.
pub type WorkerId = u64;
/// Handle of a migration.
pub type MigrationId = u64;
/// Handle of a group.
pub type GroupId = u64;
