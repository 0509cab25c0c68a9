//! Admission and forecasts of more than the KV: an engine does not stand idle for what they say, nor is it taken whole.

use heddle_core::{Event, Policy};

use crate::announcements::expect;
use crate::driver::{Driver, prompt};

fn with_kv(kv_tokens: u64) -> Driver {
    let mut driver = Driver::new(Policy::default());
    driver.worker_with_kv(1, kv_tokens);
    driver
}

fn predict(driver: &mut Driver, trajectory: u64, mean: f64) {
    driver
        .handle(Event::Predicted {
            trajectory,
            mean,
            sigma: 3.0,
            gap_us: None,
        })
        .unwrap();
}

#[test]
fn forecasts_of_more_than_the_kv_hold_nobody_while_no_step_runs() {
    let mut driver = with_kv(100_000);
    for id in 1..=20 {
        assert!(driver.arrive_with(prompt(id, id, 11)).is_some(), "{id}");
        driver.done_with(id, 11, 3);
        predict(&mut driver, id, 220_000.0);
    }
}

#[test]
fn beside_a_running_step_a_newcomer_needs_room_for_growth_until_that_has_ended() {
    let mut driver = with_kv(100_000);
    for id in 1..=5 {
        assert!(driver.arrive_with(prompt(id, id, 11)).is_some());
        driver.done_with(id, 11, 3);
        predict(&mut driver, id, 100_000.0);
    }
    assert!(driver.arrive_with(prompt(11, 1, 60_000)).is_some());
    assert!(driver.arrive_with(prompt(6, 6, 11)).is_none());
    driver.done_with(11, 60_000, 3);
    assert_eq!(driver.dispatches.last().map(|sent| sent.step), Some(6));
}

#[test]
fn nobody_is_taken_to_grow_beyond_the_kv_whatever_is_forecast() {
    let mut driver = with_kv(100_000);
    // A tenth of the KV is set aside for each, and nine tenths and a half are given out.
    for id in 1..=9 {
        expect(&mut driver, id, 2_200_000.0);
        assert!(driver.arrive_with(prompt(id, id, 11)).is_some(), "{id}");
    }
    expect(&mut driver, 10, 2_200_000.0);
    assert!(driver.arrive_with(prompt(10, 10, 11)).is_none());
}

/// An engine that stands idle, on which two large prompts hold a third up, and until when.
fn held_by_two_that_are_idle() -> (Driver, u64) {
    let mut driver = with_kv(100_000);
    for id in 1..=2 {
        assert!(driver.arrive_with(prompt(id, id, 40_000)).is_some());
        driver.done_with(id, 40_000, 3);
    }
    assert!(driver.arrive_with(prompt(3, 3, 40_000)).is_none());
    let until = driver.core.poll_timeout().unwrap();
    (driver, until)
}

#[test]
fn large_prompts_that_nobody_goes_on_with_hold_the_next_for_no_longer_than_they_took_to_compute() {
    let (mut driver, at) = held_by_two_that_are_idle();
    assert!(at < 5_000_000, "{at}");
    driver.advance_to(at - 1);
    assert_eq!(driver.stat("steps_held_admission"), 1);
    driver.advance_to(at);
    assert_eq!(driver.dispatches.last().map(|sent| sent.step), Some(3));
    assert_eq!(driver.stat("holds_expired_total"), 0);
}

#[test]
fn an_idle_engine_waits_anew_for_whoever_comes_back_in_time() {
    let (mut driver, at) = held_by_two_that_are_idle();
    driver.advance_to(at - 1);
    assert!(driver.arrive_with(prompt(11, 1, 40_003)).is_some());
    driver.advance_to(at + 1_000_000);
    assert_eq!(driver.stat("steps_held_admission"), 1, "a step runs");
    driver.done_with(11, 40_003, 3);
    assert_eq!(driver.stat("steps_held_admission"), 1, "it has just ended");
    let again = driver.core.poll_timeout().unwrap();
    driver.advance_to(again);
    assert_eq!(driver.dispatches.last().map(|sent| sent.step), Some(3));
}
