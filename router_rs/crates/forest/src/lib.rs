//! Regression forests as `LightGBM` writes them, evaluated a batch at a time.
//!
//! The length predictor asks its trees in every tool gap, so a batch must not take milliseconds. Sums are
//! made in `LightGBM`'s order: a prediction is the same to the last bit.
//!
//! Only what the predictor grows is read: one output, least squares, numerical splits. Anything else is
//! refused by name rather than evaluated wrongly.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod forest;
mod lightgbm;

pub use forest::{Forest, RowsError};
pub use lightgbm::ModelError;
