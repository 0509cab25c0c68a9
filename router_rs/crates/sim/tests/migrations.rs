//! Moves of KV, small enough for arithmetic on paper.

mod cases;

use cases::{policy, script, spec, workload};
use heddle_core::plan::{PlanSpec, Share};
use heddle_sim::network::Link;
use heddle_sim::prediction::Prediction;
use heddle_sim::spec::Loss;
use heddle_sim::{Report, Spec, Workload, simulate};

const FAST: u64 = 0;
const SLOW: u64 = 1;

/// A fast worker (degree 4) and a slow one; the longest trajectory belongs on the fast one, the others on the slow one.
fn fast_and_slow() -> Spec {
    let mut spec = spec(&[4, 1]);
    for truth in spec.truth.values_mut() {
        truth.link = Some(Link {
            tokens_per_s: 100_000.0,
            setup_s: 0.001,
        });
    }
    let share = |worker, size| Share { worker, size };
    spec.plan = Some(PlanSpec {
        version: 1,
        partition: vec![share(FAST, 1), share(SLOW, 1)],
        ttl_ms: None,
    });
    // Whatever comes is taken for short until it is predicted.
    spec.policy = policy(r#"{"prior_mean_tokens": 1, "prior_sigma": 0}"#);
    spec.prediction = Prediction::Oracle;
    spec.end_signal = true;
    spec.timeline = true;
    spec
}

/// The longest in one step, and a shorter one that comes back after `gap` seconds when the longest is over: then it has
/// the fast worker to itself.
fn one_and_another(gap: f64) -> Workload {
    workload(vec![
        script(1000, &[(0, 301, 0.0)]),
        script(1000, &[(0, 101, gap), (50, 11, 0.0)]),
    ])
}

fn run(workload: &Workload, spec: &Spec) -> Report {
    simulate(workload, spec).unwrap().report
}

fn close(got: f64, expected: f64) {
    assert!(
        (got - expected).abs() < 1e-5,
        "got {got}, expected {expected}"
    );
}

/// Seconds of the second trajectory's first step on the slow worker, alone: 1000 tokens of prefill, then 100 decode
/// steps.
fn first_step() -> f64 {
    0.004 + 0.1 + 100.0 * 0.010 + 1e-6 * (100.0 * 1000.0 + 100.0 * 99.0 / 2.0)
}

/// Seconds of its second step on the fast worker with the KV of 1100 tokens there: 51 tokens are new.
fn second_step() -> f64 {
    (0.004 + 51.0 * 1e-4 + 10.0 * 0.010 + 1e-6 * (10.0 * 1151.0 + 45.0)) / 4.0
}

/// Setup and 1100 tokens: all that has KV, which the last token sampled has not.
const TRANSFER: f64 = 0.001 + 1100.0 / 100_000.0;

#[test]
fn a_move_that_fits_into_the_tool_gap_costs_nothing() {
    let report = run(&one_and_another(2.0), &fast_and_slow());
    close(report.makespan_s, first_step() + 2.0 + second_step());
    let moved = report.migrations;
    assert_eq!((moved.landed, moved.hidden, moved.waited_for), (1, 1, 0));
    assert_eq!((moved.found, moved.not_found), (1, 0));
    assert_eq!(moved.tokens, 1100);
    close(moved.seconds, TRANSFER);
    assert_eq!((report.moves, report.recomputed_tokens), (0, 0));
    let workers: Vec<usize> = report
        .timeline
        .iter()
        .filter(|stay| stay.trajectory == 1)
        .map(|stay| stay.worker)
        .collect();
    assert_eq!(workers, [SLOW as usize, FAST as usize]);
}

#[test]
fn a_step_waits_for_the_rest_of_a_move_that_is_worth_it() {
    let report = run(&one_and_another(0.005), &fast_and_slow());
    close(report.makespan_s, first_step() + TRANSFER + second_step());
    let moved = report.migrations;
    assert_eq!((moved.landed, moved.hidden, moved.waited_for), (1, 0, 1));
}

#[test]
fn without_links_the_context_is_computed_again() {
    let mut spec = fast_and_slow();
    for truth in spec.truth.values_mut() {
        truth.link = None;
    }
    let report = run(&one_and_another(2.0), &spec);
    assert_eq!((report.migrations.requested, report.moves), (0, 1));
    assert_eq!(report.recomputed_tokens, 1100);
    close(
        report.makespan_s,
        first_step() + 2.0 + second_step() + 1100.0 * 1e-4 / 4.0,
    );
}

#[test]
fn two_moves_out_of_one_host_share_its_network() {
    // Two of each pair: both of the shorter ones leave the slow workers, which are on one host.
    let mut spec = fast_and_slow();
    spec.workers = vec![4, 4, 1, 1];
    spec.hosts = vec![0, 1, 2, 2];
    spec.host_tokens_per_s = Some(100_000.0);
    let share = |worker, size| Share { worker, size };
    spec.plan = Some(PlanSpec {
        version: 1,
        partition: vec![share(0, 2), share(1, 2), share(2, 1), share(3, 2)],
        ttl_ms: None,
    });
    let long = script(1000, &[(0, 301, 0.0)]);
    let short = script(1000, &[(0, 101, 2.0), (50, 11, 0.0)]);
    let longer = script(1000, &[(0, 101, 2.0), (50, 21, 0.0)]);
    let workload = workload(vec![long.clone(), long, short, longer]);
    let report = run(&workload, &spec);
    let moved = report.migrations;
    assert_eq!((moved.landed, moved.tokens), (2, 2200), "{moved:?}");
    // Both set up at once, then 50,000 tokens a second each.
    close(moved.seconds, 2.0 * (0.001 + 1100.0 / 50_000.0));
}

#[test]
fn a_transfer_lost_with_its_target_leaves_the_trajectory_where_it_was() {
    let mut spec = fast_and_slow();
    for truth in spec.truth.values_mut() {
        truth.link = Some(Link {
            tokens_per_s: 1_000.0,
            setup_s: 0.0,
        });
    }
    spec.policy =
        policy(r#"{"migration": "on_rank_change", "prior_mean_tokens": 1, "prior_sigma": 0}"#);
    spec.losses = vec![Loss {
        worker: FAST as usize,
        at_s: first_step() + 0.01,
        back_s: None,
    }];
    let report = run(&one_and_another(2.0), &spec);
    let moved = report.migrations;
    assert_eq!((moved.landed, moved.failed), (0, 1), "{moved:?}");
    assert_eq!(report.recomputed_tokens, 0, "its KV is still there");
    close(report.makespan_s, first_step() + 2.0 + 4.0 * second_step());
}
