//! Whatever the policy does and whatever goes wrong: no token is lost or given twice, every run ends, and the same seed
//! gives the same journal.

mod cases;

use cases::{policy, spec, workload};
use heddle_core::replay::replay;
use heddle_sim::bound::lower_bound;
use heddle_sim::engine::{Retraction, Settings};
use heddle_sim::network::Link;
use heddle_sim::prediction::Prediction;
use heddle_sim::spec::Loss;
use heddle_sim::{Run, Script, Spec, Turn, Workload, simulate};
use proptest::prelude::*;

fn scripts() -> impl Strategy<Value = Vec<Script>> {
    let turn = (0u64..800, 1u64..300, prop_oneof![Just(0.0), 0.0..3.0f64]).prop_map(
        |(input, output, tool_s)| Turn {
            input,
            output,
            tool_s,
        },
    );
    let script = (
        1u64..2_000,
        prop::option::of(0u64..4),
        prop_oneof![Just(0.0), 0.0..5.0f64],
        prop::collection::vec(turn, 1..8),
    )
        .prop_map(|(prompt, group, start_s, turns)| Script {
            prompt,
            group,
            start_s,
            turns,
        });
    prop::collection::vec(script, 1..40)
}

fn policies() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "{}",
        r#"{"order":"fcfs","placement":"sticky","admission":"unlimited"}"#,
        r#"{"order":"round_robin","placement":"cache_aware","admission":"slots"}"#,
        r#"{"order":"shortest_first","placement":"least_load","admission":"working_set"}"#,
        r#"{"order":"longest_first","placement":"by_rank","admission":"slots","preempt_levels":1,"max_over_send":4}"#,
        r#"{"order":"longest_first","placement":"round_robin","admission":"unlimited","backlog":3}"#,
        r#"{"order":"longest_first","placement":"by_rank","admission":"unlimited","migration":"on_rank_change"}"#,
    ])
}

fn predictions() -> impl Strategy<Value = Prediction> {
    prop::sample::select(vec![
        Prediction::None,
        Prediction::Oracle,
        Prediction::Calibrated {
            first: 1.0,
            least: 0.3,
        },
        Prediction::Biased {
            first: 1.0,
            least: 0.3,
            factor: 0.2,
        },
        Prediction::Noise,
        Prediction::Adversarial,
    ])
}

prop_compose! {
    fn specs()(
        workers in prop::collection::vec(prop::sample::select(vec![1u32, 2, 4]), 1..5),
        rules in policies(),
        prediction in predictions(),
        // The largest context is 2000 + 7 * (800 + 300) + 300 tokens: from barely enough to plenty.
        kv in 10_000u64..60_000,
        slots in 1u32..10,
        chunk in prop::sample::select(vec![128u64, 1024, 8192]),
        priority_retraction in any::<bool>(),
        keep_decoded in any::<bool>(),
        most_output in prop::sample::select(vec![300u64, 4096, 1 << 32]),
        slowdown in prop::sample::select(vec![1.0, 1.3]),
        report_delay_s in prop::sample::select(vec![0.0, 3.0]),
        streaming in any::<bool>(),
        end_signal in any::<bool>(),
        link in prop::option::of(prop::sample::select(vec![2_000.0, 50_000.0, 2e6])),
        shared_host in any::<bool>(),
        seed in any::<u64>(),
    ) -> Spec {
        let mut spec = Spec {
            policy: policy(rules),
            prediction,
            slowdown,
            report_delay_s,
            streaming,
            end_signal,
            most_output,
            seed,
            journal: true,
            timeline: true,
            engine: Settings {
                chunked_prefill: chunk,
                keep_decoded,
                retraction: if priority_retraction { Retraction::Priority } else { Retraction::Length },
                ..Settings::default()
            },
            ..spec(&workers)
        };
        for truth in spec.truth.values_mut() {
            truth.kv_tokens = kv;
            truth.slots = slots;
            truth.link = link.map(|tokens_per_s| Link { tokens_per_s, setup_s: 0.002 });
        }
        spec.hosts = (0..workers.len()).map(|worker| if shared_host { worker / 2 } else { worker }).collect();
        spec.host_tokens_per_s = link;
        spec
    }
}

fn check(workload: &Workload, spec: &Spec, run: &Run) {
    let report = &run.report;
    assert_eq!(report.refused_trajectories, 0);
    assert_eq!(report.output_tokens, workload.output(), "every token once");
    assert!(report.completion_s.iter().all(Option::is_some));
    assert_eq!(
        report.timeline.len(),
        workload.steps(),
        "every step ends once"
    );
    let bound = lower_bound(workload, &spec.truth, spec.gpus(), spec.slowdown);
    assert!(
        report.makespan_s > (1.0 - 1e-6) * bound.seconds(),
        "{} is below the bound {bound:?}",
        report.makespan_s
    );
    for worker in &report.workers {
        assert!(worker.most_kv_used <= worker.kv_tokens);
    }
}

