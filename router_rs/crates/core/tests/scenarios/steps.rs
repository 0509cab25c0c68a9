//! One step at a time: dispatch, abort, failed attempts, endings.

use heddle_core::action::{ExpireReason, RejectReason};
use heddle_core::event::{FailureKind, Outcome, StepArrived, StepEnded};
use heddle_core::{Action, Event, EventError};

use crate::driver::{Books, Driver};

const SECOND: u64 = 1_000_000;

fn fcfs() -> Driver {
    Driver::with_policy(r#"{"order":"fcfs","placement":"least_load","admission":"unlimited"}"#)
}

#[test]
fn a_step_without_any_worker_is_rejected_at_once_and_ends_like_any_other() {
    let mut driver = fcfs();
    assert_eq!(driver.arrive(1, 1), None);
    assert_eq!(driver.rejects[0].reason, RejectReason::NoWorker);
    assert_eq!(
        (driver.rejects[0].status, driver.rejects[0].retry_after_ms),
        (503, 5_000)
    );
    driver.end(1, Outcome::Rejected, 0);
    assert_eq!(driver.stat("steps_rejected_total"), 1);
    assert_eq!(driver.stat("steps_live"), 0);
}

#[test]
fn with_a_worker_wait_a_step_is_held_until_a_worker_comes() {
    let json = r#"{"worker_wait_ms":2000,"admission":"unlimited"}"#;
    let mut driver = Driver::with_policy(json);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    assert_eq!(driver.stat("steps_held_no_worker"), 2);
    driver.advance_to(SECOND);
    driver.end(1, Outcome::Aborted, 0);
    driver.worker_up(7, 1, 4);
    assert_eq!(
        driver
            .dispatches
            .iter()
            .map(|d| (d.step, d.worker))
            .collect::<Vec<_>>(),
        [(2, 7)]
    );

    let mut driver = Driver::with_policy(json);
    driver.arrive(1, 1);
    driver.advance_to(2 * SECOND);
    assert_eq!(driver.rejects[0].reason, RejectReason::NoWorker);
}

#[test]
fn a_second_end_is_refused_and_counted() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.arrive(1, 1);
    driver.done(1, 10);
    let again = StepEnded {
        step: 1,
        outcome: Outcome::Done,
        prompt_tokens: 0,
        output_tokens: 0,
        cached_tokens: 0,
    };
    assert_eq!(
        driver.handle(Event::StepEnded(again)),
        Err(EventError::UnknownStep(1))
    );
    assert_eq!(driver.stat("refused_events_total"), 1);
    assert_eq!(driver.stat("steps_ended_total"), 1);
}

#[test]
fn the_next_step_of_a_trajectory_waits_for_the_end_of_an_abort() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.arrive(1, 1);
    driver.abort(1);
    assert_eq!(driver.arrive(2, 1), None);
    assert!(
        driver.arrive(3, 2).is_some(),
        "another trajectory does not wait"
    );
    assert_eq!(
        driver.core.trajectory_view(1).unwrap().phase.name(),
        "aborting"
    );
    driver.end(1, Outcome::Aborted, 5);
    assert_eq!(driver.dispatches.last().unwrap().step, 2);
}

#[test]
fn the_wait_for_an_abort_is_bounded() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.arrive(1, 1);
    driver.abort(1);
    driver.advance_to(SECOND);
    driver.arrive(2, 1);
    driver.advance_to(6 * SECOND - 1);
    assert_eq!(driver.steps[&2], Books::Waiting);
    driver.advance_to(6 * SECOND);
    assert!(matches!(driver.steps[&2], Books::Running { .. }));
}

#[test]
fn an_aborting_step_keeps_its_slot_until_it_has_ended() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 1);
    driver.arrive(1, 1);
    driver.abort(1);
    assert_eq!(
        driver.arrive(2, 2),
        None,
        "the engine still runs the aborted request"
    );
    driver.end(1, Outcome::Aborted, 0);
    assert_eq!(driver.dispatches.last().unwrap().step, 2);
}

