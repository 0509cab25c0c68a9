//! Whole rollouts on a modelled cluster: Heddle's default policy does no harm, and helps where there is a tail.
//!
//! The core knows no lengths here: it has its own estimates only. Its cost table is close to the truth, or off by 30 %,
//! or wrong about one worker.

use heddle_core::Policy;

use crate::cluster::{Engine, Workload, lower_bound_s, rollout};

const BASELINES: [&str; 4] = [
    r#"{"order":"fcfs","placement":"round_robin","admission":"unlimited"}"#,
    r#"{"order":"fcfs","placement":"least_load","admission":"unlimited"}"#,
    r#"{"order":"fcfs","placement":"sticky","admission":"unlimited"}"#,
    r#"{"order":"fcfs","placement":"cache_aware","admission":"unlimited"}"#,
];
const SEEDS: u64 = 3;

fn fleet(degrees: &[u32], slots: u32, kv_tokens: u64, slowness: f64) -> Vec<Engine> {
    let engine = |&degree: &u32| Engine {
        degree,
        slots,
        kv_tokens: kv_tokens * u64::from(degree),
        slowness,
    };
    degrees.iter().map(engine).collect()
}

/// Makespan of the best baseline over that of the default policy, each a mean over seeds: above 1, Heddle is faster.
fn gain(engines: &[Engine], workload: impl Fn(u64) -> Workload) -> f64 {
    let workloads: Vec<Workload> = (1..=SEEDS).map(workload).collect();
    let mean = |json: &str| {
        let policy = Policy::from_json(json).unwrap();
        let total: f64 = workloads
            .iter()
            .map(|w| rollout(policy.clone(), engines, w, None).makespan_s)
            .sum();
        total / SEEDS as f64
    };
    let bound: f64 = workloads
        .iter()
        .map(|w| lower_bound_s(engines, w))
        .sum::<f64>()
        / SEEDS as f64;
    let baselines = BASELINES.map(mean);
    let heddle = mean("{}");
    println!(
        "lower bound {bound:.0}, round robin, least load, sticky, cache-aware {baselines:.0?}, Heddle {heddle:.0}"
    );
    assert!(heddle >= bound, "no schedule beats the bound");
    baselines.into_iter().fold(f64::INFINITY, f64::min) / heddle
}

/// Coding agents: lengths differ by an order of magnitude, over prompts and within one.
fn heavy_tail(groups: u64) -> impl Fn(u64) -> Workload {
    move |seed| Workload::drawn(groups, 16, seed, 6_000.0, 0.8, 0.5)
}

#[test]
fn a_heavy_tail_on_mixed_degrees_ends_a_quarter_earlier_than_under_any_baseline() {
    let gain = gain(&fleet(&[4, 2, 1, 1, 1], 16, 400_000, 1.0), heavy_tail(6));
    assert!(gain > 1.25, "{gain:.2}");
}

#[test]
fn a_cost_table_off_by_thirty_percent_does_no_harm() {
    let gain = gain(&fleet(&[4, 2, 1, 1, 1], 16, 400_000, 1.3), heavy_tail(6));
    assert!(gain > 1.25, "{gain:.2}");
}

#[test]
fn a_worker_half_as_fast_as_it_says_is_found_out() {
    let mut engines = fleet(&[1, 1, 1, 1], 16, 300_000, 1.0);
    engines[2].slowness = 2.0;
    let gain = gain(&engines, heavy_tail(6));
    assert!(gain > 1.1, "{gain:.2}");
}

#[test]
fn equal_workers_are_used_as_well_as_by_the_best_baseline() {
    let gain = gain(&fleet(&[1, 1, 1, 1], 16, 300_000, 1.0), heavy_tail(6));
    assert!(gain > 1.0, "{gain:.2}");
}

#[test]
fn kv_that_does_not_hold_the_working_set_does_no_harm() {
    let gain = gain(&fleet(&[1, 1, 1, 1], 32, 80_000, 1.0), heavy_tail(8));
    assert!(gain > 1.0, "{gain:.2}");
}

#[test]
fn one_worker_alone_gains_by_order() {
    let gain = gain(&fleet(&[1], 16, 300_000, 1.0), heavy_tail(3));
    assert!(gain > 1.1, "{gain:.2}");
}

#[test]
fn trajectories_of_one_length_lose_little_to_the_search_for_a_tail() {
    let same = |seed| Workload::drawn(6, 16, seed, 6_000.0, 0.05, 0.05);
    let mixed = gain(&fleet(&[4, 2, 1, 1, 1], 16, 400_000, 1.0), same);
    assert!(mixed > 1.1, "{mixed:.2}");
    // The worst case known: nothing can be gained, and what own progress says about the rest is noise.
    let equal = gain(&fleet(&[1, 1, 1, 1], 16, 300_000, 1.0), same);
    assert!(equal > 0.9, "{equal:.2}");
}

#[test]
fn short_trajectories_are_not_slowed_down() {
    let short = |seed| Workload::drawn(6, 16, seed, 700.0, 0.4, 0.4);
    let gain = gain(&fleet(&[4, 2, 1, 1, 1], 16, 400_000, 1.0), short);
    assert!(gain > 0.97, "{gain:.2}");
}

#[test]
fn a_predictor_that_knows_more_than_own_progress_helps() {
    let engines = fleet(&[4, 2, 1, 1, 1], 16, 400_000, 1.0);
    let total = |oracle| {
        let run =
            |seed| rollout(Policy::default(), &engines, &heavy_tail(6)(seed), oracle).makespan_s;
        (1..=SEEDS).map(run).sum::<f64>()
    };
    let (own, predicted) = (total(None), total(Some(0.3)));
    assert!(predicted < own, "{predicted:.0} against {own:.0}");
}
