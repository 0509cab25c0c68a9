//! The simulated cost against a worker executed step by step, and the two monotonies that the
//! solvers rely on.

use heddle_core::solver::{Cooling, CostKind, Profile, Request, SolverKind, Workload, solve};
use proptest::prelude::*;

fn request<'a>(
    lengths: &'a [f64],
    sigmas: &'a [f64],
    workers: &'a [u32],
    workload: Workload,
) -> Request<'a> {
    Request {
        lengths,
        sigmas,
        gpus: workers.iter().sum(),
        degrees: &[],
        workers,
        solver: SolverKind::Exact,
        cost: CostKind::Simulated,
        workload,
        aggregate_below: 0.0,
        seed: 0,
        cooling: Cooling::default(),
    }
}

/// Seconds one worker of degree 1 takes for all of them: with one worker the makespan is the cost
/// of the group.
fn group_seconds(lengths: &[f64], sigmas: &[f64], profile: &Profile, workload: Workload) -> f64 {
    solve(&request(lengths, sigmas, &[1], workload), profile)
        .map_or(f64::INFINITY, |plan| plan.makespan)
}

/// A worker of degree 1 with step time `base + per_request * batch`.
fn affine(
    base: f64,
    per_request: f64,
    slots: u32,
    kv_tokens: f64,
    per_context: f64,
    prefill: f64,
) -> Profile {
    let batches: Vec<u32> = vec![1, 2, 512];
    let steps: Vec<f64> = batches
        .iter()
        .map(|&batch| base + per_request * f64::from(batch))
        .collect();
    let json = serde_json::json!({"degrees": {"1": {
        "batches": batches, "step_seconds": steps, "slots": slots, "kv_tokens": kv_tokens,
        "seconds_per_context_token": per_context, "prefill_tokens_per_second": prefill,
    }}});
    Profile::parse(&json.to_string()).expect("valid")
}

#[test]
fn equal_trajectories_take_their_length_at_the_step_time_of_their_number() {
    let profile = affine(0.010, 0.001, 64, 0.0, 0.0, 0.0);
    for (n, length) in [(1, 100.0), (2, 100.0), (7, 350.0), (64, 10.0)] {
        let seconds = group_seconds(&vec![length; n], &[], &profile, Workload::default());
        let expected = length * (0.010 + 0.001 * n as f64);
        assert!(
            (seconds - expected).abs() < 1e-9 * expected,
            "{n}: {seconds} against {expected}"
        );
    }
}

#[test]
fn twice_the_slots_in_equal_trajectories_take_two_turns() {
    let profile = affine(0.010, 0.001, 8, 0.0, 0.0, 0.0);
    let seconds = group_seconds(&[100.0; 16], &[], &profile, Workload::default());
    assert!((seconds - 2.0 * 100.0 * 0.018).abs() < 1e-9, "{seconds}");
}

#[test]
fn short_ones_hide_beside_a_long_one_where_slots_are_free() {
    // Step time without company costs: the long one's 1000 steps hold 1000 tokens of the others in
    // the second slot.
    let profile = affine(0.010, 0.0, 2, 0.0, 0.0, 0.0);
    let mut lengths = vec![1000.0];
    lengths.extend([100.0; 10]);
    let seconds = group_seconds(&lengths, &[], &profile, Workload::default());
    assert!((seconds - 10.0).abs() < 1e-9, "{seconds}");
    lengths.extend([100.0; 2]);
    let seconds = group_seconds(&lengths, &[], &profile, Workload::default());
    assert!(
        (seconds - 11.0).abs() < 1e-9,
        "2200 tokens in two slots: {seconds}"
    );
}

#[test]
fn kv_capacity_limits_who_runs_at_once() {
    // Each holds 1000 + 50 tokens on average; 4200 tokens hold four of them.
    let profile = affine(0.010, 0.0, 64, 4200.0, 0.0, 0.0);
    let workload = Workload {
        context_tokens: 1000.0,
        ..Workload::default()
    };
    let seconds = group_seconds(&[100.0; 8], &[], &profile, workload);
    assert!((seconds - 2.0).abs() < 1e-9, "{seconds}");
    assert!(
        group_seconds(&[3300.0], &[], &profile, workload).is_infinite(),
        "its context outgrows the KV capacity"
    );
}

