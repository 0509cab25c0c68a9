//! Binding of the simulator: arrays and JSON in, JSON out. Converts and decides nothing; the GIL is free while it runs.
use heddle_sim::bound::lower_bound;
use heddle_sim::cluster::replanning::{Answer, Question};
use heddle_sim::prediction::{Estimate, Prediction, Predictions};
use heddle_sim::spec::Spec;
use heddle_sim::{Script, SimError, Turn, Workload, simulate as run, simulate_replanned};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Adds this binding's classes and functions to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyWorkload>()?;
    m.add_function(wrap_pyfunction!(simulate, m)?)?;
    Ok(())
}

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// (prompt, group, seconds of the start, steps of (input, output, tool seconds)).
type ScriptRow = (u64, Option<u64>, f64, Vec<(u64, u64, f64)>);

#[pyclass(frozen, name = "SimWorkload", module = "heddle_core._native")]
struct PyWorkload {
    workload: Workload,
}

#[pymethods]
impl PyWorkload {
    #[new]
    #[pyo3(signature = (scripts, forecasts=None))]
    fn new(scripts: Vec<ScriptRow>, forecasts: Option<Vec<Vec<(f64, f64)>>>) -> PyResult<Self> {
        let scripts = scripts
            .into_iter()
            .map(|(prompt, group, start_s, turns)| Script {
                prompt,
                group,
                start_s,
                turns: turns
                    .into_iter()
                    .map(|(input, output, tool_s)| Turn {
                        input,
                        output,
                        tool_s,
                    })
                    .collect(),
            })
            .collect();
        let mut workload = Workload::new(scripts).map_err(value_error)?;
        if let Some(rows) = forecasts {
            let said = rows
                .into_iter()
                .map(|row| {
                    row.into_iter()
                        .map(|(mean, sigma)| Estimate { mean, sigma })
                        .collect()
                })
                .collect();
            workload = workload.with_forecasts(said).map_err(value_error)?;
        }
        Ok(Self { workload })
    }

    /// See `_native.pyi`.
    fn first_estimates(
        &self,
        py: Python<'_>,
        prediction_json: &str,
        seed: u64,
    ) -> PyResult<Option<Vec<(f64, f64)>>> {
        let kind: Prediction = serde_json::from_str(prediction_json)
            .map_err(|error| value_error(format!("prediction: {error}")))?;
        kind.validate().map_err(value_error)?;
        Ok(py.detach(|| {
            let predictions = Predictions::new(&self.workload, kind, seed)?;
            let of = |trajectory| predictions.before_step(trajectory, 0);
            let all = (0..self.workload.scripts().len()).map(of);
            Some(
                all.map(|estimate| (estimate.mean, estimate.sigma))
                    .collect(),
            )
        }))
    }

    /// See `_native.pyi`.
    fn lower_bound(&self, py: Python<'_>, spec_json: &str) -> PyResult<(f64, f64, f64)> {
        let spec = Spec::from_json(spec_json).map_err(value_error)?;
        let bound =
            py.detach(|| lower_bound(&self.workload, &spec.truth, spec.gpus(), spec.slowdown));
        Ok((bound.longest_alone_s, bound.work_s, bound.joint_s))
    }
}

/// See `_native.pyi`.
#[pyfunction]
#[pyo3(signature = (workload, spec_json, planner=None))]
#[expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 hands over a reference of its own"
)]
fn simulate<'py>(
    py: Python<'py>,
    workload: &Bound<'py, PyWorkload>,
    spec_json: &str,
    planner: Option<Py<PyAny>>,
) -> PyResult<(String, Bound<'py, PyBytes>)> {
    let spec = Spec::from_json(spec_json).map_err(value_error)?;
    let workload = &workload.get().workload;
    let mut raised = None;
    let outcome = py.detach(|| {
        let run = match &planner {
            None => run(workload, &spec),
            Some(planner) => {
                let mut ask = |question: &Question| {
                    ask_planner(planner, question).map_err(|error| {
                        let why = error.to_string();
                        raised = Some(error);
                        why
                    })
                };
                simulate_replanned(workload, &spec, &mut ask)
            }
        }?;
        let report = serde_json::to_string(&run.report);
        Ok::<_, SimError>((report, run.journal))
    });
    let (report, journal) = outcome.map_err(|error| match (raised, error) {
        (Some(raised), _) => raised,
        (None, error @ SimError::Spec(_)) => value_error(error),
        (None, error) => PyRuntimeError::new_err(error.to_string()),
    })?;
    let report = report.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    Ok((report, PyBytes::new(py, &journal)))
}

fn ask_planner(planner: &Py<PyAny>, question: &Question) -> PyResult<Option<Answer>> {
    let asked = serde_json::to_string(question).map_err(value_error)?;
    let answer: Option<String> = Python::attach(|py| planner.call1(py, (asked,))?.extract(py))?;
    let read = |json: String| {
        serde_json::from_str(&json).map_err(|error| value_error(format!("answer: {error}")))
    };
    answer.map(read).transpose()
}
