//! Who runs next on a worker: the four orders, preemption by sending over the slots, and bounded waits.

use heddle_core::event::FailureKind;
use heddle_core::{Event, Policy};

use crate::driver::Driver;

const SECOND: u64 = 1_000_000;

fn one_worker(policy: &str, slots: u32) -> Driver {
    let policy = Policy::from_json(policy).unwrap();
    let policy = policy
        .amended(r#"{"placement":"least_load","admission":"unlimited"}"#)
        .unwrap();
    let mut driver = Driver::new(policy);
    driver.worker_up(1, 1, slots);
    driver
}

fn predict(driver: &mut Driver, trajectory: u64, mean: f64) {
    driver
        .handle(Event::Predicted {
            trajectory,
            mean,
            sigma: 0.0,
            gap_us: None,
        })
        .unwrap();
}

/// Runs every dispatched step to its end, one at a time, and says in which order they were dispatched.
fn drain(driver: &mut Driver) -> Vec<u64> {
    let mut ended = 0;
    while ended < driver.dispatches.len() {
        let step = driver.dispatches[ended].step;
        driver.done(step, 1);
        ended += 1;
    }
    driver
        .dispatches
        .iter()
        .map(|dispatch| dispatch.step)
        .collect()
}

#[test]
fn fcfs_sends_by_arrival_and_never_more_than_the_slots() {
    let mut driver = one_worker(r#"{"order":"fcfs"}"#, 2);
    for step in 1..=5 {
        driver.arrive(step, step);
    }
    assert_eq!(driver.dispatches.len(), 2);
    assert!(
        driver
            .dispatches
            .iter()
            .all(|dispatch| dispatch.priority == 0)
    );
    assert_eq!(drain(&mut driver), [1, 2, 3, 4, 5]);
}

#[test]
fn round_robin_gives_the_turn_to_the_trajectory_that_had_the_fewest() {
    let mut driver = one_worker(r#"{"order":"round_robin"}"#, 1);
    driver.arrive(1, 1);
    driver.done(1, 10);
    driver.arrive(2, 1);
    // Two steps of the trajectory that has had two turns, then one of a newcomer.
    driver.arrive(3, 1);
    driver.arrive(4, 1);
    driver.arrive(5, 2);
    driver.done(2, 10);
    assert_eq!(driver.dispatches.last().unwrap().step, 5);
}

#[test]
fn shortest_first_serves_the_least_attained_service() {
    let mut driver = one_worker(r#"{"order":"shortest_first"}"#, 1);
    for (step, tokens) in [(1, 5_000), (2, 600), (3, 100)] {
        driver.arrive(step, step);
        driver.done(step, tokens);
    }
    driver.arrive(10, 9);
    for trajectory in 1..=3 {
        driver.arrive(10 + trajectory, trajectory);
    }
    let before = driver.dispatches.len() - 1;
    assert_eq!(drain_from(&mut driver, before), [10, 13, 12, 11]);
}

fn drain_from(driver: &mut Driver, mut at: usize) -> Vec<u64> {
    let from = at;
    while at < driver.dispatches.len() {
        let step = driver.dispatches[at].step;
        driver.done(step, 1);
        at += 1;
    }
    driver.dispatches[from..]
        .iter()
        .map(|dispatch| dispatch.step)
        .collect()
}

#[test]
fn longest_first_sends_the_longest_predicted_and_ranks_anew_at_each_prediction() {
    let mut driver = one_worker(r#"{"order":"longest_first","max_over_send":0}"#, 1);
    driver.arrive(1, 1);
    for (step, mean) in [(2, 3_000.0), (3, 9_000.0), (4, 6_000.0)] {
        driver.arrive(step, step);
        predict(&mut driver, step, mean);
    }
    predict(&mut driver, 2, 20_000.0);
    assert_eq!(drain(&mut driver), [1, 2, 3, 4]);
}

#[test]
fn a_step_that_clearly_outranks_a_running_one_is_sent_over_the_slots() {
    let mut driver = one_worker(r#"{"order":"longest_first"}"#, 2);
    driver.arrive(1, 1);
    predict(&mut driver, 1, 400.0);
    driver.arrive(2, 2);
    driver.done(1, 1);
    driver.done(2, 1);
    // Both run as short ones now.
    predict(&mut driver, 1, 400.0);
    predict(&mut driver, 2, 800.0);
    driver.arrive(11, 1);
    driver.arrive(12, 2);
    driver.arrive(13, 3);
    let over = driver.dispatches.last().unwrap();
    assert_eq!(
        over.step, 13,
        "4,000 tokens by the prior against 400 is more than four levels"
    );
    assert!(
        driver.core.step_view(11).unwrap().preempted,
        "the lowest is put aside"
    );
    assert!(!driver.core.step_view(12).unwrap().preempted);
    let levels: Vec<u8> = driver.dispatches[2..]
        .iter()
        .map(|dispatch| dispatch.level)
        .collect();
    assert!(levels[2] >= levels[0] + 4, "{levels:?}");
    assert_eq!(driver.stat("preemptions_total"), 1);
    // When a slot frees, the engine takes the put-aside one up: nothing else is sent for it.
    driver.arrive(14, 2);
    driver.done(13, 1);
    assert!(!driver.core.step_view(11).unwrap().preempted);
    assert_eq!(driver.stat("steps_at_worker"), 2);
}

#[test]
fn a_step_that_outranks_only_a_little_waits() {
    let mut driver = one_worker(r#"{"order":"longest_first"}"#, 1);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    predict(&mut driver, 2, 9_000.0);
    assert_eq!(driver.dispatches.len(), 1, "a factor of 2.3 is two levels");
    predict(&mut driver, 2, 40_000.0);
    assert_eq!(driver.dispatches.len(), 2);
}

#[test]
fn over_sending_is_bounded_and_needs_an_engine_with_priorities() {
    let mut driver = one_worker(r#"{"order":"longest_first","max_over_send":2}"#, 2);
    for step in 1..=2 {
        driver.arrive(step, step);
    }
    for step in 3..=8 {
        driver.arrive(step, step);
        predict(&mut driver, step, 500_000.0);
    }
    assert_eq!(driver.stat("steps_at_worker"), 4);

    let mut driver = one_worker(r#"{"order":"longest_first"}"#, 1);
    driver.worker(heddle_core::event::WorkerUp {
        worker: 1,
        generation: 2,
        degree: 1,
        slots: 1,
        kv_tokens: 0,
        has_priority: false,
        profile: None,
        link: None,
        weights: 0,
    });
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    predict(&mut driver, 2, 500_000.0);
    assert_eq!(driver.stat("steps_at_worker"), 1);
}

#[test]
fn a_step_is_put_aside_at_most_once() {
    let mut driver = one_worker(r#"{"order":"longest_first","max_over_send":1}"#, 1);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    predict(&mut driver, 2, 500_000.0);
    assert!(driver.core.step_view(1).unwrap().preempted);
    driver.done(2, 1);
    assert!(!driver.core.step_view(1).unwrap().preempted);
    driver.arrive(3, 3);
    predict(&mut driver, 3, 500_000.0);
    assert!(!driver.core.step_view(1).unwrap().preempted);
    assert_eq!(driver.stat("preemptions_total"), 1);
}

#[test]
fn a_short_step_among_long_ones_runs_after_the_longest_wait_allowed() {
    let mut driver = one_worker(
        r#"{"order":"longest_first","max_wait_ms":60000,"max_over_send":0}"#,
        1,
    );
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    predict(&mut driver, 2, 10.0);
    for step in 3..=4 {
        driver.arrive(step, step);
        predict(&mut driver, step, 90_000.0);
    }
    driver.advance_to(30 * SECOND);
    driver.done(1, 1);
    assert_eq!(driver.dispatches.last().unwrap().step, 3);
    driver.advance_to(61 * SECOND);
    driver.done(3, 1);
    let dispatch = driver.dispatches.last().unwrap();
    assert_eq!(
        (dispatch.step, dispatch.level),
        (2, 31),
        "overdue: first, and not to be put aside"
    );
}

#[test]
fn a_backlog_sends_beyond_the_slots() {
    let mut driver = one_worker(r#"{"order":"fcfs","backlog":2}"#, 1);
    for step in 1..=5 {
        driver.arrive(step, step);
    }
    assert_eq!(driver.stat("steps_at_worker"), 3);
}

#[test]
fn a_retry_keeps_its_place_by_arrival() {
    let mut driver = one_worker(r#"{"order":"fcfs"}"#, 1);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    driver.fail(1, FailureKind::WorkerError);
    assert_eq!(
        driver.dispatches.last().unwrap().step,
        1,
        "ahead of what arrived later"
    );
}

#[test]
fn switching_the_order_live_sorts_what_is_held_anew() {
    let mut driver = one_worker(r#"{"order":"fcfs"}"#, 1);
    for step in 1..=4 {
        driver.arrive(step, step);
        predict(&mut driver, step, 1_000.0 * step as f64);
    }
    let policy = driver
        .core
        .policy()
        .amended(r#"{"order":"longest_first","max_over_send":0}"#)
        .unwrap();
    driver.handle(Event::SetPolicy(Box::new(policy))).unwrap();
    assert_eq!(drain(&mut driver), [1, 4, 3, 2]);
}

#[test]
fn a_pause_holds_what_comes_and_lets_it_go_in_order() {
    let mut driver = one_worker(r#"{"order":"longest_first"}"#, 2);
    driver.arrive(1, 1);
    driver.pause(true);
    for step in 2..=4 {
        driver.arrive(step, step);
        predict(&mut driver, step, 1_000.0 * step as f64);
    }
    // A seat that comes free is not taken either, and a failed attempt is not made again.
    driver.done(1, 10);
    assert_eq!(driver.dispatches.len(), 1);
    assert_eq!(driver.stat("dispatch_paused"), 1);
    assert_eq!(driver.stat("steps_held_slot"), 3);
    driver.pause(false);
    let sent: Vec<u64> = driver.dispatches.iter().map(|d| d.step).collect();
    assert_eq!(sent, [1, 4, 3]);
}

#[test]
fn a_pause_outlasts_every_bound_of_a_wait() {
    for admission in ["unlimited", "slots", "working_set"] {
        let mut driver = Driver::new(
            Policy::from_json(&format!(
                r#"{{"admission":"{admission}","max_wait_ms":1000,"max_hold_ms":1000}}"#
            ))
            .unwrap(),
        );
        driver.worker_up(1, 1, 1);
        driver.pause(true);
        driver.arrive(1, 1);
        driver.arrive(2, 2);
        driver.advance_to(3_600 * SECOND);
        assert!(driver.dispatches.is_empty() && driver.rejects.is_empty());
        driver.pause(false);
        assert_eq!(drain(&mut driver).len(), 2, "{admission}");
    }
}

#[test]
fn a_failed_attempt_waits_for_the_end_of_the_pause() {
    let mut driver = one_worker(r#"{"order":"fcfs"}"#, 2);
    driver.arrive(1, 1);
    driver.pause(true);
    driver.fail(1, FailureKind::Unreachable);
    assert_eq!(driver.dispatches.len(), 1);
    driver.pause(false);
    assert_eq!(driver.dispatches.len(), 2);
}
