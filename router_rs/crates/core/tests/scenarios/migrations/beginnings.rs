//! What begins a transfer, and what does not.

use super::{
    FAST, SLOW, home, mid_move, phase, plan, policy, predict, settled, slow_link, step_on,
    two_workers,
};
use crate::driver::Driver;
use heddle_core::Event;

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