#[test]
fn a_lone_trajectory_takes_its_tokens_gaps_prefill_and_growing_context() {
    let profile = affine(0.010, 0.001, 8, 1e6, 1e-6, 10_000.0);
    let workload = Workload {
        context_tokens: 2000.0,
        cold_tokens: 500.0,
        input_per_output: 0.5,
        tool_seconds_per_output: 0.02,
    };
    let seconds = group_seconds(&[1000.0], &[], &profile, workload);
    // 1000 steps of 11 ms, 2 ms a step for the 2000 tokens held; 1 us for each token of 1.5 x
    // 1000²/2 more; tools; prefill.
    let expected =
        1000.0 * (0.011 + 0.002) + 1e-6 * 1.5 * 1e6 / 2.0 + 20.0 + (500.0 + 500.0) / 10_000.0;
    assert!(
        (seconds - expected).abs() < 1e-9 * expected,
        "{seconds} against {expected}"
    );
}

#[test]
fn uncertainty_makes_a_group_dearer_the_more_there_are() {
    let profile = affine(0.010, 0.0, 512, 0.0, 0.0, 0.0);
    let seconds = |n: usize, sigma: f64| {
        group_seconds(
            &vec![1000.0; n],
            &vec![sigma; n],
            &profile,
            Workload::default(),
        )
    };
    assert!(
        (seconds(1, 300.0) - 10.0).abs() < 1e-9,
        "one estimate is its own expectation"
    );
    assert!((seconds(64, 0.0) - 10.0).abs() < 1e-9);
    // The expected maximum of 64 standard normals is 2.3437.
    assert!((seconds(64, 300.0) - (10.0 + 3.0 * 2.343_733)).abs() < 1e-4);
    assert!(seconds(64, 300.0) > seconds(16, 300.0));
    assert!(seconds(64, 300.0) > seconds(64, 200.0));
}

/// One trajectory of the executor below.
struct Live {
    left: f64,
    /// Seconds until its tool gap ends; 0 while it decodes.
    gap: f64,
    tokens_in_step: f64,
}

/// The worker, executed: every decode step takes one token of each of the longest-remaining that
/// are ready, at most `slots`; after each `step_tokens` tokens a trajectory leaves for a tool gap.
/// Nothing of the closed form is used.
fn executed(
    lengths: &[f64],
    base: f64,
    per_request: f64,
    slots: usize,
    step_tokens: f64,
    gap: f64,
) -> f64 {
    let mut live: Vec<Live> = lengths
        .iter()
        .map(|&left| Live {
            left,
            gap: 0.0,
            tokens_in_step: 0.0,
        })
        .collect();
    let mut now = 0.0;
    let mut end: f64 = 0.0;
    while !live.is_empty() {
        live.sort_by(|a, b| b.left.total_cmp(&a.left));
        let ready = live.iter_mut().filter(|one| one.gap <= 0.0).take(slots);
        let mut batch = 0.0;
        let mut decoded: Vec<&mut Live> = Vec::new();
        for one in ready {
            batch += 1.0;
            decoded.push(one);
        }
        let seconds = if decoded.is_empty() {
            live.iter().map(|one| one.gap).fold(f64::INFINITY, f64::min)
        } else {
            for one in &mut decoded {
                one.left -= 1.0;
                one.tokens_in_step += 1.0;
            }
            base + per_request * batch
        };
        now += seconds;
        for one in &mut live {
            if one.gap > 0.0 {
                one.gap -= seconds;
            } else if one.tokens_in_step >= step_tokens {
                one.tokens_in_step = 0.0;
                one.gap = gap;
            }
        }
        // The last gap belongs to the trajectory too.
        for one in &live {
            if one.left <= 0.0 {
                end = end.max(now + one.gap.max(0.0));
            }
        }
        live.retain(|one| one.left > 0.0);
    }
    end
}

#[test]
fn a_group_costs_what_the_executed_worker_takes() {
    let mut state = 88_172_645_463_325_252_u64;
    let mut unit = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut worst: f64 = 1.0;
    for trial in 0..60 {
        let n = 1 + (unit() * 60.0) as usize;
        let slots = 1 + (unit() * 40.0) as usize;
        let lengths: Vec<f64> = (0..n)
            .map(|_| (50.0 + 1500.0 * unit().powi(3)).round())
            .collect();
        let (base, per_request) = (0.010, 0.0005 * unit());
        let (step_tokens, gap) = if trial % 2 == 0 {
            (1e9, 0.0)
        } else {
            (50.0, 2.0 * unit())
        };
        let profile = affine(base, per_request, slots as u32, 0.0, 0.0, 0.0);
        let per_output = if gap > 0.0 { gap / step_tokens } else { 0.0 };
        let workload = Workload {
            tool_seconds_per_output: per_output,
            ..Workload::default()
        };
        let cost = group_seconds(&lengths, &[], &profile, workload);
        let truth = executed(&lengths, base, per_request, slots, step_tokens, gap);
        let ratio = cost / truth;
        worst = worst.max(ratio).max(1.0 / ratio);
        let tolerance = if gap > 0.0 { 1.15 } else { 1.06 };
        assert!(
            (1.0 / tolerance..tolerance).contains(&ratio),
            "trial {trial}: n {n}, slots {slots}, gap {gap}: {cost} against {truth}"
        );
    }
    assert!(worst > 1.0, "the two ways are not the same program");
}

