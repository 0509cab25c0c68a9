//! How long a step may be passed by others: no longer than all work still takes.

use heddle_core::Event;

use crate::driver::{Driver, prompt};

const SECOND: u64 = 1_000_000;

fn predict(driver: &mut Driver, trajectory: u64, mean: f64) {
    let (sigma, gap_us) = (0.0, None);
    driver
        .handle(Event::Predicted {
            trajectory,
            mean,
            sigma,
            gap_us,
        })
        .unwrap();
}

/// One of three on a single slot, and the other two waiting: one foretold to be short, one of so many tokens.
fn a_short_one_waits(longer: f64) -> Driver {
    let policy = r#"{"placement":"least_load","admission":"unlimited","max_over_send":0}"#;
    let mut driver = Driver::with_policy(policy);
    driver.worker_up(1, 1, 1);
    for (t, mean) in [(1, 2_000.0), (2, 10.0), (3, longer)] {
        driver.arrive(t, t);
        predict(&mut driver, t, mean);
    }
    driver
}

#[test]
fn a_step_is_passed_for_no_longer_than_all_work_takes() {
    // 6,000 tokens of 6.6 ms, as far as was known when it arrived.
    let mut driver = a_short_one_waits(2_000.0);
    driver.advance_to(45 * SECOND);
    driver.done(1, 1);
    assert_eq!(driver.dispatches.last().unwrap().step, 2);
}

#[test]
fn the_bound_moves_on_with_the_work_there_is() {
    let mut driver = a_short_one_waits(20_000.0);
    driver.advance_to(45 * SECOND);
    driver.done(1, 1);
    assert_eq!(driver.dispatches.last().unwrap().step, 3);
    driver.arrive(4, 4);
    predict(&mut driver, 4, 20_000.0);
    // No further than a wait may last at most.
    driver.advance_to(301 * SECOND);
    assert_eq!(driver.stat("holds_expired_total"), 1);
    driver.done(3, 1);
    assert_eq!(driver.dispatches.last().unwrap().step, 2);
}

#[test]
fn taking_turns_does_not_fill_the_time_with_computing_contexts_again() {
    let policy = r#"{"placement":"sticky","kv_headroom":1,"kv_growth_share":0}"#;
    let held = |kv_tokens: u64| {
        let mut driver = Driver::with_policy(policy);
        driver.worker_with_kv(1, kv_tokens);
        // Each fills the worker; nearly nothing is to come of any.
        for t in 1..=4 {
            driver.arrive_with(prompt(t, t, kv_tokens - kv_tokens / 10));
            predict(&mut driver, t, 100.0);
        }
        driver.advance_to(40 * SECOND);
        3 - driver.stat("steps_held_admission")
    };
    assert_eq!(held(1_000), 3, "small contexts take turns soon");
    assert_eq!(held(100_000), 0, "three seconds each to compute again");
}
