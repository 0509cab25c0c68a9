//! Steps of few new tokens on a busy worker: held until they are worth a prefill, and never for long.

use heddle_core::Policy;
use heddle_core::event::Outcome;

use crate::driver::{Driver, prompt};

/// Trajectories of a busy worker.
const MANY: u64 = 40;

/// A worker that runs the first steps of many; their prompts are worth a prefill each.
fn busy(policy: Policy, slots: u32) -> Driver {
    let mut driver = Driver::new(policy);
    driver.worker_up(1, 1, slots);
    for id in 1..=MANY {
        assert!(driver.arrive_with(prompt(id, id, 1_000)).is_some(), "{id}");
    }
    driver
}

fn sent(driver: &Driver) -> Vec<u64> {
    let later = driver.dispatches.iter().skip(MANY as usize);
    later.map(|dispatch| dispatch.step).collect()
}

#[test]
fn short_steps_are_sent_together_when_nobody_comes_any_more() {
    let mut driver = busy(Policy::default(), 64);
    for id in [1, 2] {
        driver.done_with(id, 1_000, 10);
        assert!(driver.arrive_with(prompt(100 + id, id, 1_020)).is_none());
    }
    driver.advance_to(1_000);
    assert!(sent(&driver).is_empty());
    driver.advance_to(100_000);
    assert_eq!(sent(&driver), [101, 102]);
}

#[test]
fn short_steps_go_with_one_that_fills_a_prefill_by_itself() {
    let mut driver = busy(Policy::default(), 64);
    driver.done_with(1, 1_000, 10);
    assert!(driver.arrive_with(prompt(101, 1, 1_020)).is_none());
    driver.arrive_with(prompt(102, 99, 1_000));
    let mut both = sent(&driver);
    both.sort_unstable();
    assert_eq!(both, [101, 102]);
}

#[test]
fn seats_that_come_free_are_gathered_too() {
    let mut driver = busy(Policy::default(), MANY as u32);
    driver.done_with(1, 1_000, 10);
    assert!(driver.arrive_with(prompt(200, 99, 1_000)).is_some());
    assert!(driver.arrive_with(prompt(101, 1, 1_020)).is_none());
    driver.done_with(2, 1_000, 10);
    assert_eq!(sent(&driver), [200]);
    driver.advance_to(100_000);
    assert_eq!(sent(&driver), [200, 101]);
}

#[test]
fn beside_few_who_run_or_without_the_rule_a_step_is_sent_at_once() {
    let mut driver = Driver::new(Policy::default());
    driver.worker_up(1, 1, 64);
    for id in [1, 2] {
        assert!(driver.arrive_with(prompt(id, id, 1_000)).is_some());
    }
    driver.done_with(1, 1_000, 10);
    assert!(driver.arrive_with(prompt(101, 1, 1_020)).is_some());

    let mut driver = busy(Policy::from_json(r#"{"gather_weight":0}"#).unwrap(), 64);
    driver.done_with(1, 1_000, 10);
    assert!(driver.arrive_with(prompt(101, 1, 1_020)).is_some());
}

#[test]
fn a_gathered_step_can_be_given_up_and_its_worker_can_go() {
    let mut driver = busy(Policy::default(), 64);
    driver.done_with(1, 1_000, 10);
    assert!(driver.arrive_with(prompt(101, 1, 1_020)).is_none());
    driver.end(101, Outcome::Aborted, 0);
    driver.advance_to(200_000);
    assert!(sent(&driver).is_empty());

    driver.done_with(2, 1_000, 10);
    assert!(driver.arrive_with(prompt(102, 2, 1_020)).is_none());
    driver.worker_up(2, 1, 64);
    driver
        .handle(heddle_core::Event::WorkerDown {
            worker: 1,
            generation: 1,
        })
        .unwrap();
    assert!(sent(&driver).contains(&102));
}
