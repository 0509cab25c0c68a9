//! Predictions that tell the opposite of what comes are not used; where there are none, nobody is taken for the longest.

use heddle_core::Event;

use crate::driver::Driver;
use crate::placements::placed;

/// Twenty trajectories of which the later ones are longer, and foretold to be shorter; each has ended its first step.
fn foretold_the_wrong_way_round() -> Driver {
    let mut driver = Driver::with_policy(
        r#"{"placement":"least_load","admission":"unlimited","gather_weight":0,"dormant_after_ms":20000}"#,
    );
    driver.worker_up(1, 1, 20);
    for t in 1..=20u64 {
        driver.arrive(t, t);
        let mean = 1_000.0 * (21 - t) as f64;
        let (sigma, gap_us) = (0.5, None);
        driver
            .handle(Event::Predicted {
                trajectory: t,
                mean,
                sigma,
                gap_us,
            })
            .unwrap();
    }
    for t in 1..=20 {
        driver.done(t, 100 * t);
    }
    driver
}

fn finish(driver: &mut Driver, trajectory: u64) {
    driver
        .handle(Event::TrajectoryFinished { trajectory })
        .unwrap();
}

#[test]
fn held_steps_go_by_arrival_once_predictions_have_told_the_opposite() {
    let mut driver = foretold_the_wrong_way_round();
    (1..=4).for_each(|t| finish(&mut driver, t));
    assert_eq!(driver.stat("predictions_in_use"), 1);
    driver.pause(true);
    for t in [12, 10, 11] {
        driver.arrive(100 + t, t);
    }
    // What is held already is ranked anew.
    finish(&mut driver, 5);
    assert_eq!(driver.stat("predictions_in_use"), 0);
    let before = driver.dispatches.len();
    driver.pause(false);
    let sent: Vec<u64> = driver.dispatches[before..]
        .iter()
        .map(|dispatch| dispatch.step)
        .collect();
    assert_eq!(sent, [112, 110, 111]);
}

#[test]
fn what_a_long_tool_gap_seemed_to_tell_of_predictions_is_taken_back() {
    let mut driver = foretold_the_wrong_way_round();
    for t in 7..=20 {
        driver.arrive(100 + t, t);
    }
    driver.advance_to(21_000_000);
    assert_eq!(driver.stat("trajectories_active"), 14, "six are dormant");
    assert_eq!(driver.stat("predictions_in_use"), 0);
    for t in 1..=6 {
        driver.arrive(100 + t, t);
    }
    assert_eq!(driver.stat("predictions_in_use"), 1);
}

#[test]
fn unequal_workers_are_levelled_by_the_pace_of_those_of_whom_nothing_is_predicted() {
    let mut driver = placed("by_rank", &[(1, 1, 64)]);
    for t in 1..=60u64 {
        driver.arrive(t, t);
    }
    driver.advance_to(84_000);
    for t in 1..=60u64 {
        // The later, the more it has generated: the core's own estimate makes it the longer.
        driver.done(t, 10 * t);
    }
    driver.worker_up(2, 4, 64);
    let mut left = Vec::new();
    for t in 1..=60u64 {
        if driver.arrive(100 + t, t).unwrap().reason == "levelled" {
            left.push(t);
        }
    }
    let homed = |worker: usize| driver.core.worker_views()[worker].homed;
    assert!(
        homed(1) > homed(0),
        "four GPUs take more than one does: {} and {}",
        homed(0),
        homed(1)
    );
    assert!(left[0] < 30, "who is older has no claim to them: {left:?}");
    assert_eq!(driver.stat("moves_total"), left.len() as u64);
}
