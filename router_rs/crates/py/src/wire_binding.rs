//! Binding of the `wire` crate: converts and decides nothing.

use heddle_wire as wire;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

/// Bodies above this size are read without the interpreter lock; below it, letting go costs more than reading.
const DETACH_ABOVE: usize = 64 * 1024;

/// Adds this binding's classes to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Scan>()?;
    m.add_class::<StreamTap>()?;
    m.add_class::<Answer>()?;
    m.add_function(wrap_pyfunction!(scan_body, m)?)?;
    m.add_function(wrap_pyfunction!(splice, m)?)?;
    m.add_function(wrap_pyfunction!(read_answer, m)?)?;
    Ok(())
}

fn dialect_of(name: &str) -> PyResult<wire::Dialect> {
    wire::Dialect::from_name(name)
        .ok_or_else(|| PyValueError::new_err(format!("unknown dialect {name:?}")))
}

fn value_error(error: wire::JsonError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn parcel_error(error: wire::ParcelError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Runs `read`, without the interpreter lock if `size` is worth it.
fn with_lock_by_size<T: Send>(py: Python<'_>, size: usize, read: impl FnOnce() -> T + Send) -> T {
    if size > DETACH_ABOVE {
        py.detach(read)
    } else {
        read()
    }
}

/// What one pass over a request body found.
#[pyclass(frozen, module = "heddle_core")]
pub struct Scan {
    pub(crate) inner: wire::Scan,
    body: Py<PyBytes>,
}

impl Scan {
    /// The bytes that were read.
    pub(crate) fn body<'py>(&'py self, py: Python<'py>) -> &'py [u8] {
        self.body.as_bytes(py)
    }
}

#[pymethods]
impl Scan {
    #[getter]
    fn dialect(&self) -> &'static str {
        self.inner.dialect.name()
    }

    #[getter]
    fn model(&self) -> Option<&str> {
        self.inner.model.as_deref()
    }

    #[getter]
    fn stream(&self) -> bool {
        self.inner.stream
    }

    #[getter]
    fn include_usage(&self) -> Option<bool> {
        self.inner.include_usage
    }

    #[getter]
    fn previous_response_id(&self) -> Option<&str> {
        self.inner.previous.as_deref()
    }

    #[getter]
    fn background(&self) -> bool {
        self.inner.background
    }

    #[getter]
    fn choices(&self) -> u64 {
        self.inner.choices
    }

    #[getter]
    fn max_tokens(&self) -> Option<u64> {
        self.inner.max_tokens
    }

    #[getter]
    fn prompt_tokens(&self) -> u64 {
        self.inner.prompt_tokens
    }

    #[getter]
    fn messages(&self) -> usize {
        self.inner.roles.len()
    }

    #[getter]
    fn assistant_turns(&self) -> usize {
        self.inner
            .roles
            .iter()
            .filter(|role| **role == wire::Role::Assistant)
            .count()
    }

    #[getter]
    fn unit(&self) -> &'static str {
        match self.inner.unit() {
            wire::Unit::Messages => "messages",
            wire::Unit::Bytes => "bytes",
            wire::Unit::Tokens => "tokens",
            wire::Unit::Opaque => "opaque",
        }
    }

    #[getter]
    fn history_length(&self) -> usize {
        self.inner.history_length()
    }

    #[getter]
    fn head(&self) -> u64 {
        self.inner.head()
    }

    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for (path, value) in &self.inner.fields {
            fields.set_item(path, value)?;
        }
        Ok(fields)
    }

    fn chain(&self) -> Vec<u64> {
        self.inner.chain.clone()
    }

    fn message_hashes(&self) -> Vec<u64> {
        self.inner.message_hashes.clone()
    }

    fn roles<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyString>> {
        self.inner
            .roles
            .iter()
            .map(|role| PyString::intern(py, role.name()))
            .collect()
    }

    fn assistant_positions(&self) -> Vec<usize> {
        let roles = self.inner.roles.iter().enumerate();
        roles
            .filter(|(_, role)| **role == wire::Role::Assistant)
            .map(|(at, _)| at)
            .collect()
    }

    fn last_answer(&self) -> Option<(u64, u64)> {
        self.inner.last_answer()
    }

    fn call_ids(&self) -> Vec<u64> {
        self.inner.call_ids.clone()
    }

    fn anchors(&self, py: Python<'_>) -> Vec<u64> {
        self.inner.anchors_in(self.body.as_bytes(py))
    }

    fn prefix_hash(&self, length: usize) -> Option<u64> {
        self.inner.prefix_hash(length)
    }

    fn span_hash(&self, start: usize, length: usize) -> Option<u64> {
        self.inner.span_hash(start, length)
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let body = self.body.as_bytes(py);
        let bytes = with_lock_by_size(py, body.len(), || self.inner.to_bytes(body));
        PyBytes::new(py, &bytes)
    }

    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let inner = with_lock_by_size(py, data.len(), || wire::Scan::from_bytes(data));
        Ok(Self {
            inner: inner.map_err(parcel_error)?,
            body: PyBytes::new(py, b"").unbind(),
        })
    }

    #[classattr]
    const TEXT_BLOCK: usize = wire::TEXT_BLOCK;

    #[classattr]
    const TOKEN_BLOCK: usize = wire::TOKEN_BLOCK;
}