#[test]
fn a_failed_attempt_goes_to_another_worker_at_once() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.worker_up(2, 1, 4);
    let first = driver.arrive(1, 1).unwrap();
    driver.fail(1, FailureKind::Unreachable);
    let second = driver.dispatches.last().unwrap().clone();
    assert_eq!(
        (first.worker, first.attempt, second.worker, second.attempt),
        (1, 1, 2, 2)
    );
    // The unreachable worker is avoided for a second, then taken again.
    assert_eq!(driver.arrive(2, 2).unwrap().worker, 2);
    driver.advance_to(SECOND);
    assert_eq!(driver.arrive(3, 3).unwrap().worker, 1);
}

#[test]
fn an_answer_ends_the_suspicion_of_a_worker() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.worker_up(2, 1, 4);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    driver.arrive(3, 3);
    assert_eq!(
        driver.steps[&3],
        Books::Running {
            worker: 1,
            generation: 1
        }
    );
    driver.fail(1, FailureKind::Unreachable);
    driver.handle(Event::FirstByte { step: 3 }).unwrap();
    driver.end(3, Outcome::Done, 10);
    assert_eq!(driver.arrive(4, 4).unwrap().worker, 1);
}

#[test]
fn the_only_worker_failing_ends_in_a_quick_reject_not_in_a_hang() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.arrive(1, 1);
    for attempt in 2..=3 {
        driver.fail(1, FailureKind::Unreachable);
        assert_eq!(driver.dispatches.last().unwrap().attempt, attempt);
    }
    driver.fail(1, FailureKind::Unreachable);
    assert_eq!(driver.rejects[0].reason, RejectReason::AttemptsExhausted);
    assert!(driver.rejects[0].retry_after_ms > 0);
}

#[test]
fn an_overloaded_worker_is_not_suspect() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.worker_up(2, 1, 4);
    driver.arrive(1, 1);
    driver.fail(1, FailureKind::Overloaded);
    assert_eq!(driver.dispatches.last().unwrap().worker, 2);
    assert_eq!(driver.arrive(2, 2).unwrap().worker, 1);
}

#[test]
fn a_report_of_an_attempt_that_is_not_the_running_one_changes_nothing() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.arrive(1, 1);
    let kind = FailureKind::Unreachable;
    driver
        .handle(Event::AttemptFailed {
            step: 1,
            worker: 1,
            generation: 0,
            kind,
        })
        .unwrap();
    driver
        .handle(Event::AttemptFailed {
            step: 1,
            worker: 2,
            generation: 1,
            kind,
        })
        .unwrap();
    assert_eq!(
        driver.steps[&1],
        Books::Running {
            worker: 1,
            generation: 1
        }
    );
    assert_eq!(driver.stat("stale_events_total"), 2);
}

#[test]
fn a_pinned_step_goes_to_its_worker_until_that_fails() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.worker_up(2, 1, 4);
    let pinned = StepArrived {
        step: 1,
        trajectory: 1,
        pinned_worker: Some(2),
        ..StepArrived::default()
    };
    let dispatch = driver.arrive_with(pinned).unwrap();
    assert_eq!((dispatch.worker, dispatch.reason), (2, "pinned"));
    driver.fail(1, FailureKind::WorkerError);
    assert_eq!(driver.dispatches.last().unwrap().worker, 1);
}

fn bound_to(worker: u64) -> StepArrived {
    StepArrived {
        step: 1,
        trajectory: 1,
        pinned_worker: Some(worker),
        bound: true,
        ..StepArrived::default()
    }
}

#[test]
fn a_bound_step_tries_its_worker_again_and_no_other() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.worker_up(2, 1, 4);
    assert_eq!(driver.arrive_with(bound_to(2)).unwrap().worker, 2);
    driver.fail(1, FailureKind::Overloaded);
    assert_eq!(driver.dispatches.last().unwrap().worker, 2);
    assert_eq!(driver.dispatches.len(), 2);
}

