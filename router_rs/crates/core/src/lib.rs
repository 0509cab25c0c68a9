//! Heddle decision core.
