//! An event handed in, and the actions that it causes handed out.

use heddle_core::Event;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::actions::to_python;
use super::core::PyCore;
use super::value_error;

/// A list of actions, or the event that was refused.
pub type Actions = PyResult<Py<PyList>>;

/// The hash chain of a scanned request; whatever offers `chain()` will do.
pub fn chain_of(body: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    body.call_method0(pyo3::intern!(body.py(), "chain"))?
        .extract()
}

impl PyCore {
    pub(super) fn handle(&mut self, py: Python<'_>, now: u64, event: Event) -> Actions {
        let taken = self.core.handle(now, event);
        let actions = self.drain(py)?;
        taken.map_err(value_error)?;
        Ok(actions)
    }

    pub(super) fn drain(&mut self, py: Python<'_>) -> Actions {
        let actions = PyList::empty(py);
        while let Some(action) = self.core.poll_action() {
            actions.append(to_python(py, action)?)?;
        }
        Ok(actions.unbind())
    }
}
