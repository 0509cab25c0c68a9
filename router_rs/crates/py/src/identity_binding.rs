//! Binding of the `identity` crate: converts and decides nothing.

use heddle_identity as identity;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::wire_binding::{Answer, Scan};

/// Adds this binding's classes to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<IdentityBook>()?;
    m.add_class::<Identity>()?;
    Ok(())
}

fn value_error(error: identity::BookError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Which step of which trajectory a request is.
// The strings are made once: most are read several times in a step.
#[pyclass(module = "heddle_core")]
struct Identity {
    inner: identity::Identity,
    #[pyo3(get)]
    trajectory_id: Py<PyString>,
    #[pyo3(get)]
    source: Py<PyString>,
    #[pyo3(get)]
    group_id: Option<Py<PyString>>,
    #[pyo3(get)]
    parent_id: Option<Py<PyString>>,
}

impl Identity {
    /// `source`: the convention, where the request named its trajectory.
    fn new(py: Python<'_>, inner: identity::Identity, source: Option<Py<PyString>>) -> Self {
        let string = |text: &str| PyString::new(py, text).unbind();
        let rule = inner.source.map(|rule| PyString::intern(py, rule).unbind());
        Self {
            trajectory_id: string(&inner.trajectory_id),
            source: rule.or(source).unwrap_or_else(|| string("")),
            group_id: inner.group_id.as_deref().map(string),
            parent_id: inner.parent_id.as_deref().map(string),
            inner,
        }
    }
}

#[pymethods]
impl Identity {
    #[getter]
    fn sample(&self) -> Option<u64> {
        self.inner.sample
    }

    #[getter]
    fn r#final(&self) -> bool {
        self.inner.is_final
    }

    #[getter]
    fn step(&self) -> u64 {
        self.inner.step
    }

    #[getter]
    fn segment(&self) -> u64 {
        self.inner.segment
    }

    #[getter]
    fn retry_of_step(&self) -> bool {
        self.inner.claim.verdict == identity::Verdict::Repeat
    }

    #[getter]
    fn is_new(&self) -> bool {
        self.inner.claim.verdict == identity::Verdict::New
    }

    #[getter]
    fn request_hash(&self) -> u64 {
        self.inner.claim.history.hash
    }

    fn __repr__(&self) -> String {
        let identity = &self.inner;
        format!(
            "Identity({:?}, source={}, group_id={:?}, sample={:?}, step={}, segment={}, {:?})",
            identity.trajectory_id,
            self.source,
            identity.group_id,
            identity.sample,
            identity.step,
            identity.segment,
            identity.claim.verdict,
        )
    }
}

/// All that identity remembers.
#[pyclass(module = "heddle_core")]
struct IdentityBook {
    inner: identity::Book,
    new_id: Py<PyAny>,
}

#[pymethods]
impl IdentityBook {
    #[new]
    #[pyo3(signature = (*, capacity, idle_ttl_s, new_id))]
    fn new(capacity: usize, idle_ttl_s: f64, new_id: Py<PyAny>) -> Self {
        let limits = identity::Limits {
            capacity,
            idle_ttl_s,
        };
        Self {
            inner: identity::Book::new(limits),
            new_id,
        }
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    #[pyo3(signature = (scan, tenant, retry_count, received_at, source = None, trajectory_id = None,
                        group_id = None, sample = None, parent_id = None, r#final = false))]
    #[allow(clippy::too_many_arguments)]
    fn resolve(
        &self,
        py: Python<'_>,
        scan: &Scan,
        tenant: &str,
        retry_count: Option<&str>,
        received_at: f64,
        source: Option<Py<PyString>>,
        trajectory_id: Option<&str>,
        group_id: Option<&str>,
        sample: Option<u64>,
        parent_id: Option<&str>,
        r#final: bool,
    ) -> PyResult<Identity> {
        let request = identity::Request {
            tenant,
            scan: &scan.inner,
            body: scan.body(py),
            attempt: identity::Attempt::of(retry_count),
            received_at,
            told: identity::Told {
                trajectory_id,
                group_id,
                sample,
                parent_id,
                is_final: r#final,
            },
        };
        let mut failure = None;
        let inner = self.inner.resolve(&request, || {
            let made = self.new_id.call0(py);
            made.and_then(|id| id.extract(py)).unwrap_or_else(|error| {
                failure = Some(error);
                String::new()
            })
        });
        if let Some(error) = failure {
            return Err(error);
        }
        Ok(Identity::new(py, inner, source))
    }

    #[pyo3(signature = (scan, tenant, retry_count, received_at, source, trajectory_id, group_id, sample, parent_id,
                        r#final, step, segment))]
    #[allow(clippy::too_many_arguments)]
    fn resume(
        &mut self,
        py: Python<'_>,
        scan: &Scan,
        tenant: &str,
        retry_count: Option<&str>,
        received_at: f64,
        source: Py<PyString>,
        trajectory_id: &str,
        group_id: Option<&str>,
        sample: Option<u64>,
        parent_id: Option<&str>,
        r#final: bool,
        step: u64,
        segment: u64,
    ) -> PyResult<Identity> {
        let request = identity::Request {
            tenant,
            scan: &scan.inner,
            body: scan.body(py),
            attempt: identity::Attempt::of(retry_count),
            received_at,
            told: identity::Told {
                trajectory_id: Some(trajectory_id),
                group_id,
                sample,
                parent_id,
                is_final: r#final,
            },
        };
        let under = identity::Under { step, segment };
        let inner = self.inner.resume(&request, under).map_err(value_error)?;
        Ok(Identity::new(py, inner, Some(source)))
    }

    fn step_started(&mut self, identity: &mut Identity) -> PyResult<()> {
        self.inner
            .step_started(&mut identity.inner)
            .map_err(value_error)
    }

    #[pyo3(signature = (identity, answer, now))]
    fn client_left(
        &mut self,
        identity: &mut Identity,
        answer: Option<&Answer>,
        now: f64,
    ) -> PyResult<()> {
        let answer = answer.map(|answer| &answer.inner);
        self.inner
            .client_left(&mut identity.inner, answer, now)
            .map_err(value_error)
    }

    #[pyo3(signature = (identity, outcome, answer, now))]
    fn step_ended(
        &mut self,
        identity: &mut Identity,
        outcome: &str,
        answer: Option<&Answer>,
        now: f64,
    ) -> PyResult<()> {
        let answer = answer.map(|answer| &answer.inner);
        self.inner
            .step_ended(&mut identity.inner, outcome == "done", answer, now)
            .map_err(value_error)
    }

    fn forget(&mut self, tenant: &str, trajectory_id: &str) {
        self.inner.forget(tenant, trajectory_id);
    }

    #[pyo3(signature = (tenant, trajectory_id, *, model, group_id, sample, parent_id, steps, segments, last_seen,
                        memory = None))]
    #[allow(clippy::too_many_arguments)]
    fn restore(
        &mut self,
        tenant: &str,
        trajectory_id: &str,
        model: &str,
        group_id: Option<&str>,
        sample: Option<u64>,
        parent_id: Option<&str>,
        steps: u64,
        segments: u64,
        last_seen: f64,
        memory: Option<&str>,
    ) {
        self.inner.restore(&identity::Past {
            tenant,
            trajectory_id,
            model,
            group_id,
            sample,
            parent_id,
            steps,
            segments,
            last_seen,
            memory,
        });
    }

    fn memory(&self, tenant: &str, trajectory_id: &str) -> Option<String> {
        self.inner.memory(tenant, trajectory_id)
    }

    fn keys_held(&self) -> usize {
        self.inner.keys_held()
    }
}
