//! Binding of the `core` crate: one method an event, which returns the actions that the event caused.
//!
//! Converts and decides nothing. The interface is described in `_native.pyi`.

use heddle_core::action::{Action, Dispatch, Reject};
use heddle_core::belief::Profile;
use heddle_core::event::{Event, FailureKind, Outcome, StepArrived, StepEnded, WorkerUp};
use heddle_core::plan::PlanSpec;
use heddle_core::policy::Policy;
use heddle_core::view::{StepView, WorkerView};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

/// Adds this binding's classes to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyDispatch>()?;
    m.add_class::<PyReject>()?;
    m.add_class::<PyWithdraw>()?;
    m.add_class::<PyExpire>()?;
    m.add_class::<PyCore>()?;
    m.add_function(wrap_pyfunction!(replay, m)?)?;
    Ok(())
}

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pyclass(frozen, get_all, name = "Dispatch", module = "heddle_core._native")]
struct PyDispatch {
    step: u64,
    worker: u64,
    generation: u64,
    priority: i64,
    level: u8,
    attempt: u32,
    reason: &'static str,
}

#[pymethods]
impl PyDispatch {
    fn __repr__(&self) -> String {
        format!(
            "Dispatch(step={}, worker={}, generation={}, priority={}, level={}, attempt={}, reason={:?})",
            self.step,
            self.worker,
            self.generation,
            self.priority,
            self.level,
            self.attempt,
            self.reason
        )
    }
}

#[pyclass(frozen, get_all, name = "Reject", module = "heddle_core._native")]
struct PyReject {
    step: u64,
    status: u16,
    reason: &'static str,
    retry_after_ms: u64,
}

#[pymethods]
impl PyReject {
    fn __repr__(&self) -> String {
        format!(
            "Reject(step={}, status={}, reason={:?}, retry_after_ms={})",
            self.step, self.status, self.reason, self.retry_after_ms
        )
    }
}

#[pyclass(frozen, get_all, name = "Withdraw", module = "heddle_core._native")]
struct PyWithdraw {
    step: u64,
    worker: u64,
    generation: u64,
}

#[pymethods]
impl PyWithdraw {
    fn __repr__(&self) -> String {
        format!(
            "Withdraw(step={}, worker={}, generation={})",
            self.step, self.worker, self.generation
        )
    }
}

#[pyclass(frozen, get_all, name = "Expire", module = "heddle_core._native")]
struct PyExpire {
    trajectory: u64,
    reason: &'static str,
}

#[pymethods]
impl PyExpire {
    fn __repr__(&self) -> String {
        format!(
            "Expire(trajectory={}, reason={:?})",
            self.trajectory, self.reason
        )
    }
}

fn to_python(py: Python<'_>, action: Action) -> PyResult<Py<PyAny>> {
    Ok(match action {
        Action::Dispatch(Dispatch {
            step,
            worker,
            generation,
            priority,
            level,
            attempt,
            reason,
        }) => Py::new(
            py,
            PyDispatch {
                step,
                worker,
                generation,
                priority,
                level,
                attempt,
                reason,
            },
        )?
        .into_any(),
        Action::Reject(Reject {
            step,
            status,
            reason,
            retry_after_ms,
        }) => Py::new(
            py,
            PyReject {
                step,
                status,
                reason: reason.name(),
                retry_after_ms,
            },
        )?
        .into_any(),
        Action::Withdraw {
            step,
            worker,
            generation,
        } => Py::new(
            py,
            PyWithdraw {
                step,
                worker,
                generation,
            },
        )?
        .into_any(),
        Action::Expire { trajectory, reason } => Py::new(
            py,
            PyExpire {
                trajectory,
                reason: reason.name(),
            },
        )?
        .into_any(),
    })
}

/// The hash chain of a scanned request; whatever offers `chain()` will do.
fn chain_of(body: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    body.call_method0(pyo3::intern!(body.py(), "chain"))?
        .extract()
}

#[pyclass(name = "Core", module = "heddle_core._native")]
struct PyCore {
    core: heddle_core::Core,
}

impl PyCore {
    fn handle<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        event: Event,
    ) -> PyResult<Bound<'py, PyList>> {
        let taken = self.core.handle(now, event);
        let actions = self.drain(py)?;
        taken.map_err(value_error)?;
        Ok(actions)
    }

    fn drain<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let actions = PyList::empty(py);
        while let Some(action) = self.core.poll_action() {
            actions.append(to_python(py, action)?)?;
        }
        Ok(actions)
    }
}

