//! What history writes on the request's path: rows of JSON, and the file they are appended to.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple};

/// Adds this binding's class and function to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<AppendFile>()?;
    m.add_function(wrap_pyfunction!(json_row, m)?)?;
    Ok(())
}

/// A file that is only appended to.
#[pyclass(module = "heddle_core")]
struct AppendFile {
    file: Option<File>,
}

impl AppendFile {
    fn file(&mut self) -> PyResult<&mut File> {
        self.file
            .as_mut()
            .ok_or_else(|| PyValueError::new_err("the file is closed"))
    }
}

#[pymethods]
impl AppendFile {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| os_error(&error, Some(&path)))?;
        Ok(Self { file: Some(file) })
    }

    // The interpreter lock stays here: a write into the page cache is shorter than getting the lock back from a
    // thread that took it meanwhile.
    fn append(&mut self, data: &Bound<'_, PyBytes>) -> PyResult<usize> {
        loop {
            match self.file()?.write(data.as_bytes()) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                written => return written.map_err(|error| os_error(&error, None)),
            }
        }
    }

    fn truncate(&mut self, size: u64) -> PyResult<()> {
        self.file()?
            .set_len(size)
            .map_err(|error| os_error(&error, None))
    }

    fn close(&mut self) {
        self.file = None;
    }
}

/// With its number, which PyO3's own conversion leaves out, and which makes Python's subclass of it.
fn os_error(error: &std::io::Error, path: Option<&PathBuf>) -> PyErr {
    let Some(number) = error.raw_os_error() else {
        return PyOSError::new_err(error.to_string());
    };
    let text = error.to_string();
    let text = text
        .split_once(" (os error")
        .map_or(text.as_str(), |(said, _)| said)
        .to_owned();
    match path {
        Some(path) => PyOSError::new_err((number, text, path.clone())),
        None => PyOSError::new_err((number, text)),
    }
}

#[pyfunction]
fn json_row<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyTuple>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let mut row = Vec::with_capacity(640);
    if !array(values, &mut row)? {
        return Ok(None);
    }
    row.push(b'\n');
    Ok(Some(PyBytes::new(py, &row)))
}

/// Appends the values as a JSON array; false for what has no plain form.
fn array(values: &Bound<'_, PyTuple>, out: &mut Vec<u8>) -> PyResult<bool> {
    out.push(b'[');
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        if !item(&value, out)? {
            return Ok(false);
        }
    }
    out.push(b']');
    Ok(true)
}

fn item(value: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> PyResult<bool> {
    if value.is_none() {
        out.extend_from_slice(b"null");
    } else if let Ok(text) = value.cast::<PyString>() {
        // A lone surrogate is no UTF-8.
        let Ok(text) = text.to_cow() else {
            return Ok(false);
        };
        let Ok(()) = serde_json::to_writer(&mut *out, text.as_ref()) else {
            return Ok(false);
        };
    } else if let Ok(flag) = value.cast::<PyBool>() {
        out.extend_from_slice(if flag.is_true() { b"true" } else { b"false" });
    } else if let Ok(number) = value.cast::<PyFloat>() {
        let number = number.value();
        if !number.is_finite() {
            return Ok(false);
        }
        let Ok(()) = serde_json::to_writer(&mut *out, &number) else {
            return Ok(false);
        };
    } else if let Ok(number) = value.cast::<PyInt>() {
        let Ok(number) = number.extract::<i64>() else {
            return Ok(false);
        };
        let Ok(()) = serde_json::to_writer(&mut *out, &number) else {
            return Ok(false);
        };
    } else if let Ok(values) = value.cast::<PyTuple>() {
        return array(values, out);
    } else {
        return Ok(false);
    }
    Ok(true)
}
