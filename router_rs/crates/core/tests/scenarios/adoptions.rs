//! Steps that another process began: counted where they run, sent by nobody here.

use heddle_core::event::{FailureKind, Outcome, StepAdopted};
use heddle_core::step::StepState;
use heddle_core::{Event, EventError};

use crate::driver::{Books, Driver};

fn overloaded() -> Driver {
    let mut driver = Driver::with_policy(
        r#"{"order":"longest_first","placement":"sticky","admission":"unlimited","max_over_send":0}"#,
    );
    driver.worker_up(1, 1, 2);
    driver
}

/// Of the only live step of a trajectory.
fn state_of(driver: &Driver, trajectory: u64) -> StepState {
    driver.core.trajectory_view(trajectory).unwrap().live[0].state
}

fn running(step: u64, trajectory: u64) -> StepAdopted {
    StepAdopted {
        step,
        trajectory,
        prompt_tokens: 100,
        worker: 1,
        generation: 1,
        level: 5,
        running_us: 400_000,
        streaming: true,
        ..StepAdopted::default()
    }
}

#[test]
fn an_adopted_step_takes_its_seat_and_others_wait_for_it() {
    let mut driver = overloaded();
    driver.now = 1_000_000;
    driver.adopt(running(1, 1));
    driver.adopt(running(2, 2));
    assert_eq!(driver.dispatches, [], "nothing is sent for them");
    assert_eq!(driver.arrive(3, 3), None, "both slots are taken");
    assert_eq!(state_of(&driver, 1), StepState::Streaming);
    driver.done(1, 10);
    assert_eq!(driver.dispatches.len(), 1);
    assert_eq!(driver.dispatches[0].step, 3);
    driver.done(2, 10);
    driver.done(3, 10);
    assert_eq!(driver.stat("steps_adopted_total"), 2);
    assert_eq!(driver.stat("steps_arrived_total"), 3);
    assert_eq!(driver.stat("steps_done_total"), 3);
}

#[test]
fn more_adopted_steps_than_slots_are_all_counted() {
    let mut driver = overloaded();
    for step in 1..=5 {
        driver.adopt(running(step, step));
    }
    assert_eq!(driver.core.worker_views()[0].running, 5);
    assert_eq!(driver.arrive(6, 6), None);
    for step in 1..=3 {
        driver.done(step, 1);
        assert!(driver.dispatches.is_empty(), "still as many as slots run");
    }
    driver.done(4, 1);
    assert_eq!(driver.dispatches.len(), 1);
}

#[test]
fn its_trajectory_is_at_home_where_it_runs() {
    let mut driver = overloaded();
    driver.worker_up(2, 1, 2);
    driver.adopt(StepAdopted {
        worker: 2,
        ..running(1, 1)
    });
    driver.done(1, 10);
    assert_eq!(driver.arrive(2, 1).map(|dispatch| dispatch.worker), Some(2));
}

#[test]
fn without_its_worker_it_waits_for_its_end_or_its_failure() {
    let mut driver = overloaded();
    let elsewhere = |step| StepAdopted {
        worker: 7,
        generation: 3,
        ..running(step, step)
    };
    driver.adopt(elsewhere(1));
    driver.adopt(elsewhere(2));
    assert_eq!(state_of(&driver, 1), StepState::Withdrawn);
    driver.done(1, 10);
    driver.fail(2, FailureKind::Unreachable);
    assert!(matches!(driver.steps[&2], Books::Running { worker: 1, .. }));
    driver.done(2, 10);
    assert_eq!(driver.stat("steps_done_total"), 2);
}

#[test]
fn a_later_step_of_its_trajectory_waits_while_it_aborts() {
    let mut driver = overloaded();
    driver.adopt(running(1, 1));
    driver.abort(1);
    assert_eq!(driver.arrive(2, 1), None);
    driver.end(1, Outcome::Aborted, 0);
    assert_eq!(driver.dispatches.len(), 1);
}

#[test]
fn a_step_is_adopted_once() {
    let mut driver = overloaded();
    driver.adopt(running(1, 1));
    assert_eq!(
        driver.handle(Event::StepAdopted(running(1, 1))),
        Err(EventError::DuplicateStep(1))
    );
}
