//! The lower bound: exact where arithmetic on paper is, and never above what any policy needs.

mod cases;

use cases::{bound, close, costs, policy, script, spec, workload};
use heddle_sim::bound::{alone_s, lower_bound};
use heddle_sim::prediction::Prediction;
use heddle_sim::{Script, Spec, Turn, simulate};
use proptest::prelude::*;

#[test]
fn the_bound_is_the_longest_alone_or_all_work_over_all_throughput() {
    let many = workload(vec![script(1, &[(0, 1001, 0.0)]); 64]);
    let spec = spec(&[1, 1]);
    let bound = bound(&many, &spec);
    close(
        bound.longest_alone_s,
        alone_s(&many.scripts()[0], &[&costs()], 0),
        1,
    );
    // Best of 8 slots: 17 ms for 8 tokens; each token also reads its context; each prompt is prefilled.
    let decode = 64.0 * 1000.0 * 0.017 / 8.0;
    let read = 64.0 * 1e-6 * (1000.0 + 1000.0 * 999.0 / 2.0);
    close(bound.work_s, (decode + read + 64.0 * 1e-4) / 2.0, 1);
    assert!(bound.seconds() > bound.longest_alone_s);
    let run = simulate(&many, &spec).unwrap();
    assert!(run.report.makespan_s >= bound.seconds());
}

#[test]
fn the_bound_knows_that_a_step_reads_no_more_context_than_there_is_kv() {
    let many = workload(vec![script(1, &[(0, 1001, 0.0)]); 64]);
    let mut spec = spec(&[1, 1]);
    spec.truth.get_mut(&1).unwrap().kv_tokens = 2000;
    let bound = bound(&many, &spec);
    // A step takes 9 ms and 1 ms a sequence; all context is read in so many steps at least.
    let own = 64.0 * (1000.0 + 1000.0 * 999.0 / 2.0);
    let decode = 64.0 * 1000.0 * 1e-3 + 9e-3 * own / 2000.0;
    close(bound.work_s, (decode + own * 1e-6 + 64.0 * 1e-4) / 2.0, 3);
    let run = simulate(&many, &spec).unwrap();
    assert!(run.report.makespan_s >= bound.seconds());
}

#[test]
fn the_shortest_of_a_group_computes_what_all_share() {
    let of = |prompt| Script {
        group: Some(0),
        ..script(prompt, &[(0, 1, 0.0)])
    };
    let mut spec = spec(&[1]);
    let costs = &mut spec.truth.get_mut(&1).unwrap().costs;
    (costs.prefill_fixed_s, costs.prefill_pair_s) = (0.0, 1e-6);
    // Each token once, and no other: whoever comes first in the list, and however many are as short.
    let tokens = |count: f64| count * 1e-4;
    let upto = |count: f64| count * count / 2.0 * 1e-6;
    for prompts in [[800, 500], [500, 800]] {
        let bound = bound(&workload(prompts.map(of).to_vec()), &spec);
        close(bound.work_s, tokens(800.0) + upto(800.0), 1);
    }
    let last_again = tokens(1.0) + upto(500.0) - upto(499.0);
    for prompts in [[800, 500, 500], [500, 500, 800]] {
        let bound = bound(&workload(prompts.map(of).to_vec()), &spec);
        close(bound.work_s, tokens(800.0) + upto(800.0) + last_again, 1);
    }
}

/// Decode steps of `9 ms + b ms`, up to 8 at once; nothing else takes time.
fn decode_only(workers: &[u32]) -> Spec {
    let mut spec = spec(workers);
    for truth in spec.truth.values_mut() {
        truth.costs.prefill_fixed_s = 0.0;
        truth.costs.prefill_token_s = 0.0;
        truth.costs.context_token_s = 0.0;
    }
    spec
}

#[test]
fn the_longest_cannot_be_quick_in_the_batches_that_the_others_need() {
    let long = script(1, &[(0, 1001, 0.0)]);
    let short = script(1, &[(0, 101, 0.0)]);
    let many = workload([vec![long], vec![short; 30]].concat());
    let spec = decode_only(&[1]);
    let bound = bound(&many, &spec);
    // Alone 1000 steps of 10 ms; 4000 tokens in batches of 8 take 500 steps of 17 ms. But the worker takes at least 1000
    // steps, and each token adds its millisecond.
    close(bound.longest_alone_s, 10.0, 1);
    close(bound.work_s, 8.5, 1);
    let together = 1000.0 * 0.009 + 4000.0 * 0.001;
    assert!(
        (0.99 * together..together + 1e-6).contains(&bound.joint_s),
        "{bound:?}"
    );
    let run = simulate(&many, &spec).unwrap();
    assert!(run.report.makespan_s >= bound.seconds());
}

