//! How transfers end, and what follows from it.

use super::{FAST, SLOW, home, mid_move, phase, predict};
use heddle_core::Event;
use heddle_core::event::{MigrationFailure, Outcome, StepEnded};

#[test]
fn a_worker_lost_in_mid_move_ends_it_and_the_step_goes_on() {
    let (mut driver, _) = mid_move("when_worth_it");
    assert_eq!(driver.arrive(3, 1), None);
    let down = |worker| Event::WorkerDown {
        worker,
        generation: 1,
    };
    driver.handle(down(FAST)).unwrap();
    assert_eq!(driver.dispatches.last().unwrap().worker, SLOW);
    assert_eq!(home(&driver, 1), Some(SLOW));
    assert_eq!(driver.stat("migrations_failed_total"), 1);

    let (mut driver, migration) = mid_move("when_worth_it");
    assert_eq!(driver.arrive(3, 1), None);
    driver.handle(down(SLOW)).unwrap();
    assert_eq!(driver.dispatches.last().unwrap().worker, FAST);
    let stale = driver.stat("stale_events_total");
    driver.land(migration, 150);
    assert_eq!(driver.stat("stale_events_total"), stale + 1);
}

#[test]
fn the_next_step_says_whether_the_kv_is_there_and_the_home_is_right_either_way() {
    for (cached, found) in [(128, true), (0, false)] {
        let (mut driver, migration) = mid_move("when_worth_it");
        driver.land(migration, 144);
        assert_eq!(driver.arrive(3, 1).unwrap().worker, FAST);
        driver.advance_to(driver.now + 100_000);
        driver.end_with(StepEnded {
            step: 3,
            outcome: Outcome::Done,
            prompt_tokens: 160,
            output_tokens: 50,
            cached_tokens: cached,
        });
        assert_eq!(driver.stat("migrations_found_total"), u64::from(found));
        assert_eq!(driver.stat("migrations_not_found_total"), u64::from(!found));
        assert_eq!(home(&driver, 1), Some(FAST));
        assert_eq!(driver.core.trajectory_view(1).unwrap().resident_tokens, 210);
        // A worker on which nothing was found is left alone for a while.
        let before = driver.migrates.len();
        predict(&mut driver, 1, 10.0);
        assert_eq!(driver.migrates.len() > before, found);
    }
}

#[test]
fn a_failed_transfer_leaves_the_kv_where_it_was() {
    for why in [MigrationFailure::TargetFull, MigrationFailure::Broken] {
        let (mut driver, migration) = mid_move("when_worth_it");
        driver.fail_transfer(migration, why);
        assert_eq!(
            (phase(&driver, 1), home(&driver, 1)),
            ("in_tool_gap", Some(SLOW))
        );
        assert_eq!(driver.core.trajectory_view(1).unwrap().resident_tokens, 150);
        assert_eq!(driver.stat("migrations_failed_total"), 1);
        predict(&mut driver, 1, 160_000.0);
        assert_eq!(driver.migrates.len(), 1, "not tried again at once");
    }
}

#[test]
fn other_weights_void_what_lies_at_a_worker_and_what_goes_there() {
    let (mut driver, migration) = mid_move("when_worth_it");
    let weights = |worker| Event::WeightsUpdated {
        worker,
        generation: 1,
        weights: 7,
    };
    driver.handle(weights(FAST)).unwrap();
    assert!(driver.transfers[&migration].1, "called off");
    assert_eq!(driver.core.trajectory_view(1).unwrap().resident_tokens, 150);
    driver.handle(weights(SLOW)).unwrap();
    assert_eq!(driver.core.trajectory_view(1).unwrap().resident_tokens, 0);
    driver.fail_transfer(migration, MigrationFailure::Cancelled);
    predict(&mut driver, 1, 170_000.0);
    assert_eq!(driver.migrates.len(), 1, "there is nothing to move");
}

#[test]
fn a_transfer_without_a_word_is_given_up() {
    let (mut driver, migration) = mid_move("when_worth_it");
    driver.advance_to(driver.now + 4_000_000);
    assert_eq!(driver.stat("migrations_expired_total"), 1);
    assert_eq!(
        (driver.stat("transfers"), home(&driver, 1)),
        (0, Some(SLOW))
    );
    driver.land(migration, 150);
    assert_eq!(home(&driver, 1), Some(SLOW));
}

#[test]
fn a_trajectory_that_ends_in_mid_move_calls_it_off() {
    let (mut driver, migration) = mid_move("when_worth_it");
    driver
        .handle(Event::TrajectoryFinished { trajectory: 1 })
        .unwrap();
    assert_eq!(driver.expired, [1]);
    assert!(driver.transfers[&migration].1, "called off");
    driver.fail_transfer(migration, MigrationFailure::Cancelled);
    assert_eq!(driver.stat("migrations_cancelled_total"), 1);
}
