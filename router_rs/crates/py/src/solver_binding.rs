//! Binding of the solvers: arrays in, plan out. Converts and decides nothing; the GIL is free while
//! a plan is made.
use std::time::Instant;

use heddle_core::solver::{
    Cooling, CostKind, Profile, Request, SolverKind, Workload, solve as solve_core,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Adds this binding's functions to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(solve, m)?)
}

/// Numbers from anything with a buffer of C doubles (`array('d')`, NumPy float64), else from a
/// sequence.
fn numbers(values: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
    match PyBuffer::<f64>::get(values) {
        Ok(buffer) if buffer.dimensions() == 1 => buffer.to_vec(values.py()),
        _ => values.extract(),
    }
}

fn named<T: Copy>(field: &str, name: &str, names: &[(&str, T)]) -> PyResult<T> {
    names
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, value)| *value)
        .ok_or_else(|| {
            let known: Vec<&str> = names.iter().map(|(known, _)| *known).collect();
            PyValueError::new_err(format!(
                "{field}: {name:?} is unknown; one of {}",
                known.join(", ")
            ))
        })
}

/// See `_native.pyi`.
#[pyfunction]
#[pyo3(signature = (
    lengths, *, gpus, degrees, profile_json, sigmas = None, workers = None, solver = "exact", cost = "size_only",
    context_tokens = 0.0, cold_tokens = 0.0, input_per_output = 0.0, tool_seconds_per_output = 0.0,
    aggregate_below = 0.0, seed = 0,
))]
#[allow(clippy::too_many_arguments)]
fn solve<'py>(
    py: Python<'py>,
    lengths: &Bound<'py, PyAny>,
    gpus: u32,
    degrees: Vec<u32>,
    profile_json: &str,
    sigmas: Option<&Bound<'py, PyAny>>,
    workers: Option<Vec<u32>>,
    solver: &str,
    cost: &str,
    context_tokens: f64,
    cold_tokens: f64,
    input_per_output: f64,
    tool_seconds_per_output: f64,
    aggregate_below: f64,
    seed: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let lengths = numbers(lengths)?;
    let sigmas = sigmas.map(numbers).transpose()?.unwrap_or_default();
    let workers = workers.unwrap_or_default();
    let solver = named("solver", solver, &SolverKind::NAMES)?;
    let cost = named("cost", cost, &CostKind::NAMES)?;
    let started = Instant::now();
    let plan = py
        .detach(|| {
            let profile = Profile::parse(profile_json)?;
            let request = Request {
                lengths: &lengths,
                sigmas: &sigmas,
                gpus,
                degrees: &degrees,
                workers: &workers,
                solver,
                cost,
                workload: Workload {
                    context_tokens,
                    cold_tokens,
                    input_per_output,
                    tool_seconds_per_output,
                },
                aggregate_below,
                seed,
                cooling: Cooling::default(),
            };
            solve_core(&request, &profile)
        })
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    let seconds = started.elapsed().as_secs_f64();
    let planned = PyList::empty(py);
    for worker in &plan.workers {
        let fields = PyDict::new(py);
        fields.set_item("degree", worker.degree)?;
        fields.set_item("members", &worker.members)?;
        fields.set_item("cost", worker.cost)?;
        planned.append(fields)?;
    }
    let result = PyDict::new(py);
    result.set_item("makespan", plan.makespan)?;
    result.set_item("gpus_used", plan.gpus_used)?;
    result.set_item("seconds", seconds)?;
    result.set_item("workers", planned)?;
    Ok(result)
}
