//! Where steps run: the five placements, plans, groups.

use heddle_core::event::{StepArrived, StepEnded, WorkerUp};
use heddle_core::plan::{PlanSpec, Share};
use heddle_core::{Event, Policy};

use crate::driver::{Driver, prompt};

pub fn placed(placement: &str, workers: &[(u64, u32, u32)]) -> Driver {
    let json = format!(
        r#"{{"placement":"{placement}","order":"fcfs","admission":"unlimited","gather_weight":0}}"#
    );
    let mut driver = Driver::new(Policy::from_json(&json).unwrap());
    for &(worker, degree, slots) in workers {
        driver.worker_up(worker, degree, slots);
    }
    driver
}

pub fn where_to(driver: &mut Driver, step: u64, trajectory: u64) -> u64 {
    driver
        .arrive(step, trajectory)
        .expect("dispatched at once")
        .worker
}

fn predict(driver: &mut Driver, trajectory: u64, mean: f64) {
    driver
        .handle(Event::Predicted {
            trajectory,
            mean,
            sigma: 0.0,
            gap_us: None,
        })
        .unwrap();
}

#[test]
fn round_robin_takes_turns_over_steps_and_skips_who_is_gone() {
    let mut driver = placed("round_robin", &[(1, 1, 9), (2, 1, 9), (5, 1, 9)]);
    let got: Vec<u64> = (1..=4).map(|step| where_to(&mut driver, step, 7)).collect();
    assert_eq!(got, [1, 2, 5, 1]);
    driver
        .handle(Event::WorkerDraining {
            worker: 2,
            generation: 1,
        })
        .unwrap();
    assert_eq!(where_to(&mut driver, 5, 7), 5);
}

#[test]
fn least_load_weighs_by_slots() {
    let mut driver = placed("least_load", &[(1, 1, 2), (2, 1, 6)]);
    let got: Vec<u64> = (1..=8)
        .map(|step| where_to(&mut driver, step, step))
        .collect();
    assert_eq!(
        got.iter().filter(|&&worker| worker == 2).count(),
        6,
        "{got:?}"
    );
}

#[test]
fn at_zero_load_assigned_trajectories_decide() {
    for placement in ["least_load", "sticky", "by_rank"] {
        let mut driver = placed(placement, &[(1, 1, 9), (2, 1, 9), (3, 1, 9)]);
        let mut got = Vec::new();
        for step in 1..=6 {
            got.push(where_to(&mut driver, step, step));
            driver.done(step, 10);
        }
        got.sort_unstable();
        assert_eq!(got, [1, 1, 2, 2, 3, 3], "{placement}");
    }
}

#[test]
fn at_zero_load_a_fleet_that_is_faster_than_its_tables_is_used_as_a_whole() {
    let mut driver = placed("by_rank", &[(1, 1, 64), (2, 1, 64), (3, 1, 64), (4, 1, 64)]);
    let mut got = Vec::new();
    for step in 1..=12 {
        got.push(where_to(&mut driver, step, step));
        // A hundredth of what the table says; each has ended before the next comes.
        driver.advance_to(driver.now + 500);
        driver.done(step, 4);
        driver.advance_to(driver.now + 500);
    }
    got.sort_unstable();
    assert_eq!(got, [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]);
}

#[test]
fn sticky_stays_until_its_worker_is_gone() {
    let mut driver = placed("sticky", &[(1, 1, 9), (2, 1, 9)]);
    assert_eq!(where_to(&mut driver, 1, 1), 1);
    driver.done(1, 10);
    for step in 2..=5 {
        where_to(&mut driver, step, 10 + step);
    }
    assert_eq!(where_to(&mut driver, 6, 1), 1);
    driver.done(6, 10);
    driver
        .handle(Event::WorkerDown {
            worker: 1,
            generation: 1,
        })
        .unwrap();
    assert_eq!(where_to(&mut driver, 7, 1), 2);
}

#[test]
fn a_worker_of_a_new_generation_has_no_residents() {
    let mut driver = placed("sticky", &[(1, 1, 9), (2, 1, 9)]);
    where_to(&mut driver, 1, 1);
    driver.done(1, 10);
    for (step, trajectory) in [(2, 2), (3, 3), (4, 4)] {
        where_to(&mut driver, step, trajectory);
    }
    assert_eq!(driver.core.trajectory_view(1).unwrap().home, Some(1));
    let up = WorkerUp {
        worker: 1,
        generation: 2,
        degree: 1,
        slots: 9,
        kv_tokens: 0,
        has_priority: true,
        profile: None,
        link: None,
        weights: 0,
    };
    driver.worker(up);
    assert_eq!(driver.core.trajectory_view(1).unwrap().home, None);
    assert_eq!(driver.core.worker_views()[0].homed, 0);
}

