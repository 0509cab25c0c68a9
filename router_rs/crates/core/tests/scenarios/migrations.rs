//! Moving KV: what begins a transfer, what a step does that meets one, and how every move ends.

use crate::driver::Driver;
use heddle_core::Event;
use heddle_core::event::{EventError, Outcome};
use heddle_core::event::{LinkSpec, MigrationFailure, StepArrived, StepEnded, WorkerUp};
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

#[test]
fn a_prediction_in_the_gap_moves_the_kv_and_the_next_step_runs_there() {
    for rule in ["on_rank_change", "when_worth_it"] {
        let (mut driver, migration) = mid_move(rule);
        assert_eq!(phase(&driver, 1), "migrating");
        assert_eq!(
            home(&driver, 1),
            Some(SLOW),
            "the source owns it until it has landed"
        );
        driver.advance_to(driver.now + 1_150);
        driver.land(migration, 150);
        assert_eq!(
            (phase(&driver, 1), home(&driver, 1)),
            ("in_tool_gap", Some(FAST))
        );
        assert_eq!(driver.core.trajectory_view(1).unwrap().resident_tokens, 150);
        assert_eq!(driver.stat("migrations_hidden_total"), 1);
        assert_eq!(driver.stat("moves_total"), 0, "nothing is computed again");
        assert_eq!(driver.arrive(3, 1).unwrap().worker, FAST);
    }
}

#[test]
fn nothing_moves_without_links_or_with_a_rule_that_forbids_it() {
    let mut unlinked = Driver::with_policy(&policy("on_rank_change"));
    unlinked.linked_worker_up(FAST, 4, 8);
    unlinked.worker_up(SLOW, 1, 8);
    plan(&mut unlinked, 1, 1, 1);
    for mut driver in [unlinked, two_workers("never", 1, 1)] {
        settled(&mut driver);
        predict(&mut driver, 1, 150_000.0);
        assert_eq!(driver.stat("migrations_requested_total"), 0);
    }
}

#[test]
fn the_longest_goes_first_and_no_worker_is_in_two_transfers() {
    let mut driver = two_workers("on_rank_change", 0, 4);
    for trajectory in 1..=4 {
        step_on(&mut driver, trajectory, trajectory, SLOW);
    }
    assert_eq!(driver.migrates, []);
    plan(&mut driver, 2, 3, 1);
    for (trajectory, mean) in [(4, 900.0), (2, 40_000.0), (1, 50_000.0), (3, 60_000.0)] {
        predict(&mut driver, trajectory, mean);
    }
    while let Some(&migration) = driver.transfers.keys().next() {
        assert_eq!(driver.transfers.len(), 1);
        driver.land(migration, 150);
    }
    let order: Vec<u64> = driver.migrates.iter().map(|m| m.trajectory).collect();
    assert_eq!(order, [1, 3, 2], "the first found both workers free");
    assert_eq!(home(&driver, 4), Some(SLOW));
}

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

#[test]
fn a_move_that_takes_longer_than_computing_again_is_not_begun() {
    let mut driver = Driver::with_policy(&policy("when_worth_it"));
    for (worker, degree) in [(FAST, 4), (SLOW, 1)] {
        driver.worker(slow_link(worker, degree));
    }
    plan(&mut driver, 1, 1, 1);
    settled(&mut driver);
    predict(&mut driver, 1, 150_000.0);
    assert_eq!(driver.stat("migrations_requested_total"), 0);
}

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

#[test]
fn a_new_plan_moves_those_that_are_in_their_gaps() {
    let mut driver = two_workers("on_rank_change", 0, 2);
    step_on(&mut driver, 1, 1, SLOW);
    step_on(&mut driver, 2, 2, SLOW);
    plan(&mut driver, 2, 1, 1);
    assert_eq!(driver.migrates.len(), 1);
    assert_eq!(
        (driver.migrates[0].from, driver.migrates[0].to),
        (SLOW, FAST)
    );
}

#[test]
fn a_draining_worker_gives_its_trajectories_away_with_their_kv() {
    let mut driver = Driver::with_policy(&policy("when_worth_it"));
    driver.linked_worker_up(FAST, 1, 8);
    driver.linked_worker_up(SLOW, 1, 8);
    step_on(&mut driver, 1, 1, SLOW);
    assert_eq!(driver.migrates, []);
    driver
        .handle(Event::WorkerDraining {
            worker: SLOW,
            generation: 1,
        })
        .unwrap();
    assert_eq!(driver.migrates.len(), 1);
    assert_eq!(
        (driver.migrates[0].from, driver.migrates[0].to),
        (SLOW, FAST)
    );
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