#[pyfunction]
fn scan_body(py: Python<'_>, body: &Bound<'_, PyBytes>, dialect: &str) -> PyResult<Scan> {
    let dialect = dialect_of(dialect)?;
    let bytes = body.as_bytes();
    let inner = with_lock_by_size(py, bytes.len(), || wire::scan_body(bytes, dialect))
        .map_err(value_error)?;
    Ok(Scan {
        inner,
        body: body.clone().unbind(),
    })
}

#[pyfunction]
#[pyo3(signature = (body, scan, *, rid, priority, ask_usage, drop = Vec::new()))]
fn splice<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyBytes>,
    scan: &Scan,
    rid: Option<&str>,
    priority: Option<i64>,
    ask_usage: bool,
    drop: Vec<String>,
) -> PyResult<Bound<'py, PyBytes>> {
    if rid.is_some_and(|rid| {
        !rid.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    }) {
        return Err(PyValueError::new_err(
            "rid must be letters, digits and -_.:",
        ));
    }
    let drop: Vec<&str> = drop.iter().map(String::as_str).collect();
    let edits = wire::Edits {
        rid,
        priority,
        ask_usage,
        drop: &drop,
    };
    match wire::splice(body.as_bytes(), &scan.inner, &edits) {
        Some(bytes) => Ok(PyBytes::new(py, &bytes)),
        None => Err(PyValueError::new_err("the scan is of another body")),
    }
}

/// Reads an event stream beside the bytes.
#[pyclass(module = "heddle_core")]
struct StreamTap {
    inner: wire::StreamTap,
}

#[pymethods]
impl StreamTap {
    #[new]
    #[pyo3(signature = (dialect, *, hide_usage))]
    fn new(dialect: &str, hide_usage: bool) -> PyResult<Self> {
        Ok(Self {
            inner: wire::StreamTap::new(dialect_of(dialect)?, hide_usage),
        })
    }

    fn feed<'py>(&mut self, py: Python<'py>, chunk: &Bound<'py, PyBytes>) -> Bound<'py, PyBytes> {
        match self.inner.feed(chunk.as_bytes()) {
            wire::Output::Same => chunk.clone(),
            wire::Output::Bytes(bytes) => PyBytes::new(py, &bytes),
        }
    }

    #[getter]
    fn done(&self) -> bool {
        self.inner.is_done()
    }

    #[getter]
    fn silent(&self) -> bool {
        self.inner.is_silent()
    }

    fn finish<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.finish())
    }

    fn answer(&self) -> Answer {
        Answer {
            inner: self.inner.answer(),
        }
    }
}

/// What an answer said.
#[pyclass(frozen, module = "heddle_core")]
pub struct Answer {
    pub(crate) inner: wire::Answer,
}

#[pymethods]
impl Answer {
    #[getter]
    fn prompt_tokens(&self) -> Option<u64> {
        self.inner.prompt_tokens
    }

    #[getter]
    fn output_tokens(&self) -> Option<u64> {
        self.inner.output_tokens
    }

    #[getter]
    fn cached_tokens(&self) -> Option<u64> {
        self.inner.cached_tokens
    }

    #[getter]
    fn finish_reasons(&self) -> Vec<String> {
        self.inner.finish_reasons.clone()
    }

    #[getter]
    fn tool_names(&self) -> Vec<String> {
        self.inner.tool_names.clone()
    }

    #[getter]
    fn answer_hashes(&self) -> Vec<u64> {
        self.inner.answer_hashes.clone()
    }

    #[getter]
    fn text_spans(&self) -> Vec<(usize, u64)> {
        self.inner.text_spans.clone()
    }

    #[getter]
    fn token_spans(&self) -> Vec<(usize, u64)> {
        self.inner.token_spans.clone()
    }

    #[getter]
    fn call_ids(&self) -> Vec<u64> {
        self.inner.call_ids.clone()
    }

    #[getter]
    fn anchors(&self) -> Vec<u64> {
        self.inner.anchors.clone()
    }

    #[getter]
    fn chunks(&self) -> u64 {
        self.inner.chunks
    }

    #[getter]
    fn done(&self) -> bool {
        self.inner.done
    }

    #[getter]
    fn error(&self) -> Option<&str> {
        self.inner.error.as_deref()
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.to_bytes())
    }

    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        let inner = wire::Answer::from_bytes(data).map_err(parcel_error)?;
        Ok(Self { inner })
    }

    #[getter]
    fn response_id(&self) -> Option<&str> {
        self.inner.response_id.as_deref()
    }

    #[getter]
    fn sequence(&self) -> Option<u64> {
        self.inner.sequence
    }
}

#[pyfunction]
fn read_answer(py: Python<'_>, body: &Bound<'_, PyBytes>, dialect: &str) -> PyResult<Answer> {
    let dialect = dialect_of(dialect)?;
    let bytes = body.as_bytes();
    let inner = with_lock_by_size(py, bytes.len(), || wire::read_answer(bytes, dialect))
        .map_err(value_error)?;
    Ok(Answer { inner })
}