#[pymethods]
impl PyCore {
    #[new]
    #[pyo3(signature = (policy_json=None, *, journal=false))]
    fn new(policy_json: Option<&str>, journal: bool) -> PyResult<Self> {
        let policy = policy_json.map_or_else(|| Ok(Policy::default()), Policy::from_json);
        let core = heddle_core::Core::new(policy.map_err(value_error)?);
        Ok(Self {
            core: if journal { core.with_journal() } else { core },
        })
    }

    #[pyo3(signature = (now, worker, generation, *, degree, slots, kv_tokens, has_priority, profile_json=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python interface"
    )]
    fn worker_up<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        worker: u64,
        generation: u64,
        degree: u32,
        slots: u32,
        kv_tokens: u64,
        has_priority: bool,
        profile_json: Option<&str>,
    ) -> PyResult<Bound<'py, PyList>> {
        let profile = profile_json
            .map(Profile::from_json)
            .transpose()
            .map_err(value_error)?;
        let up = WorkerUp {
            worker,
            generation,
            degree,
            slots,
            kv_tokens,
            has_priority,
            profile,
        };
        self.handle(py, now, Event::WorkerUp(up))
    }

    fn worker_draining<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        worker: u64,
        generation: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        self.handle(py, now, Event::WorkerDraining { worker, generation })
    }

    fn worker_down<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        worker: u64,
        generation: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        self.handle(py, now, Event::WorkerDown { worker, generation })
    }

    fn worker_removed<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        worker: u64,
        generation: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        self.handle(py, now, Event::WorkerRemoved { worker, generation })
    }

    #[pyo3(signature = (now, worker, generation, *, running, waiting, kv_used))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python interface"
    )]
    fn load_report<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        worker: u64,
        generation: u64,
        running: u32,
        waiting: u32,
        kv_used: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        self.handle(
            py,
            now,
            Event::LoadReport {
                worker,
                generation,
                running,
                waiting,
                kv_used,
            },
        )
    }

    #[pyo3(signature = (now, step, trajectory, *, group, prompt_tokens, body=None, pinned_worker=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python interface"
    )]
    fn step_arrived<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        step: u64,
        trajectory: u64,
        group: Option<u64>,
        prompt_tokens: u64,
        body: Option<&Bound<'py, PyAny>>,
        pinned_worker: Option<u64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let chain = match body {
            Some(body) if self.core.policy().placement.variant().reads_chain() => chain_of(body)?,
            _ => Vec::new(),
        };
        let arrived = StepArrived {
            step,
            trajectory,
            group,
            prompt_tokens,
            chain,
            pinned_worker,
        };
        self.handle(py, now, Event::StepArrived(arrived))
    }

    fn first_byte<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        step: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        self.handle(py, now, Event::FirstByte { step })
    }

    fn step_aborting<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        step: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        self.handle(py, now, Event::StepAborting { step })
    }

    fn attempt_failed<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        step: u64,
        worker: u64,
        generation: u64,
        kind: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let kind = FailureKind::from_name(kind)
            .ok_or_else(|| value_error(format!("kind: {kind:?} is no kind of failure")))?;
        self.handle(
            py,
            now,
            Event::AttemptFailed {
                step,
                worker,
                generation,
                kind,
            },
        )
    }

    #[pyo3(signature = (now, step, outcome, *, prompt_tokens, output_tokens, cached_tokens))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python interface"
    )]
    fn step_ended<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        step: u64,
        outcome: &str,
        prompt_tokens: u64,
        output_tokens: u64,
        cached_tokens: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        let outcome = Outcome::from_name(outcome)
            .ok_or_else(|| value_error(format!("outcome: {outcome:?} is no outcome of a step")))?;
        let ended = StepEnded {
            step,
            outcome,
            prompt_tokens,
            output_tokens,
            cached_tokens,
        };
        self.handle(py, now, Event::StepEnded(ended))
    }

    #[pyo3(signature = (now, trajectory, *, group, mean, sigma))]
    fn trajectory_expected<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        trajectory: u64,
        group: Option<u64>,
        mean: f64,
        sigma: f64,
    ) -> PyResult<Bound<'py, PyList>> {
        let expected = Event::TrajectoryExpected {
            trajectory,
            group,
            mean,
            sigma,
        };
        self.handle(py, now, expected)
    }

    fn predicted<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        trajectory: u64,
        mean: f64,
        sigma: f64,
    ) -> PyResult<Bound<'py, PyList>> {
        self.handle(
            py,
            now,
            Event::Predicted {
                trajectory,
                mean,
                sigma,
            },
        )
    }

    fn install_plan<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        plan_json: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let plan = PlanSpec::from_json(plan_json).map_err(value_error)?;
        self.handle(py, now, Event::InstallPlan(plan))
    }

    fn set_policy<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        policy_json: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let policy = self
            .core
            .policy()
            .amended(policy_json)
            .map_err(value_error)?;
        self.handle(py, now, Event::SetPolicy(Box::new(policy)))
    }

    fn trajectory_finished<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        trajectory: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        self.handle(py, now, Event::TrajectoryFinished { trajectory })
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.core.poll_timeout()
    }

    fn handle_timeout<'py>(&mut self, py: Python<'py>, now: u64) -> PyResult<Bound<'py, PyList>> {
        self.core.handle_timeout(now);
        self.drain(py)
    }

    fn policy_json(&self) -> String {
        self.core.policy().to_json()
    }

    fn trajectory_view<'py>(
        &self,
        py: Python<'py>,
        trajectory: u64,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(view) = self.core.trajectory_view(trajectory) else {
            return Ok(None);
        };
        let dict = PyDict::new(py);
        dict.set_item("trajectory", view.trajectory)?;
        dict.set_item("phase", view.phase.name())?;
        dict.set_item("group", view.group)?;
        dict.set_item("rank", view.rank)?;
        dict.set_item("remaining", view.remaining)?;
        dict.set_item("generated", view.generated)?;
        dict.set_item("steps", view.steps)?;
        dict.set_item("context_tokens", view.context_tokens)?;
        dict.set_item("home", view.home)?;
        dict.set_item("resident_tokens", view.resident_tokens)?;
        dict.set_item("gap_since", view.gap_since)?;
        let live = view
            .live
            .iter()
            .map(|step| step_dict(py, step))
            .collect::<PyResult<Vec<_>>>()?;
        dict.set_item("live_steps", live)?;
        Ok(Some(dict))
    }

    fn active_views(&self) -> Vec<ActiveRow> {
        self.core
            .active_views()
            .into_iter()
            .map(|view| {
                (
                    view.trajectory,
                    view.remaining,
                    view.sigma,
                    view.context_tokens,
                    view.generated,
                    view.home,
                )
            })
            .collect()
    }

    fn worker_views<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.core
            .worker_views()
            .iter()
            .map(|view| worker_dict(py, view))
            .collect()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, value) in self.core.stats() {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    fn audit(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.core.audit())
    }

    fn take_journal<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.core.take_journal())
    }
}