#[test]
fn a_worker_of_all_gpus_leaves_none_for_others() {
    let many = workload(vec![script(1, &[(0, 1001, 0.0)]); 16]);
    let mut spec = decode_only(&[1, 4]);
    // The large one is quick and, for what it takes, slow.
    spec.truth.get_mut(&4).unwrap().costs = costs().slowed(0.5);
    spec.truth.get_mut(&4).unwrap().costs.context_token_s = 0.0;
    let with = |gpus| lower_bound(&many, &spec.truth, gpus, 1.0);
    let small = lower_bound(&many, &[(1, spec.truth[&1].clone())].into(), 4, 1.0);
    let large = lower_bound(&many, &[(4, spec.truth[&4].clone())].into(), 4, 1.0);
    close(with(4).seconds(), small.seconds().min(large.seconds()), 1);
    // With one more, both can be there, and the longest run on one and the work is done by the other.
    assert!(with(5).longest_alone_s < small.longest_alone_s - 1e-3);
}

/// A few long trajectories among short ones, some of them groups, with gaps.
fn scripts() -> impl Strategy<Value = Vec<Script>> {
    let script = (
        1u64..3_000,
        prop::option::of(0u64..3),
        prop_oneof![Just(0.0), 0.0..2.0f64],
        prop_oneof![4 => 1usize..3, 1 => 3usize..9],
        prop::collection::vec(
            (0u64..400, 1u64..300, prop_oneof![Just(0.0), 0.0..1.0f64]),
            8,
        ),
    )
        .prop_map(|(prompt, group, start_s, steps, turns)| Script {
            prompt,
            group,
            start_s,
            turns: turns[..steps.min(turns.len())]
                .iter()
                .map(|&(input, output, tool_s)| Turn {
                    input,
                    output,
                    tool_s,
                })
                .collect(),
        });
    prop::collection::vec(script, 1..60)
}

fn policies() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "{}",
        r#"{"order":"round_robin","placement":"sticky","admission":"unlimited"}"#,
        r#"{"order":"round_robin","placement":"cache_aware","admission":"unlimited"}"#,
        r#"{"order":"round_robin","placement":"least_load","admission":"unlimited"}"#,
        r#"{"order":"shortest_first","placement":"sticky","admission":"unlimited"}"#,
        r#"{"order":"fcfs","placement":"round_robin","admission":"unlimited"}"#,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_policy_beats_the_bound(
        scripts in scripts(),
        workers in prop::collection::vec(prop::sample::select(vec![1u32, 2, 4]), 1..5),
        rules in policies(),
        kv in 9_000u64..40_000,
        slots in 1u32..40,
        reading in prop::sample::select(vec![0.0, 1e-7, 1e-6, 1e-5]),
        knee in 2u32..12,
        fixed_s in prop::sample::select(vec![0.0, 0.004]),
        oracle in any::<bool>(),
    ) {
        let mut spec = Spec {
            policy: policy(rules),
            prediction: if oracle { Prediction::Oracle } else { Prediction::None },
            ..spec(&workers)
        };
        // Larger ones are faster by less than their size, to several degrees, and steps are flat up to a knee.
        for (degree, truth) in &mut spec.truth {
            let speed = f64::from(*degree).powf(0.7);
            truth.kv_tokens = kv * u64::from(*degree);
            truth.slots = slots;
            truth.costs.batches = vec![1, knee, knee + 20];
            truth.costs.step_seconds = [0.010, 0.011, 0.031].map(|seconds| seconds / speed).to_vec();
            truth.costs.context_token_s = reading / speed;
            truth.costs.prefill_token_s = 1e-5 / speed;
            truth.costs.prefill_fixed_s = fixed_s / speed;
        }
        let workload = workload(scripts);
        let report = simulate(&workload, &spec).unwrap().report;
        prop_assert_eq!(report.refused_trajectories, 0);
        let bound = bound(&workload, &spec);
        // Who was preempted or retracted gets one token of the prefill that makes up for it: a decode step less, no more.
        let again = report.workers.iter().map(|one| one.totals.preempted + one.totals.retracted).sum::<u64>() as f64;
        let steps = spec.truth.values().map(|truth| truth.costs.step_s(truth.slots as usize, truth.kv_tokens));
        let least = (1.0 - 1e-6) * bound.seconds() - again * steps.fold(0.0, f64::max);
        prop_assert!(report.makespan_s > least, "{} is below {:?}, {} preempted", report.makespan_s, bound, again);
        prop_assert!(bound.joint_s >= bound.longest_alone_s.max(bound.work_s));
    }
}