#[test]
fn a_bound_step_waits_for_its_worker_to_come_back_and_is_rejected_without_it() {
    let mut driver = Driver::with_policy(r#"{"worker_wait_ms":5000}"#);
    driver.worker_up(1, 1, 4);
    assert!(driver.arrive_with(bound_to(2)).is_none());
    assert_eq!(driver.stat("steps_held_no_worker"), 1);
    driver.worker_up(2, 1, 4);
    assert_eq!(driver.dispatches.last().unwrap().worker, 2);

    let mut driver = Driver::with_policy(r#"{"worker_wait_ms":5000}"#);
    driver.worker_up(1, 1, 4);
    driver.arrive_with(bound_to(2));
    driver.advance_to(5 * SECOND);
    assert!(driver.dispatches.is_empty());
    assert_eq!(driver.stat("rejects_total"), 1);
}

#[test]
fn time_that_goes_backwards_is_counted_and_held_still() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.now = 10 * SECOND;
    driver.arrive(1, 1);
    driver.now = SECOND;
    driver.done(1, 10);
    assert_eq!(driver.stat("clock_backwards_total"), 1);
    assert_eq!(
        driver.core.trajectory_view(1).unwrap().gap_since,
        Some(10 * SECOND)
    );
}

#[test]
fn an_idle_trajectory_becomes_dormant_and_then_expires() {
    let mut driver = Driver::with_policy(r#"{"idle_ttl_ms":100000,"dormant_after_ms":20000}"#);
    driver.worker_up(1, 1, 4);
    driver.arrive(1, 1);
    driver.done(1, 10);
    driver.advance_to(19 * SECOND);
    assert_eq!(driver.stat("trajectories_active"), 1);
    driver.advance_to(20 * SECOND);
    assert_eq!(
        (
            driver.stat("trajectories_active"),
            driver.stat("trajectories")
        ),
        (0, 1)
    );
    // It comes back: active again, and its TTL begins anew.
    driver.advance_to(90 * SECOND);
    assert_eq!(driver.arrive(2, 1).unwrap().worker, 1);
    assert_eq!(driver.stat("trajectories_active"), 1);
    driver.done(2, 10);
    driver.advance_to(190 * SECOND - 1);
    assert!(driver.expired.is_empty());
    driver.advance_to(190 * SECOND);
    assert_eq!(driver.expired, [1]);
    assert_eq!(driver.stat("timers"), 0);
}

#[test]
fn a_tool_gap_of_hours_ends_no_trajectory() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.arrive(1, 1);
    driver.done(1, 10);
    driver.advance_to(5 * 3600 * SECOND);
    assert_eq!(driver.stat("trajectories_active"), 0);
    assert!(driver.expired.is_empty());
}

#[test]
fn a_trajectory_with_a_live_step_never_expires() {
    let mut driver = Driver::with_policy(r#"{"idle_ttl_ms":1000}"#);
    driver.worker_up(1, 1, 4);
    driver.arrive(1, 1);
    driver.advance_to(3600 * SECOND);
    assert!(driver.expired.is_empty());
}

#[test]
fn a_finished_trajectory_is_forgotten_after_its_last_live_step() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.arrive(1, 1);
    driver.arrive(2, 1);
    driver
        .handle(Event::TrajectoryFinished { trajectory: 1 })
        .unwrap();
    driver.done(1, 10);
    assert!(driver.expired.is_empty());
    driver.done(2, 10);
    assert_eq!(driver.expired, [1]);
    assert_eq!(
        driver.handle(Event::TrajectoryFinished { trajectory: 1 }),
        Err(EventError::UnknownTrajectory(1))
    );
}

#[test]
fn expiry_says_why() {
    let mut core = heddle_core::Core::default();
    core.handle(
        0,
        Event::StepArrived(StepArrived {
            step: 1,
            trajectory: 5,
            ..StepArrived::default()
        }),
    )
    .unwrap();
    let ended = StepEnded {
        step: 1,
        outcome: Outcome::Rejected,
        prompt_tokens: 0,
        output_tokens: 0,
        cached_tokens: 0,
    };
    core.handle(0, Event::StepEnded(ended)).unwrap();
    core.handle(0, Event::TrajectoryFinished { trajectory: 5 })
        .unwrap();
    let last = std::iter::from_fn(|| core.poll_action()).last();
    assert_eq!(
        last,
        Some(Action::Expire {
            trajectory: 5,
            reason: ExpireReason::Finished
        })
    );
}
