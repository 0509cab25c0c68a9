//! Binding of `forest`: a model's text in, numbers of a batch out. Converts and decides nothing; the GIL is
//! free while the trees are asked.

use heddle_forest::Forest as Grown;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Adds this binding's classes to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Forest>()
}

/// See `_native.pyi`.
#[pyclass(frozen, module = "heddle_core")]
struct Forest(Grown);

#[pymethods]
impl Forest {
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        let grown = text.parse().map_err(wrong)?;
        Ok(Self(grown))
    }

    #[getter]
    fn features(&self) -> usize {
        self.0.features()
    }

    #[getter]
    fn trees(&self) -> usize {
        self.0.trees()
    }

    #[allow(
        clippy::needless_pass_by_value,
        reason = "arguments are converted from Python"
    )]
    fn predict(&self, py: Python<'_>, rows: PyBuffer<f64>) -> PyResult<Vec<f64>> {
        let features = self.0.features();
        if !matches!(rows.shape(), [_, width] if *width == features) {
            return Err(wrong(format!(
                "rows: must be of shape (n, {features}), not {:?}",
                rows.shape()
            )));
        }
        let rows = rows.to_vec(py)?;
        py.detach(|| self.0.predict(&rows)).map_err(wrong)
    }
}

fn wrong(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}