/// (trajectory, remaining, sigma, context tokens, generated, home).
type ActiveRow = (u64, u64, Option<f64>, u64, u64, Option<u64>);

fn step_dict<'py>(py: Python<'py>, view: &StepView) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("step", view.step)?;
    dict.set_item("state", view.state.name())?;
    dict.set_item("arrived_at", view.arrived_at)?;
    dict.set_item("worker", view.worker)?;
    dict.set_item("level", view.level)?;
    dict.set_item("attempts", view.attempts)?;
    dict.set_item("preempted", view.preempted)?;
    Ok(dict)
}

fn worker_dict<'py>(py: Python<'py>, view: &WorkerView) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("worker", view.worker)?;
    dict.set_item("generation", view.generation)?;
    dict.set_item("state", view.state.name())?;
    dict.set_item("degree", view.degree)?;
    dict.set_item("slots", view.slots)?;
    dict.set_item("running", view.running)?;
    dict.set_item("preempted", view.preempted)?;
    dict.set_item("queued", view.queued)?;
    dict.set_item("homed", view.homed)?;
    dict.set_item("homed_remaining", view.homed_remaining)?;
    dict.set_item("kv_tokens", view.kv_tokens)?;
    dict.set_item("kv_committed", view.kv_committed)?;
    dict.set_item("kv_used", view.kv_used)?;
    dict.set_item("suspect_until", view.suspect_until)?;
    dict.set_item("speed_scale", view.speed_scale)?;
    dict.set_item("token_us", view.token_us)?;
    dict.set_item("token_us_per_seq", view.token_us_per_seq)?;
    dict.set_item(
        "token_us_per_context_token",
        view.token_us_per_context_token,
    )?;
    dict.set_item("prefill_tokens_per_s", view.prefill_tokens_per_s)?;
    Ok(dict)
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
    Ok(dict)
}