fn arbitrary_profile() -> impl Strategy<Value = Profile> {
    (
        0.001..0.05f64,
        prop::collection::vec(0.0..1.0f64, 5),
        1..40u32,
        prop_oneof![Just(0.0), 2000.0..50_000.0f64],
        prop_oneof![Just(0.0), 1e-9..1e-6f64],
        prop_oneof![Just(0.0), 1000.0..50_000.0f64],
    )
        .prop_map(|(first, rises, slots, kv_tokens, per_context, prefill)| {
            let batches = [1u32, 2, 4, 8, 16, 64];
            let mut steps = vec![first];
            for rise in rises {
                steps.push(steps[steps.len() - 1] * (1.0 + rise));
            }
            let json = serde_json::json!({"degrees": {"1": {
                "batches": batches, "step_seconds": steps, "slots": slots, "kv_tokens": kv_tokens,
                "seconds_per_context_token": per_context, "prefill_tokens_per_second": prefill,
            }}});
            Profile::parse(&json.to_string()).expect("valid")
        })
}

fn arbitrary_workload() -> impl Strategy<Value = Workload> {
    (
        0.0..3000.0f64,
        0.0..1.0f64,
        0.0..2.0f64,
        prop_oneof![Just(0.0), 0.0..0.1f64],
    )
        .prop_map(
            |(context_tokens, cold, input_per_output, tool_seconds_per_output)| Workload {
                context_tokens,
                cold_tokens: cold * context_tokens,
                input_per_output,
                tool_seconds_per_output,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_group_never_gets_cheaper_when_a_trajectory_joins_it(
        trajectories in prop::collection::vec((0.0..4000.0f64, 0.0..1500.0f64), 1..50),
        joining in (0.0..4000.0f64, 0.0..1500.0f64),
        uncertain in any::<bool>(),
        profile in arbitrary_profile(),
        workload in arbitrary_workload(),
    ) {
        let (lengths, sigmas): (Vec<f64>, Vec<f64>) = trajectories.iter().copied().unzip();
        let sigmas = if uncertain { sigmas } else { Vec::new() };
        let before = group_seconds(&lengths, &sigmas, &profile, workload);
        let mut more = lengths.clone();
        more.push(joining.0);
        let mut more_sigmas = sigmas.clone();
        if uncertain {
            more_sigmas.push(joining.1);
        }
        let after = group_seconds(&more, &more_sigmas, &profile, workload);
        prop_assert!(after >= before * (1.0 - 1e-12), "{before} became {after}");
    }

    #[test]
    fn a_group_never_gets_cheaper_when_a_trajectory_gets_longer(
        lengths in prop::collection::vec(0.0..4000.0f64, 1..50),
        longer in (0usize..50, 0.0..2000.0f64),
        profile in arbitrary_profile(),
        workload in arbitrary_workload(),
    ) {
        let before = group_seconds(&lengths, &[], &profile, workload);
        let mut grown = lengths.clone();
        let at = longer.0 % grown.len();
        grown[at] += longer.1;
        let after = group_seconds(&grown, &[], &profile, workload);
        prop_assert!(after >= before * (1.0 - 1e-12), "{before} became {after}");
    }

    #[test]
    fn the_exact_plan_is_the_best_of_all_cuts(
        lengths in prop::collection::vec(1.0..4000.0f64, 1..9),
        profile in arbitrary_profile(),
        workload in arbitrary_workload(),
        workers in 1usize..4,
    ) {
        let mut ranked = lengths.clone();
        ranked.sort_by(|a, b| b.total_cmp(a));
        let n = ranked.len();
        // best[w][i]: the first i ranks on w workers, every cut tried.
        let mut best = vec![f64::INFINITY; n + 1];
        best[0] = 0.0;
        for _ in 0..workers {
            best = (0..=n)
                .map(|i| {
                    (0..=i)
                        .map(|k| {
                            let group = if k == i { 0.0 } else { group_seconds(&ranked[k..i], &[], &profile, workload) };
                            best[k].max(group)
                        })
                        .fold(f64::INFINITY, f64::min)
                })
                .collect();
        }
        let fixed = vec![1; workers];
        let plan = solve(&request(&lengths, &[], &fixed, workload), &profile).map_or(f64::INFINITY, |plan| plan.makespan);
        let equal = (plan - best[n]).abs() <= 1e-9 * best[n] || plan.is_infinite() && best[n].is_infinite();
        prop_assert!(equal, "{plan} against {}", best[n]);
    }
}