/// What engines computed, against what was asked of them.
fn check_engines(workload: &Workload, run: &Run) {
    let sum = |of: fn(&heddle_sim::engine::Totals) -> u64| -> u64 {
        run.report.workers.iter().map(|w| of(&w.totals)).sum()
    };
    let asked: u64 = workload.scripts().iter().flat_map(Script::prompts).sum();
    assert_eq!(
        sum(|t| t.output),
        workload.output(),
        "engines sample each token once"
    );
    assert_eq!(sum(|t| t.prompt), asked);
    let first = sum(|t| t.prefilled) - sum(|t| t.prefilled_again);
    let missed = asked - sum(|t| t.cached);
    // A prompt that is set back between two of its chunks has not been computed whole the first time.
    assert!(
        first <= missed,
        "prefilled {first} of {missed} that were not cached"
    );
    if run.report.preemptions + run.report.retractions == 0 && sum(|t| t.prefilled_again) == 0 {
        assert_eq!(first, missed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_token_is_lost_or_given_twice(scripts in scripts(), spec in specs()) {
        let workload = workload(scripts);
        let run = simulate(&workload, &spec).unwrap();
        check(&workload, &spec, &run);
        check_engines(&workload, &run);
        prop_assert_eq!(run.report.lost_attempts, 0);
    }

    #[test]
    fn lost_workers_cost_time_but_no_token(
        scripts in scripts(), spec in specs(), at_s in 0.0..20.0f64, back in prop::option::of(0.1..30.0f64),
    ) {
        let mut spec = spec;
        if spec.workers.len() == 1 {
            spec.workers.push(spec.workers[0]);
            spec.hosts.clear();
        }
        spec.losses = vec![Loss { worker: 0, at_s, back_s: back.map(|after| at_s + after) }];
        let workload = workload(scripts);
        let run = simulate(&workload, &spec).unwrap();
        check(&workload, &spec, &run);
    }

    #[test]
    fn the_same_seed_gives_the_same_journal_and_the_journal_the_same_decisions(
        scripts in scripts(), spec in specs(),
    ) {
        let workload = workload(scripts);
        let (one, two) = (simulate(&workload, &spec).unwrap(), simulate(&workload, &spec).unwrap());
        prop_assert!(!one.journal.is_empty());
        prop_assert_eq!(&one.journal, &two.journal);
        prop_assert_eq!(&one.report, &two.report);
        let replayed = replay(&one.journal, None).unwrap();
        prop_assert_eq!(replayed.digest, one.report.digest);
    }
}

#[test]
fn all_workers_lost_and_one_back_later_ends_with_every_token() {
    let script = cases::script(100, &[(0, 200, 1.0), (20, 100, 0.0)]);
    let workload = workload(vec![script; 12]);
    let loss = |worker, back_s| Loss {
        worker,
        at_s: 1.0,
        back_s,
    };
    let spec = Spec {
        losses: vec![loss(0, None), loss(1, Some(30.0))],
        timeline: true,
        ..spec(&[1, 1])
    };
    let run = simulate(&workload, &spec).unwrap();
    check(&workload, &spec, &run);
    assert!(run.report.rejects > 0 && run.report.lost_attempts > 0);
    assert!(run.report.makespan_s > 30.0);
}

#[test]
fn nothing_left_to_happen_is_an_error_and_not_a_loop() {
    let workload = workload(vec![cases::script(100, &[(0, 200, 0.0)])]);
    let spec = Spec {
        losses: vec![Loss {
            worker: 0,
            at_s: 0.5,
            back_s: None,
        }],
        ..spec(&[1])
    };
    let error = simulate(&workload, &spec).unwrap_err();
    assert!(error.to_string().contains("1 trajectories left"), "{error}");
}

#[test]
fn a_spec_that_does_not_fit_names_its_field() {
    for (json, field) in [
        (r#"{"truth": {}, "workers": [1]}"#, "workers[0]"),
        (r#"{"truth": {}, "workers": []}"#, "workers"),
        (r#"{"truth": {}, "workers": [], "sed": 1}"#, "sed"),
    ] {
        let error = Spec::from_json(json).unwrap_err();
        assert!(error.contains(field), "{error}");
    }
    let mut wrong = spec(&[1]);
    wrong.policy = policy(r#"{"order": "lifo"}"#);
    let error = simulate(&workload(vec![cases::script(1, &[(0, 1, 0.0)])]), &wrong).unwrap_err();
    assert!(error.to_string().starts_with("policy: order"), "{error}");
}
