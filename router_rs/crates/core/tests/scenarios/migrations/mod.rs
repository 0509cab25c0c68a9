//! Moving KV: what begins a transfer, what a step does that meets one, and how every move ends.

mod asking;
mod beginnings;
mod endings;
mod meetings;

use crate::driver::Driver;
use heddle_core::Event;
use heddle_core::event::{LinkSpec, StepArrived, WorkerUp};
use heddle_core::plan::{PlanSpec, Share};

const FAST: u64 = 1;
const SLOW: u64 = 2;

fn policy(migration: &str) -> String {
    format!(
        r#"{{"order": "longest_first", "placement": "by_rank", "admission": "unlimited", "migration": "{migration}"}}"#
    )
}

/// A fast and a slow worker, and a plan that gives the fast one the `first` longest of all.
fn two_workers(migration: &str, first: u64, rest: u64) -> Driver {
    let mut driver = Driver::with_policy(&policy(migration));
    driver.linked_worker_up(FAST, 4, 8);
    driver.linked_worker_up(SLOW, 1, 8);
    plan(&mut driver, 1, first, rest);
    driver
}

fn plan(driver: &mut Driver, version: u64, first: u64, rest: u64) {
    let share = |worker, size| Share { worker, size };
    let spec = PlanSpec {
        version,
        partition: vec![share(FAST, first), share(SLOW, rest)],
        ttl_ms: None,
    };
    driver.handle(Event::InstallPlan(spec)).unwrap();
}

/// One step of 50 tokens behind a prompt of 100, on `worker`: 150 tokens of KV lie there then.
fn step_on(driver: &mut Driver, step: u64, trajectory: u64, worker: u64) {
    driver.arrive_with(StepArrived {
        step,
        trajectory,
        prompt_tokens: 100,
        pinned_worker: Some(worker),
        ..StepArrived::default()
    });
    // About what is believed of them, so that nothing is learned.
    let token_us = if worker == FAST { 2_650 } else { 6_550 };
    driver.advance_to(driver.now + 50 * token_us);
    driver.done(step, 50);
}

fn predict(driver: &mut Driver, trajectory: u64, mean: f64) {
    let predicted = Event::Predicted {
        trajectory,
        mean,
        sigma: 0.1,
        gap_us: None,
    };
    driver.handle(predicted).unwrap();
}

/// Trajectory 2 is long and on the fast worker, trajectory 1 on the slow one, where it belongs.
fn settled(driver: &mut Driver) {
    step_on(driver, 2, 2, FAST);
    predict(driver, 2, 90_000.0);
    step_on(driver, 1, 1, SLOW);
    assert_eq!(driver.migrates, []);
}

/// Trajectory 1 turns out to be the longest: it is on the way to the fast worker.
fn mid_move(migration: &str) -> (Driver, u64) {
    let mut driver = two_workers(migration, 1, 1);
    settled(&mut driver);
    predict(&mut driver, 1, 150_000.0);
    assert_eq!(driver.migrates.len(), 1);
    let begun = driver.migrates[0].clone();
    assert_eq!((begun.trajectory, begun.from, begun.to), (1, SLOW, FAST));
    assert_eq!(begun.tokens, 150);
    (driver, begun.migration)
}

fn home(driver: &Driver, trajectory: u64) -> Option<u64> {
    driver.core.trajectory_view(trajectory).unwrap().home
}

fn phase(driver: &Driver, trajectory: u64) -> &'static str {
    driver
        .core
        .trajectory_view(trajectory)
        .unwrap()
        .phase
        .name()
}

fn slow_link(worker: u64, degree: u32) -> WorkerUp {
    WorkerUp {
        worker,
        generation: 1,
        degree,
        slots: 8,
        kv_tokens: 0,
        has_priority: true,
        profile: None,
        link: Some(LinkSpec {
            tokens_per_s: 100.0,
            setup_us: 0,
        }),
        weights: 0,
    }
}
