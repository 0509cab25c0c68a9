//! Binding of the `core` crate. Converts and decides nothing. The interface is described in `_native.pyi`.

mod actions;
mod calls;
mod core;
mod views;

use heddle_core::policy::Policy;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Adds this binding's classes to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    actions::register(m)?;
    m.add_class::<core::PyCore>()?;
    m.add_function(wrap_pyfunction!(replay, m)?)
}

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pyfunction]
#[pyo3(signature = (journal, policy_json=None))]
fn replay<'py>(
    py: Python<'py>,
    journal: &[u8],
    policy_json: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let policy = policy_json
        .map(Policy::from_json)
        .transpose()
        .map_err(value_error)?;
    let result = py
        .detach(|| heddle_core::replay::replay(journal, policy))
        .map_err(value_error)?;
    let dict = PyDict::new(py);
    dict.set_item("events", result.events)?;
    dict.set_item("actions", result.actions)?;
    dict.set_item("digest", result.digest)?;
    let stats = PyDict::new(py);
    for (name, value) in result.stats {
        stats.set_item(name, value)?;
    }
    dict.set_item("stats", stats)?;
    Ok(dict)
}
