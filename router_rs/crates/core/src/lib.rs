//! Heddle decision core.
pub mod solver;