fn with_chain(step: u64, trajectory: u64, chain: &[u64]) -> StepArrived {
    StepArrived {
        step,
        trajectory,
        prompt_tokens: 100,
        chain: chain.to_vec(),
        ..StepArrived::default()
    }
}

#[test]
fn cache_aware_follows_the_prefix_not_the_trajectory() {
    let mut driver = placed("cache_aware", &[(1, 1, 9), (2, 1, 9)]);
    let first = driver.arrive_with(with_chain(1, 1, &[10, 11, 12])).unwrap();
    let other = driver.arrive_with(with_chain(2, 2, &[20])).unwrap();
    assert_eq!((first.worker, first.reason), (1, "smallest_cache"));
    assert_eq!((other.worker, other.reason), (2, "smallest_cache"));
    let same_prefix = driver
        .arrive_with(with_chain(3, 3, &[10, 11, 12, 13]))
        .unwrap();
    assert_eq!((same_prefix.worker, same_prefix.reason), (1, "cache"));
    let too_little = driver.arrive_with(with_chain(4, 4, &[10, 30, 31])).unwrap();
    assert_eq!(
        (too_little.worker, too_little.reason),
        (2, "smallest_cache")
    );
}

#[test]
fn cache_aware_balances_when_loads_are_far_apart() {
    let json = r#"{"placement":"cache_aware","order":"fcfs","admission":"unlimited","balance_abs_threshold":3}"#;
    let mut driver = Driver::with_policy(json);
    driver.worker_up(1, 1, 20);
    driver.worker_up(2, 1, 20);
    for step in 1..=4 {
        let dispatch = driver
            .arrive_with(with_chain(step, step, &[10, 11]))
            .unwrap();
        assert_eq!(dispatch.worker, 1);
    }
    let dispatch = driver.arrive_with(with_chain(5, 5, &[10, 11])).unwrap();
    assert_eq!((dispatch.worker, dispatch.reason), (2, "balance"));
}

#[test]
fn the_longest_go_to_the_highest_degree_and_short_ones_leave_it_room() {
    let mut driver = placed("by_rank", &[(1, 1, 16), (2, 4, 16)]);
    for t in 1..=8u64 {
        driver.arrive(t, t);
        driver.done(t, 10);
    }
    for t in 1..=8u64 {
        predict(&mut driver, t, if t == 5 { 50_000.0 } else { 500.0 });
    }
    assert_eq!(
        where_to(&mut driver, 105, 5),
        2,
        "fifty thousand tokens belong on four GPUs"
    );
}

#[test]
fn a_trajectory_stays_when_a_move_would_not_pay() {
    let mut driver = placed("by_rank", &[(1, 1, 16), (2, 1, 16)]);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    let home = driver.core.trajectory_view(1).unwrap().home.unwrap();
    driver.end_with(StepEnded {
        step: 1,
        outcome: heddle_core::event::Outcome::Done,
        prompt_tokens: 100_000,
        output_tokens: 10,
        cached_tokens: 0,
    });
    driver.arrive(3, 3);
    predict(&mut driver, 1, 200.0);
    assert_eq!(
        where_to(&mut driver, 4, 1),
        home,
        "a hundred thousand tokens to prefill against two hundred to go"
    );
    assert_eq!(driver.stat("moves_total"), 0);
}

#[test]
fn equal_workers_are_levelled_whoever_is_predicted_longest() {
    let mut driver = placed("by_rank", &[(1, 1, 64)]);
    // Sixty begin on the only worker, then an equal one joins.
    for t in 1..=60u64 {
        driver.arrive(t, t);
    }
    // Ten tokens at the believed pace.
    driver.advance_to(84_000);
    for t in 1..=60u64 {
        driver.done(t, 10);
    }
    driver.worker_up(2, 1, 64);
    for t in 1..=60u64 {
        // The later, the longer; the longest do not gather on one worker.
        predict(&mut driver, t, 2_000.0 * t as f64);
    }
    let mut left = 0;
    for t in 1..=60u64 {
        let reason = driver.arrive(100 + t, t).unwrap().reason;
        left += u64::from(reason == "levelled");
    }
    let homed = |worker: usize| driver.core.worker_views()[worker].homed;
    assert!(
        homed(1) >= 12 && homed(0) >= homed(1),
        "{} and {}",
        homed(0),
        homed(1)
    );
    assert_eq!(driver.stat("moves_total"), left);
    // Nothing moves to and fro where both are as full.
    for t in 1..=60u64 {
        driver.done(100 + t, 10);
        driver.arrive(200 + t, t);
    }
    assert_eq!(driver.stat("moves_total"), left);
}

