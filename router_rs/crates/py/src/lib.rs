//! Python bindings: converts and decides nothing.
use pyo3::prelude::*;

mod core_binding;
mod forest_binding;
mod history_binding;
mod http_binding;
mod identity_binding;
mod progress_binding;
mod sim_binding;
mod solver_binding;
mod wire_binding;

/// The native module behind `heddle_core`.
#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("DEBUG_BUILD", cfg!(debug_assertions))?;
    core_binding::register(m)?;
    forest_binding::register(m)?;
    history_binding::register(m)?;
    wire_binding::register(m)?;
    http_binding::register(m)?;
    identity_binding::register(m)?;
    progress_binding::register(m)?;
    sim_binding::register(m)?;
    solver_binding::register(m)?;
    Ok(())
}
