//! Binding of the `core` crate.
use pyo3::prelude::*;

/// Adds this binding's classes to the module.
pub fn register(_m: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
