//! Binding of `progress`: steps in, rows of numbers out. Converts and decides nothing.

use std::borrow::Cow;

use heddle_progress as progress;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString, PyTuple};

/// Adds this binding's classes and constants to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Siblings>()?;
    m.add_class::<Progress>()?;
    m.add_class::<Bag>()?;
    m.add_class::<RecentText>()?;
    m.add_function(wrap_pyfunction!(weigh, m)?)?;
    m.add("FEATURES", PyTuple::new(m.py(), progress::names())?)?;
    m.add("WORD_BUCKETS", progress::BUCKETS)
}

/// A count from Python, where a number has no bound: what no trajectory reaches is the most there is.
struct Count(i64);

impl<'py> FromPyObject<'_, 'py> for Count {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract() {
            Ok(count) => Ok(Self(count)),
            Err(_) => Ok(Self(object.extract::<f64>()? as i64)),
        }
    }
}

/// See `_native.pyi`.
#[pyclass(frozen, module = "heddle_core")]
struct Siblings(progress::Siblings);

#[pymethods]
impl Siblings {
    #[new]
    fn new(finished: Vec<(Count, Count)>) -> Self {
        let all = finished
            .into_iter()
            .map(|(output_tokens, steps)| progress::Sibling {
                output_tokens: output_tokens.0,
                steps: steps.0,
            });
        Self(progress::Siblings::new(all.collect()))
    }

    fn __len__(&self) -> usize {
        self.0.all().len()
    }

    #[getter]
    fn finished(&self) -> Vec<(i64, i64)> {
        let all = self.0.all().iter();
        all.map(|one| (one.output_tokens, one.steps)).collect()
    }

    #[getter]
    fn log_moments(&self) -> (f64, f64, f64) {
        self.0.log_moments()
    }
}

/// See `_native.pyi`.
#[pyclass(module = "heddle_core")]
struct Progress(progress::Progress);

type Moment<'py> = (
    i64,
    i64,
    Bound<'py, PyByteArray>,
    Option<Bag>,
    Option<Bag>,
    Option<RecentText>,
);

#[pymethods]
impl Progress {
    #[new]
    fn new(prompt_tokens: Count, prompt_text: Option<Bound<'_, PyString>>) -> Self {
        let text = lossy(prompt_text.as_ref());
        Self(progress::Progress::new(prompt_tokens.0, text.as_deref()))
    }

    #[getter]
    fn steps(&self) -> i64 {
        self.0.steps()
    }

    #[getter]
    fn done_tokens(&self) -> i64 {
        self.0.done_tokens()
    }

    #[allow(
        clippy::too_many_arguments,
        clippy::needless_pass_by_value,
        reason = "what a step is; arguments are converted from Python"
    )]
    fn observe(
        &mut self,
        output_tokens: Count,
        input_tokens: Count,
        tools: Vec<Bound<'_, PyString>>,
        seconds: Option<f64>,
        gap_before_s: Option<f64>,
        error_before: Option<bool>,
        observation: Option<Bound<'_, PyString>>,
        text: Option<Bound<'_, PyString>>,
        compacted: bool,
    ) {
        let tools: Vec<_> = tools.iter().map(|tool| tool.to_string_lossy()).collect();
        let tools: Vec<&str> = tools.iter().map(Cow::as_ref).collect();
        self.0.observe(&progress::Step {
            output_tokens: output_tokens.0,
            input_tokens: input_tokens.0,
            tools: &tools,
            seconds,
            gap_before_s,
            error_before,
            observation: lossy(observation.as_ref()).as_deref(),
            text: lossy(text.as_ref()).as_deref(),
            compacted,
        });
    }

    fn moment<'py>(&self, py: Python<'py>, siblings: &Siblings) -> PyResult<Moment<'py>> {
        let mut row = Vec::with_capacity(128);
        self.0.numbers(&siblings.0, &mut row);
        let bytes = PyByteArray::new_with(py, size_of_val(row.as_slice()), |bytes| {
            let places = bytes.chunks_exact_mut(size_of::<f64>());
            for (place, number) in places.zip(row) {
                place.copy_from_slice(&number.to_ne_bytes());
            }
            Ok(())
        })?;
        Ok((
            self.0.steps(),
            self.0.done_tokens(),
            bytes,
            self.0.words().map(Bag),
            self.0.said().map(Bag),
            self.0.recent_text().map(RecentText),
        ))
    }
}

/// See `_native.pyi`.
#[pyclass(frozen, module = "heddle_core")]
struct Bag(progress::Bag);

#[pymethods]
impl Bag {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn buckets<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let buckets = self.0.buckets().into_iter();
        let bytes: Vec<u8> = buckets.flat_map(u16::to_ne_bytes).collect();
        PyBytes::new(py, &bytes)
    }
}

#[pyfunction]
#[allow(
    clippy::needless_pass_by_value,
    reason = "arguments are converted from Python"
)]
fn weigh(py: Python<'_>, bags: Vec<Option<Py<Bag>>>, weights: PyBuffer<f64>) -> PyResult<Vec<f64>> {
    let weights: Box<[f64; progress::BUCKETS]> =
        weights.to_vec(py)?.try_into().map_err(|found: Vec<f64>| {
            let (wanted, found) = (progress::BUCKETS, found.len());
            PyValueError::new_err(format!("weights: must be {wanted} numbers, not {found}"))
        })?;
    let said = bags.iter().map(|bag| match bag {
        Some(bag) => bag.get().0.weigh(&weights),
        None => 0.0,
    });
    Ok(said.collect())
}

/// See `_native.pyi`.
#[pyclass(frozen, module = "heddle_core")]
struct RecentText(progress::RecentText);

#[pymethods]
impl RecentText {
    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

/// A text of Python's, half surrogates replaced.
fn lossy<'a>(text: Option<&'a Bound<'_, PyString>>) -> Option<Cow<'a, str>> {
    text.map(|text| text.to_string_lossy())
}
