//! What the core shows of itself, as dictionaries; what is read often, as tuples.

use heddle_core::Core;
use heddle_core::migration::Move;
use heddle_core::view::{StepView, TrajectoryView, WorkerView};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// (trajectory, remaining, sigma, context tokens, generated, home).
pub type ActiveRow = (u64, u64, Option<f64>, u64, u64, Option<u64>);

/// A dictionary of fields of the same name.
macro_rules! dict_of {
    ($py:expr, $view:expr, [$($field:ident),+ $(,)?]) => {{
        let dict = PyDict::new($py);
        $(dict.set_item(stringify!($field), &$view.$field)?;)+
        dict
    }};
}

pub fn trajectory_dict<'py>(
    py: Python<'py>,
    view: &TrajectoryView,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict_of!(
        py,
        view,
        [
            trajectory,
            group,
            rank,
            remaining,
            generated,
            steps,
            context_tokens,
            home,
            resident_tokens,
            gap_since,
        ]
    );
    dict.set_item("phase", view.phase.name())?;
    let live: PyResult<Vec<_>> = view.live.iter().map(|step| step_dict(py, step)).collect();
    dict.set_item("live_steps", live?)?;
    Ok(dict)
}

fn step_dict<'py>(py: Python<'py>, view: &StepView) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict_of!(
        py,
        view,
        [step, arrived_at, worker, level, attempts, preempted]
    );
    dict.set_item("state", view.state.name())?;
    Ok(dict)
}

pub fn worker_dict<'py>(py: Python<'py>, view: &WorkerView) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict_of!(
        py,
        view,
        [
            worker,
            generation,
            degree,
            slots,
            running,
            preempted,
            queued,
            homed,
            homed_remaining,
            kv_tokens,
            kv_committed,
            kv_used,
            suspect_until,
            speed_scale,
            token_us,
            token_us_per_seq,
            token_us_per_context_token,
            prefill_tokens_per_s,
            can_migrate,
        ]
    );
    dict.set_item("state", view.state.name())?;
    Ok(dict)
}

pub fn move_dict<'py>(py: Python<'py>, one: &Move) -> PyResult<Bound<'py, PyDict>> {
    let dict = dict_of!(
        py,
        one,
        [
            trajectory,
            tokens,
            asked_at,
            began_at,
            expected_us,
            waited_for
        ]
    );
    dict.set_item("migration", one.id)?;
    dict.set_item("from_worker", one.from.worker)?;
    dict.set_item("to_worker", one.to.worker)?;
    dict.set_item("asked_by", one.asker.name())?;
    dict.set_item("state", one.state.name())?;
    Ok(dict)
}

pub fn active_rows(core: &Core) -> Vec<ActiveRow> {
    core.active_views()
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

pub fn stats_dict<'py>(py: Python<'py>, core: &Core) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in core.stats() {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
