//! Binding of `wire`'s reading of HTTP messages: converts and decides nothing.

use std::borrow::Cow;

use heddle_wire as wire;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

/// Adds this binding's functions to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(plain_request, m)?)?;
    m.add_function(wrap_pyfunction!(plain_answer, m)?)?;
    m.add_function(wrap_pyfunction!(forward_lines, m)?)?;
    m.add_function(wrap_pyfunction!(answer_lines, m)?)?;
    Ok(())
}

type Pairs<'py> = Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>;
type Request<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyDict>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

fn latin1(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.is_ascii() => Cow::Borrowed(text),
        _ => Cow::Owned(bytes.iter().copied().map(char::from).collect()),
    }
}

#[pyfunction]
fn plain_request<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
) -> PyResult<Option<Request<'py>>> {
    let Some(request) = wire::plain_request(data.as_bytes()) else {
        return Ok(None);
    };
    let headers: Vec<wire::Header<'_>> = request.headers.iter().collect();
    let texts = PyDict::new(py);
    for (name, value) in &headers {
        texts.set_item(
            PyString::new(py, &latin1(name)),
            PyString::new(py, &latin1(value)),
        )?;
    }
    Ok(Some((
        PyBytes::new(py, request.target),
        texts,
        PyBytes::new(py, &wire::forward_lines(&headers)),
        PyBytes::new(py, request.body),
    )))
}

#[pyfunction]
fn plain_answer<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
) -> Option<(u16, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let answer = wire::plain_answer(data.as_bytes())?;
    let headers: Vec<wire::Header<'_>> = answer.headers.iter().collect();
    Some((
        answer.status,
        PyBytes::new(py, &wire::answer_lines(&headers, &[])),
        PyBytes::new(py, answer.body),
    ))
}

fn borrowed<'a>(headers: &'a Pairs<'_>) -> Vec<wire::Header<'a>> {
    headers
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        .collect()
}

#[pyfunction]
#[allow(
    clippy::needless_pass_by_value,
    reason = "arguments are converted from Python"
)]
fn forward_lines<'py>(py: Python<'py>, headers: Pairs<'py>) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &wire::forward_lines(&borrowed(&headers)))
}

#[pyfunction]
#[pyo3(signature = (headers, without=vec![]))]
#[allow(
    clippy::needless_pass_by_value,
    reason = "arguments are converted from Python"
)]
fn answer_lines<'py>(
    py: Python<'py>,
    headers: Pairs<'py>,
    without: Vec<Bound<'py, PyBytes>>,
) -> Bound<'py, PyBytes> {
    let without: Vec<&[u8]> = without.iter().map(|name| name.as_bytes()).collect();
    PyBytes::new(py, &wire::answer_lines(&borrowed(&headers), &without))
}
