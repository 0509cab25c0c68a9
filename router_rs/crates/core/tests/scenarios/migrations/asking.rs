//! A person asks for a move.

use super::{FAST, SLOW, home, step_on, two_workers};
use heddle_core::Event;
use heddle_core::event::{EventError, StepArrived};

#[test]
fn a_persons_request_waits_for_the_gap_and_not_for_ever() {
    let mut driver = two_workers("never", 1, 1);
    step_on(&mut driver, 1, 1, SLOW);
    let asked = |to| Event::MigrationAsked {
        trajectory: 1,
        to,
        within_us: None,
    };
    driver.arrive_with(StepArrived {
        step: 2,
        trajectory: 1,
        prompt_tokens: 160,
        pinned_worker: Some(SLOW),
        ..StepArrived::default()
    });
    driver.handle(asked(FAST)).unwrap();
    assert_eq!(
        (driver.migrates.len(), driver.stat("transfers_requested")),
        (0, 1)
    );
    driver.done(2, 10);
    assert_eq!(driver.migrates.len(), 1);
    assert_eq!(driver.migrates[0].worth_us, None, "nobody weighs it");
    driver.land(driver.migrates[0].migration, 160);
    assert_eq!(home(&driver, 1), Some(FAST));

    assert_eq!(driver.arrive(3, 1).unwrap().worker, FAST);
    driver.handle(asked(SLOW)).unwrap();
    driver.advance_to(driver.now + 61_000_000);
    assert_eq!(driver.stat("migrations_expired_total"), 1);
    driver.done(3, 10);
    assert_eq!(driver.migrates.len(), 1);
}

#[test]
fn what_cannot_be_moved_is_refused_by_the_name_of_the_field() {
    let mut driver = two_workers("never", 1, 1);
    driver.worker_up(3, 1, 8);
    step_on(&mut driver, 1, 1, SLOW);
    step_on(&mut driver, 2, 2, 3);
    for (trajectory, to, field, hint) in [
        (1, SLOW, "to", "is where the trajectory is"),
        (1, 3, "to", "cannot receive KV"),
        (1, 9, "to", "no living worker 9"),
        (2, FAST, "to", "worker 3 cannot send KV"),
    ] {
        let refused = driver
            .handle(Event::MigrationAsked {
                trajectory,
                to,
                within_us: None,
            })
            .unwrap_err();
        let EventError::BadField { field: named, why } = refused else {
            panic!("{refused}");
        };
        assert_eq!(named, field);
        assert!(why.contains(hint), "{why}");
    }
    driver
        .handle(Event::MigrationAsked {
            trajectory: 99,
            to: FAST,
            within_us: None,
        })
        .unwrap_err();
}

#[test]
fn who_asks_for_a_move_says_how_long_it_may_take() {
    for (within_us, given) in [(None, 30_000_000), (Some(250_000), 250_000)] {
        let mut driver = two_workers("never", 1, 1);
        step_on(&mut driver, 1, 1, SLOW);
        driver
            .handle(Event::MigrationAsked {
                trajectory: 1,
                to: FAST,
                within_us,
            })
            .unwrap();
        assert_eq!(driver.migrates[0].within_us, given);
        // The core waits two seconds longer, for the workers' own word.
        driver.advance_to(driver.now + given + 1_999_999);
        assert_eq!(driver.stat("migrations_expired_total"), 0);
        driver.advance_to(driver.now + 1);
        assert_eq!(driver.stat("migrations_expired_total"), 1);
    }
}

#[test]
fn no_move_begins_in_a_pause() {
    let mut driver = two_workers("never", 1, 1);
    step_on(&mut driver, 1, 1, SLOW);
    driver.pause(true);
    driver
        .handle(Event::MigrationAsked {
            trajectory: 1,
            to: FAST,
            within_us: None,
        })
        .unwrap();
    assert_eq!(driver.stat("transfers_requested"), 1);
    driver.pause(false);
    assert_eq!(driver.migrates.len(), 1);
}
