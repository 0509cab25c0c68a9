//! Heddle's simulator: the same decision core as the gateway's, driving a modelled cluster in discrete events.
//!
//! What the core believes of a worker and what the worker does are two objects: [`heddle_core::belief`] and [`Costs`].
//! So a run can ask what happens when the truth is slower, the reports are stale or the predictions are wrong.
//!
//! [`workload`] says what agents ask for, [`engine`] what a worker does with it (SGLang's scheduler, after the emulated
//! worker of `heddle_shim.emulator`), [`network`] what moving KV takes, [`cluster`] joins both to the core, [`report`] says what came of it. Times are
//! seconds inside the engine, so that a segment's closed form is exact, and the core's microseconds outside.
//!
//! Invariants: a run is a function of workload and spec, seeds included; every token asked for is generated exactly
//! once, whatever is preempted, retracted or lost on the way.

pub mod bound;
pub mod cluster;
pub mod costs;
pub mod draw;
pub mod engine;
pub mod kv;
pub mod network;
pub mod prediction;
pub mod report;
pub mod segment;
pub mod spec;
pub mod workload;

pub use cluster::{Run, SimError, simulate, simulate_replanned};
pub use costs::Costs;
pub use report::Report;
pub use spec::Spec;
pub use workload::{Script, Turn, Workload, WorkloadError};
