//! Batches that are announced: their first steps are placed by rank, before anything of them has come.

use heddle_core::Event;
use heddle_core::plan::{PlanSpec, Share};

use crate::driver::Driver;
use crate::placements::{placed, where_to};

pub fn expect(driver: &mut Driver, trajectory: u64, mean: f64) {
    driver
        .handle(Event::TrajectoryExpected {
            trajectory,
            group: None,
            mean,
            sigma: 0.0,
        })
        .unwrap();
}

fn by_plan(sizes: &[u64]) -> Driver {
    let workers: Vec<(u64, u32, u32)> = (1..=sizes.len() as u64).map(|id| (id, 1, 9)).collect();
    let mut driver = placed("by_rank", &workers);
    let partition = sizes.iter().zip(1..);
    let partition = partition.map(|(&size, worker)| Share { worker, size });
    driver
        .handle(Event::InstallPlan(PlanSpec {
            version: 1,
            partition: partition.collect(),
            ttl_ms: None,
        }))
        .unwrap();
    driver
}

#[test]
fn the_first_steps_of_an_announced_batch_are_placed_by_their_rank_in_the_batch() {
    let lengths = [100.0, 4_000.0, 300.0, 900.0];
    let mut driver = by_plan(&[1, 3]);
    for (id, &length) in lengths.iter().enumerate() {
        expect(&mut driver, id as u64, length);
    }
    let got: Vec<u64> = (0..4)
        .map(|id| where_to(&mut driver, 10 + id, id))
        .collect();
    assert_eq!(
        got,
        [2, 1, 2, 2],
        "the longest alone, in whatever order they come"
    );

    let mut unannounced = by_plan(&[1, 3]);
    assert_eq!(
        where_to(&mut unannounced, 10, 0),
        1,
        "the only one known is the longest"
    );
}

#[test]
fn an_announced_trajectory_that_never_comes_is_forgotten() {
    let mut driver = by_plan(&[1, 1]);
    for _ in 0..40 {
        let step = driver.now + 1;
        driver.arrive(step, 7).unwrap();
        driver.done(step, 10);
        driver.advance_to(driver.now + 66_000);
    }
    expect(&mut driver, 8, 500.0);
    driver.advance_to(driver.now + 600_000_000);
    assert_eq!(
        driver.stat("trajectories_active"),
        1,
        "not after a usual gap"
    );
    driver.advance_to(driver.now + 1_300_000_000);
    assert_eq!(
        driver.stat("trajectories_active"),
        0,
        "shares are for those that come"
    );
    driver.advance_to(driver.now + 10 * 6 * 3_600_000_000);
    assert!(!driver.expired.contains(&8), "batches may take days");
    driver.advance_to(driver.now + 3 * 6 * 3_600_000_000);
    assert_eq!(driver.stat("trajectories"), 0);
    assert!(driver.expired.contains(&8));
}

#[test]
fn an_announced_trajectory_that_comes_late_has_its_prediction() {
    let mut driver = by_plan(&[1, 1]);
    expect(&mut driver, 8, 500.0);
    driver.advance_to(driver.now + 12 * 3_600_000_000);
    driver.arrive(1, 8).unwrap();
    let active = driver.core.active_views();
    assert_eq!(active.len(), 1);
    assert_eq!((active[0].remaining, active[0].sigma), (500, Some(0.0)));
    assert!(driver.expired.is_empty());
}

#[test]
fn an_announcement_of_a_known_trajectory_is_a_prediction() {
    let mut driver = by_plan(&[1, 1]);
    driver.arrive(1, 7).unwrap();
    expect(&mut driver, 7, 77.0);
    assert_eq!(driver.core.trajectory_view(7).unwrap().remaining, 77);
    let active = driver.core.active_views();
    assert_eq!(active.len(), 1);
    assert_eq!((active[0].remaining, active[0].sigma), (77, Some(0.0)));
    assert!(active[0].home.is_some());
    for (mean, sigma) in [(f64::NAN, 0.1), (-1.0, 0.1), (1.0, 9.0)] {
        let event = Event::TrajectoryExpected {
            trajectory: 9,
            group: None,
            mean,
            sigma,
        };
        driver.handle(event).unwrap_err();
        assert!(driver.core.trajectory_view(9).is_none());
    }
}
