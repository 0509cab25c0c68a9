//! What was seen of workers' speed, and what follows for a light load.

use crate::driver::Driver;
use crate::placements::{placed, where_to};

const MS: u64 = 1000;

/// One step of a trajectory, and its tool gap. Workers 1 and 2 take so long for one; answers which of them it was.
fn step(driver: &mut Driver, trajectory: u64, takes_ms: [u64; 2]) -> u64 {
    let step = driver.now + 1_000_000;
    let worker = where_to(driver, step, trajectory);
    driver.advance_to(driver.now + takes_ms[worker as usize - 1] * MS);
    driver.done(step, 10);
    driver.advance_to(driver.now + MS);
    worker
}

/// Two equal workers that were seen at work for a while.
fn seen(takes_ms: [u64; 2]) -> Driver {
    let mut driver = placed("by_rank", &[(1, 1, 64), (2, 1, 64)]);
    let homes = [
        step(&mut driver, 1, takes_ms),
        step(&mut driver, 2, takes_ms),
    ];
    assert_eq!(homes, [1, 2]);
    for _ in 0..20 {
        step(&mut driver, 1, takes_ms);
        step(&mut driver, 2, takes_ms);
    }
    driver
}

fn homes_of_newcomers(driver: &mut Driver, number: u64) -> Vec<u64> {
    (10..10 + number)
        .map(|trajectory| where_to(driver, trajectory, trajectory))
        .collect()
}

#[test]
fn a_little_faster_is_no_reason_to_take_everybody() {
    let mut driver = seen([100, 105]);
    let homes = homes_of_newcomers(&mut driver, 8);
    let first = homes.iter().filter(|&&home| home == 1).count();
    assert_eq!(first, 4, "{homes:?}");
}

#[test]
fn much_faster_is_one() {
    let mut driver = seen([100, 1000]);
    assert_eq!(homes_of_newcomers(&mut driver, 4), [1, 1, 1, 1]);
}

#[test]
fn a_worker_that_had_a_slow_minute_is_tried_again() {
    let mut driver = seen([100, 1000]);
    let homes: Vec<u64> = (10..600)
        .map(|trajectory| step(&mut driver, trajectory, [100, 100]))
        .collect();
    assert_eq!(homes[..50], [1; 50]);
    let late = homes[490..].iter().filter(|&&home| home == 2).count();
    assert!((30..=70).contains(&late), "{late} of 100 there");
}
