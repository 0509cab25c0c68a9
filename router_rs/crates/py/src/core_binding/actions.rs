//! The actions of the core as Python classes.

use heddle_core::Action;
use pyo3::prelude::*;

/// A frozen class of plain fields, all given by name, with a `repr` that could be its constructor.
macro_rules! action_class {
    ($(#[$doc:meta])* $class:ident, $name:literal, { $($field:ident: $kind:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[pyclass(frozen, get_all, name = $name, module = "heddle_core._native")]
        pub struct $class {
            $($field: $kind),+
        }

        #[pymethods]
        impl $class {
            #[new]
            #[pyo3(signature = (*, $($field),+))]
            #[allow(clippy::too_many_arguments)]
            fn new($($field: $kind),+) -> Self {
                Self { $($field),+ }
            }

            fn __repr__(&self) -> String {
                let fields = [$(format!("{}={:?}", stringify!($field), self.$field)),+];
                format!("{}({})", $name, fields.join(", "))
            }
        }
    };
}

action_class!(PyDispatch, "Dispatch", {
    step: u64,
    worker: u64,
    generation: u64,
    priority: i64,
    level: u8,
    attempt: u32,
    reason: String,
});

action_class!(PyReject, "Reject", {
    step: u64,
    status: u16,
    reason: String,
    retry_after_ms: u64,
});

action_class!(PyWithdraw, "Withdraw", {
    step: u64,
    worker: u64,
    generation: u64,
});

action_class!(PyMigrate, "Migrate", {
    migration: u64,
    trajectory: u64,
    from_worker: u64,
    from_generation: u64,
    to_worker: u64,
    to_generation: u64,
    tokens: u64,
    within_us: u64,
    worth_us: Option<u64>,
});

action_class!(PyCancelMigration, "CancelMigration", {
    migration: u64,
    trajectory: u64,
    from_worker: u64,
    to_worker: u64,
});

action_class!(PyExpire, "Expire", {
    trajectory: u64,
    reason: String,
});

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyDispatch>()?;
    m.add_class::<PyReject>()?;
    m.add_class::<PyWithdraw>()?;
    m.add_class::<PyMigrate>()?;
    m.add_class::<PyCancelMigration>()?;
    m.add_class::<PyExpire>()
}

/// The class of an action, filled with it.
pub fn to_python(py: Python<'_>, action: Action) -> PyResult<Py<PyAny>> {
    Ok(match action {
        Action::Dispatch(it) => Py::new(
            py,
            PyDispatch {
                step: it.step,
                worker: it.worker,
                generation: it.generation,
                priority: it.priority,
                level: it.level,
                attempt: it.attempt,
                reason: it.reason.to_owned(),
            },
        )?
        .into_any(),
        Action::Reject(it) => Py::new(
            py,
            PyReject {
                step: it.step,
                status: it.status,
                reason: it.reason.name().to_owned(),
                retry_after_ms: it.retry_after_ms,
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
        Action::Migrate(it) => Py::new(
            py,
            PyMigrate {
                migration: it.migration,
                trajectory: it.trajectory,
                from_worker: it.from,
                from_generation: it.from_generation,
                to_worker: it.to,
                to_generation: it.to_generation,
                tokens: it.tokens,
                within_us: it.within_us,
                worth_us: it.worth_us,
            },
        )?
        .into_any(),
        Action::CancelMigration {
            migration,
            trajectory,
            from,
            to,
        } => Py::new(
            py,
            PyCancelMigration {
                migration,
                trajectory,
                from_worker: from,
                to_worker: to,
            },
        )?
        .into_any(),
        Action::Expire { trajectory, reason } => Py::new(
            py,
            PyExpire {
                trajectory,
                reason: reason.name().to_owned(),
            },
        )?
        .into_any(),
    })
}