#[test]
fn a_large_context_does_not_leave_for_the_small_ones_of_an_equal_worker() {
    let mut driver = placed("by_rank", &[(1, 1, 16), (2, 1, 16)]);
    // One small trajectory on each worker, and beside one of them a large one, which would be as slow beside the other.
    for (t, tokens) in [(1, 1_000), (2, 1_000), (3, 100_000)] {
        driver.arrive_with(prompt(t, t, tokens));
        driver.done_with(t, tokens, 10);
        predict(&mut driver, t, 50_000.0);
    }
    let homes: Vec<_> = (1..=3)
        .map(|t| driver.core.trajectory_view(t).unwrap().home)
        .collect();
    assert!(homes[0] != homes[1] && homes[..2].contains(&homes[2]));
    for round in 1..=4u64 {
        for (t, tokens) in [(1, 1_010), (2, 1_010), (3, 100_010)] {
            driver.arrive_with(prompt(10 * round + t, t, tokens));
            driver.done_with(10 * round + t, tokens, 10);
        }
    }
    assert_eq!(driver.stat("moves_total"), 0, "each computes it again");
}

#[test]
fn a_plan_gives_each_worker_its_ranks_scaled_to_those_left() {
    let mut driver = placed("by_rank", &[(1, 1, 16), (2, 4, 16), (3, 2, 16)]);
    let share = |worker, size| Share { worker, size };
    let spec = PlanSpec {
        version: 1,
        partition: vec![share(2, 1), share(3, 2), share(1, 5)],
        ttl_ms: None,
    };
    driver.handle(Event::InstallPlan(spec.clone())).unwrap();
    for t in 1..=8u64 {
        driver.arrive(t, t);
        predict(&mut driver, t, 1_000.0 * (9 - t) as f64);
        driver.done(t, 1);
    }
    // All are known and ranked now; the next step of each goes by its rank where that pays, and none leaves for a
    // slower worker.
    for t in 1..=8u64 {
        driver.arrive(100 + t, t);
        driver.done(100 + t, 1);
    }
    let home = |t: u64| driver.core.trajectory_view(t).unwrap().home.unwrap();
    assert_eq!(home(1), 2);
    assert_eq!(
        driver
            .handle(Event::InstallPlan(spec))
            .unwrap_err()
            .to_string(),
        "version: 1 is not newer than 1"
    );
}

#[test]
fn an_expired_plan_is_not_used() {
    let mut driver = placed("by_rank", &[(1, 1, 16)]);
    let partition = vec![Share { worker: 1, size: 4 }];
    driver
        .handle(Event::InstallPlan(PlanSpec {
            version: 3,
            partition,
            ttl_ms: Some(10),
        }))
        .unwrap();
    assert_eq!(driver.stat("plan_version"), 3);
    driver.advance_to(10_000);
    assert_eq!(driver.stat("plan_version"), 0);
}

#[test]
fn siblings_start_together_but_never_drown_a_worker() {
    let mut driver = placed("by_rank", &[(1, 1, 16), (2, 1, 16)]);
    let sibling = |step, group| StepArrived {
        step,
        trajectory: step,
        group: Some(group),
        prompt_tokens: 100,
        ..StepArrived::default()
    };
    let mut homes = Vec::new();
    for group in 0..4 {
        for member in 0..4 {
            homes.push(
                driver
                    .arrive_with(sibling(group * 4 + member + 1, group))
                    .unwrap(),
            );
        }
    }
    let on_first = homes.iter().filter(|dispatch| dispatch.worker == 1).count();
    assert!(
        (6..=10).contains(&on_first),
        "{on_first} of 16 on one of two equal workers"
    );
    assert!(homes.iter().any(|dispatch| dispatch.reason == "siblings"));
}

#[test]
fn a_held_step_is_taken_by_a_worker_that_has_become_free() {
    let mut driver = placed("by_rank", &[(1, 1, 1), (2, 1, 1)]);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    driver.arrive(3, 3);
    driver.arrive(4, 4);
    assert_eq!(driver.stat("steps_held_slot"), 2);
    let queued_on: Vec<u64> = driver
        .core
        .worker_views()
        .iter()
        .map(|w| w.queued as u64)
        .collect();
    // Both workers end what they run; whatever the queues were, nobody idles beside a held step for long.
    driver.done(1, 10);
    driver.done(2, 10);
    assert_eq!(driver.stat("steps_held_slot"), 0, "{queued_on:?}");
}
