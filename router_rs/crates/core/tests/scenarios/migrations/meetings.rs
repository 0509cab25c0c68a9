//! A step arrives while KV of its trajectory is on the way.

use super::{FAST, SLOW, home, mid_move, phase, plan, policy, predict, settled, slow_link};
use crate::driver::Driver;
use heddle_core::event::{MigrationFailure, Outcome, StepArrived, StepEnded};

#[test]
fn a_step_waits_for_a_transfer_that_is_nearly_done() {
    let (mut driver, migration) = mid_move("when_worth_it");
    driver.advance_to(driver.now + 1_000);
    assert_eq!(driver.arrive(3, 1), None);
    assert_eq!(phase(&driver, 1), "waiting");
    driver.advance_to(driver.now + 100);
    driver.land(migration, 150);
    assert_eq!(driver.dispatches.last().unwrap().worker, FAST);
    assert_eq!(driver.stat("migrations_hidden_total"), 0);
    assert_eq!(driver.stat("migrations_waited_for_total"), 1);
}

#[test]
fn a_wait_that_takes_longer_than_reckoned_is_given_up() {
    let (mut driver, migration) = mid_move("when_worth_it");
    assert_eq!(driver.arrive(3, 1), None);
    driver.advance_to(driver.now + 10_000);
    assert!(driver.transfers[&migration].1, "called off");
    let dispatch = driver.dispatches.last().unwrap();
    assert_eq!((dispatch.step, driver.steps.len()), (3, 1));
    assert_eq!(
        driver.stat("transfers"),
        1,
        "its workers are busy until it has stopped"
    );
    driver.fail_transfer(migration, MigrationFailure::Cancelled);
    assert_eq!(driver.stat("transfers"), 0);
    assert_eq!(driver.stat("migrations_cancelled_total"), 1);
}

#[test]
fn a_step_does_not_wait_for_a_move_that_is_not_worth_it() {
    let mut driver = Driver::with_policy(&policy("on_rank_change"));
    for (worker, degree) in [(FAST, 4), (SLOW, 1)] {
        driver.worker(slow_link(worker, degree));
    }
    plan(&mut driver, 1, 1, 1);
    settled(&mut driver);
    driver.arrive(4, 2);
    driver.arrive_with(StepArrived {
        step: 5,
        trajectory: 1,
        prompt_tokens: 100_000,
        pinned_worker: Some(SLOW),
        ..StepArrived::default()
    });
    driver.end_with(StepEnded {
        step: 5,
        outcome: Outcome::Done,
        prompt_tokens: 100_000,
        output_tokens: 0,
        cached_tokens: 0,
    });
    predict(&mut driver, 2, 10.0);
    // 100,000 tokens at 100 a second take a quarter of an hour; 20 tokens are generated sooner where it is.
    predict(&mut driver, 1, 20.0);
    let migration = driver.migrates[0].migration;
    assert_eq!(driver.arrive(3, 1).unwrap().worker, SLOW);
    assert!(driver.transfers[&migration].1, "called off");
    driver.land(migration, 100_000);
    assert_eq!(
        home(&driver, 1),
        Some(SLOW),
        "what lands after that changes nothing"
    );
}

#[test]
fn transfers_that_are_called_off_late_teach_that_they_are_slow() {
    let (mut driver, migration) = mid_move("on_rank_change");
    assert_eq!(driver.arrive(3, 1), None);
    driver.advance_to(driver.now + 50_000);
    driver.fail_transfer(migration, MigrationFailure::Cancelled);
    let expected = |driver: &Driver| {
        driver
            .core
            .ledger()
            .iter()
            .next()
            .map(|one| one.expected_us)
    };
    driver.done(3, 10);
    let here = "its context was computed again there";
    assert_eq!(home(&driver, 1), Some(FAST), "{here}");
    predict(&mut driver, 1, 10.0);
    assert!(
        expected(&driver).unwrap() > 1_200,
        "{:?}",
        expected(&driver)
    );
}
