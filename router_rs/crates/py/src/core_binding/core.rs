//! The core as a Python class: one method an event, which returns the actions that the event caused.

#![expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python interface"
)]

use heddle_core::Event;
use heddle_core::belief::Profile;
use heddle_core::event::{
    FailureKind, LinkSpec, MigrationFailure, Outcome, StepAdopted, StepArrived, StepEnded, WorkerUp,
};
use heddle_core::plan::PlanSpec;
use heddle_core::policy::Policy;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::calls::{Actions, chain_of};
use super::value_error;
use super::views::{ActiveRow, active_rows, move_dict, stats_dict, trajectory_dict, worker_dict};

#[pyclass(name = "Core", module = "heddle_core._native")]
pub struct PyCore {
    pub(super) core: heddle_core::Core,
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

    #[pyo3(signature = (now, worker, generation, *, degree, slots, kv_tokens, has_priority, profile_json=None, transfer_tokens_per_s=None, transfer_setup_us=0, weights=0))]
    fn worker_up(
        &mut self,
        py: Python<'_>,
        now: u64,
        worker: u64,
        generation: u64,
        degree: u32,
        slots: u32,
        kv_tokens: u64,
        has_priority: bool,
        profile_json: Option<&str>,
        transfer_tokens_per_s: Option<f64>,
        transfer_setup_us: u64,
        weights: u64,
    ) -> Actions {
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
            link: transfer_tokens_per_s.map(|tokens_per_s| LinkSpec {
                tokens_per_s,
                setup_us: transfer_setup_us,
            }),
            weights,
        };
        self.handle(py, now, Event::WorkerUp(up))
    }

    fn worker_draining(
        &mut self,
        py: Python<'_>,
        now: u64,
        worker: u64,
        generation: u64,
    ) -> Actions {
        self.handle(py, now, Event::WorkerDraining { worker, generation })
    }

    fn worker_down(&mut self, py: Python<'_>, now: u64, worker: u64, generation: u64) -> Actions {
        self.handle(py, now, Event::WorkerDown { worker, generation })
    }

    fn worker_removed(
        &mut self,
        py: Python<'_>,
        now: u64,
        worker: u64,
        generation: u64,
    ) -> Actions {
        self.handle(py, now, Event::WorkerRemoved { worker, generation })
    }

    #[pyo3(signature = (now, worker, generation, *, running, waiting, kv_used))]
    fn load_report(
        &mut self,
        py: Python<'_>,
        now: u64,
        worker: u64,
        generation: u64,
        running: u32,
        waiting: u32,
        kv_used: u64,
    ) -> Actions {
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

    #[pyo3(signature = (now, step, trajectory, *, group, prompt_tokens, body=None, pinned_worker=None, bound=false))]
    fn step_arrived(
        &mut self,
        py: Python<'_>,
        now: u64,
        step: u64,
        trajectory: u64,
        group: Option<u64>,
        prompt_tokens: u64,
        body: Option<&Bound<'_, PyAny>>,
        pinned_worker: Option<u64>,
        bound: bool,
    ) -> Actions {
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
            bound,
        };
        self.handle(py, now, Event::StepArrived(arrived))
    }

    #[pyo3(signature = (now, step, trajectory, *, group, prompt_tokens, worker, generation, level, running_us, streaming))]
    fn step_adopted(
        &mut self,
        py: Python<'_>,
        now: u64,
        step: u64,
        trajectory: u64,
        group: Option<u64>,
        prompt_tokens: u64,
        worker: u64,
        generation: u64,
        level: u8,
        running_us: u64,
        streaming: bool,
    ) -> Actions {
        let adopted = StepAdopted {
            step,
            trajectory,
            group,
            prompt_tokens,
            worker,
            generation,
            level,
            running_us,
            streaming,
        };
        self.handle(py, now, Event::StepAdopted(adopted))
    }

    fn first_byte(&mut self, py: Python<'_>, now: u64, step: u64) -> Actions {
        self.handle(py, now, Event::FirstByte { step })
    }

    fn step_aborting(&mut self, py: Python<'_>, now: u64, step: u64) -> Actions {
        self.handle(py, now, Event::StepAborting { step })
    }

    fn attempt_failed(
        &mut self,
        py: Python<'_>,
        now: u64,
        step: u64,
        worker: u64,
        generation: u64,
        kind: &str,
    ) -> Actions {
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
    fn step_ended(
        &mut self,
        py: Python<'_>,
        now: u64,
        step: u64,
        outcome: &str,
        prompt_tokens: u64,
        output_tokens: u64,
        cached_tokens: u64,
    ) -> Actions {
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
    fn trajectory_expected(
        &mut self,
        py: Python<'_>,
        now: u64,
        trajectory: u64,
        group: Option<u64>,
        mean: f64,
        sigma: f64,
    ) -> Actions {
        let expected = Event::TrajectoryExpected {
            trajectory,
            group,
            mean,
            sigma,
        };
        self.handle(py, now, expected)
    }

    #[pyo3(signature = (now, trajectory, mean, sigma, *, gap_us=None))]
    fn predicted(
        &mut self,
        py: Python<'_>,
        now: u64,
        trajectory: u64,
        mean: f64,
        sigma: f64,
        gap_us: Option<u64>,
    ) -> Actions {
        self.handle(
            py,
            now,
            Event::Predicted {
                trajectory,
                mean,
                sigma,
                gap_us,
            },
        )
    }

    fn install_plan(&mut self, py: Python<'_>, now: u64, plan_json: &str) -> Actions {
        let plan = PlanSpec::from_json(plan_json).map_err(value_error)?;
        self.handle(py, now, Event::InstallPlan(plan))
    }

    fn set_policy(&mut self, py: Python<'_>, now: u64, policy_json: &str) -> Actions {
        let policy = self
            .core
            .policy()
            .amended(policy_json)
            .map_err(value_error)?;
        self.handle(py, now, Event::SetPolicy(Box::new(policy)))
    }

    fn trajectory_finished(&mut self, py: Python<'_>, now: u64, trajectory: u64) -> Actions {
        self.handle(py, now, Event::TrajectoryFinished { trajectory })
    }

    #[pyo3(signature = (now, trajectory, to_worker, *, within_us=None))]
    fn migration_asked(
        &mut self,
        py: Python<'_>,
        now: u64,
        trajectory: u64,
        to_worker: u64,
        within_us: Option<u64>,
    ) -> Actions {
        let asked = Event::MigrationAsked {
            trajectory,
            to: to_worker,
            within_us,
        };
        self.handle(py, now, asked)
    }

    fn dispatch_paused(&mut self, py: Python<'_>, now: u64, paused: bool) -> Actions {
        self.handle(py, now, Event::DispatchPaused { paused })
    }

    fn migration_landed(
        &mut self,
        py: Python<'_>,
        now: u64,
        migration: u64,
        tokens: u64,
    ) -> Actions {
        self.handle(py, now, Event::MigrationLanded { migration, tokens })
    }

    fn migration_failed(&mut self, py: Python<'_>, now: u64, migration: u64, why: &str) -> Actions {
        let why = MigrationFailure::from_name(why)
            .ok_or_else(|| value_error(format!("why: {why:?} is no failure of a migration")))?;
        self.handle(py, now, Event::MigrationFailed { migration, why })
    }

    fn weights_updated(
        &mut self,
        py: Python<'_>,
        now: u64,
        worker: u64,
        generation: u64,
        weights: u64,
    ) -> Actions {
        let updated = Event::WeightsUpdated {
            worker,
            generation,
            weights,
        };
        self.handle(py, now, updated)
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.core.poll_timeout()
    }

    fn handle_timeout(&mut self, py: Python<'_>, now: u64) -> Actions {
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
        let view = self.core.trajectory_view(trajectory);
        view.map(|view| trajectory_dict(py, &view)).transpose()
    }

    fn active_views(&self) -> Vec<ActiveRow> {
        active_rows(&self.core)
    }

    fn worker_views<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.core
            .worker_views()
            .iter()
            .map(|view| worker_dict(py, view))
            .collect()
    }

    fn move_views<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let moves = self.core.ledger().iter();
        moves.map(|one| move_dict(py, one)).collect()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats_dict(py, &self.core)
    }

    fn audit(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.core.audit())
    }

    fn take_journal<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.core.take_journal())
    }
}
