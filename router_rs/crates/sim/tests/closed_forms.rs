//! Cases small enough for arithmetic on paper: the simulator must give just that, to the microsecond that the core's
//! clock has (one a step).

mod cases;

use cases::{bound, close, costs, script, spec, truth, turn, workload};
use heddle_sim::engine::{Engine, Notice, Request, Settings, What};
use heddle_sim::kv::Path;
use heddle_sim::{Script, Spec, simulate};

#[test]
fn one_trajectory_alone_takes_its_prefills_tokens_and_tools() {
    let workload = workload(vec![script(1000, &[(0, 101, 2.0), (50, 11, 9.0)])]);
    let run = simulate(&workload, &spec(&[1])).unwrap();
    // First step: 1000 new tokens, then 100 decode steps that read 1000, 1001, ... tokens of context.
    let prefill = 0.004 + 1000.0 * 1e-4;
    let decode = 100.0 * 0.010 + 1e-6 * (100.0 * 1000.0 + 100.0 * 99.0 / 2.0);
    // Second step: the last token sampled has no KV yet, so 51 tokens are new behind 1100.
    let again = 0.004 + 51.0 * 1e-4 + 10.0 * 0.010 + 1e-6 * (10.0 * 1151.0 + 45.0);
    close(run.report.makespan_s, prefill + decode + 2.0 + again, 4);
    close(
        bound(&workload, &spec(&[1])).longest_alone_s,
        run.report.makespan_s,
        4,
    );
    assert_eq!(run.report.recomputed_tokens, 0);
    assert_eq!(run.report.cached_tokens, 1100);
    close(run.report.interference, 1.0, 1);
}

#[test]
fn a_pair_shares_its_decode_steps() {
    let mut truth = truth();
    truth.costs.prefill_fixed_s = 0.0;
    truth.costs.prefill_token_s = 0.0;
    truth.costs.context_token_s = 0.0;
    let mut spec = spec(&[1]);
    spec.truth.insert(1, truth);
    let workload = workload(vec![
        script(10, &[(0, 101, 0.0)]),
        script(10, &[(0, 51, 0.0)]),
    ]);
    let run = simulate(&workload, &spec).unwrap();
    // 50 steps of both at 11 ms, then 50 of one at 10 ms.
    close(run.report.makespan_s, 50.0 * 0.011 + 50.0 * 0.010, 2);
    close(run.report.completion_s[1].unwrap(), 50.0 * 0.011, 2);
    close(
        run.report.interference,
        (100.0 * 0.0105 + 50.0 * 0.011) / (150.0 * 0.010),
        2,
    );
}

#[test]
fn what_has_no_slot_waits_its_turn() {
    let mut spec = spec(&[1]);
    let truth = spec.truth.get_mut(&1).unwrap();
    truth.slots = 1;
    truth.costs.prefill_fixed_s = 0.0;
    truth.costs.prefill_token_s = 0.0;
    truth.costs.context_token_s = 0.0;
    spec.policy =
        cases::policy(r#"{"order": "fcfs", "placement": "sticky", "admission": "unlimited"}"#);
    let workload = workload(vec![
        script(10, &[(0, 101, 0.0)]),
        script(10, &[(0, 201, 0.0)]),
    ]);
    let report = simulate(&workload, &spec).unwrap().report;
    close(report.makespan_s, 3.0, 2);
    close(report.queue_s_longest, 1.0, 2);
    close(report.queue_s_mean, 0.5, 2);
    assert_eq!(report.holds.last().unwrap().output_tokens_up_to, 201);
    close(report.holds.last().unwrap().longest_s, 1.0, 2);
}

#[test]
fn a_group_prefills_its_common_prompt_once() {
    let grouped = |prompt| Script {
        group: Some(7),
        ..script(prompt, &[(0, 2, 0.0)])
    };
    let workload = workload(vec![
        grouped(500),
        Script {
            start_s: 5.0,
            ..grouped(600)
        },
        Script {
            start_s: 9.0,
            ..grouped(500)
        },
    ]);
    let report = simulate(&workload, &spec(&[1])).unwrap().report;
    // The second has 100 tokens of its own; the third computes one token to sample from.
    assert_eq!(report.prefilled_tokens, 500 + 100 + 1);
    assert_eq!(report.cached_tokens, 500 + 499);
    assert_eq!(report.recomputed_tokens, 0);
}

#[test]
fn a_truth_slower_than_believed_takes_that_much_longer() {
    let workload = workload(vec![script(1000, &[(0, 101, 0.0)])]);
    let told = simulate(&workload, &spec(&[1])).unwrap().report.makespan_s;
    let slower = Spec {
        slowdown: 1.3,
        ..spec(&[1])
    };
    let report = simulate(&workload, &slower).unwrap().report;
    close(report.makespan_s, 1.3 * told, 2);
    close(bound(&workload, &slower).seconds(), report.makespan_s, 2);
}

/// Runs an engine until nothing is left and gives what it said.
fn drain(engine: &mut Engine) -> Vec<Notice> {
    let mut notices = Vec::new();
    while let Some(at) = engine.next_event() {
        engine.advance(at);
        assert_eq!(engine.audit(), Vec::<String>::new());
        notices.extend(engine.take_notices());
    }
    notices
}

fn request(step: u64, prompt: u64, output: u64, priority: i64) -> Request {
    let path = Path {
        group: 0,
        shared: 0,
        trajectory: step,
    };
    Request {
        step,
        path,
        prompt,
        output,
        most_output: output,
        priority,
    }
}

fn done_at(notices: &[Notice], step: u64) -> f64 {
    let done = |notice: &&Notice| notice.step == step && matches!(notice.what, What::Done { .. });
    notices.iter().find(done).unwrap().at
}

#[test]
fn a_preempted_sequence_prefills_again_what_it_had_decoded() {
    for keep_decoded in [false, true] {
        let settings = Settings {
            keep_decoded,
            ..Settings::default()
        };
        let mut engine = Engine::new(costs(), 1, 100_000, settings);
        engine.submit(0.0, request(1, 1000, 501, 0));
        let first = 0.004 + 0.1;
        // In the middle of its 101st decode step, a better one comes: looked at when that step ends.
        let steps = |n: f64, context: f64| n * 0.010 + 1e-6 * (n * context + n * (n - 1.0) / 2.0);
        engine.submit(
            first + steps(100.0, 1000.0) + 0.001,
            request(2, 10, 11, 100),
        );
        let at = first + steps(101.0, 1000.0);
        let notices = drain(&mut engine);
        let other = 0.004 + 10.0 * 1e-4 + steps(10.0, 10.0);
        close(done_at(&notices, 2), at + other, 1);
        // It had made 102 tokens, one by prefill; the last has no KV, and the next comes with the prefill.
        let again = if keep_decoded { 1.0 } else { 102.0 };
        let rest = 0.004 + again * 1e-4 + steps(398.0, 1102.0);
        close(done_at(&notices, 1), at + other + rest, 1);
        let totals = engine.totals();
        assert_eq!((totals.preempted, totals.output), (1, 512));
        assert_eq!(totals.prefilled_again, again as u64);
    }
}

#[test]
fn an_equal_or_slightly_better_one_preempts_nobody() {
    let mut engine = Engine::new(costs(), 1, 100_000, Settings::default());
    engine.submit(0.0, request(1, 10, 101, 0));
    engine.submit(0.5, request(2, 10, 101, 10));
    let notices = drain(&mut engine);
    assert!(done_at(&notices, 1) < done_at(&notices, 2));
    assert_eq!(engine.totals().preempted, 0);
}

#[test]
fn lack_of_kv_ends_admission_and_preempts_nobody() {
    let mut engine = Engine::new(costs(), 8, 1000, Settings::default());
    engine.submit(0.0, request(1, 500, 200, 0));
    engine.submit(1.0, request(2, 600, 100, 500));
    let notices = drain(&mut engine);
    assert!(done_at(&notices, 1) < done_at(&notices, 2));
    assert_eq!(engine.totals().preempted, 0);
}

#[test]
fn a_dry_pool_sends_the_shortest_output_back_and_all_come_to_their_end() {
    let mut engine = Engine::new(costs(), 8, 1500, Settings::default());
    // Each asks for little and is admitted; together they outgrow the pool.
    for step in 1..=4 {
        let most_output = 1000;
        engine.submit(
            0.001 * step as f64,
            Request {
                most_output,
                ..request(step, 100, 900, 0)
            },
        );
    }
    let notices = drain(&mut engine);
    let done = notices
        .iter()
        .filter(|n| matches!(n.what, What::Done { .. }))
        .count();
    assert_eq!(done, 4);
    assert_eq!(engine.totals().output, 3600);
    assert!(engine.totals().retracted > 0);
    assert_eq!(engine.load(), (0, 0, 0));
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let mut engine = Engine::new(costs(), 8, 1000, Settings::default());
    engine.submit(0.0, request(1, 900, 101, 0));
    assert_eq!(engine.take_notices()[0].what, What::Refused);
    let workload = workload(vec![
        script(900, &[(0, 50, 0.0), (100, 10, 0.0)]),
        script(10, &[(0, 5, 0.0)]),
    ]);
    let mut spec = spec(&[1]);
    spec.truth.get_mut(&1).unwrap().kv_tokens = 1000;
    let report = simulate(&workload, &spec).unwrap().report;
    assert_eq!((report.refused_trajectories, report.output_tokens), (1, 55));
}

#[test]
fn long_prompts_are_prefilled_in_chunks_with_nobody_decoding_in_between() {
    let settings = Settings {
        chunked_prefill: 400,
        ..Settings::default()
    };
    let mut engine = Engine::new(costs(), 8, 100_000, settings);
    engine.submit(0.0, request(1, 1000, 2, 0));
    let notices = drain(&mut engine);
    let prefill = 3.0 * 0.004 + 1000.0 * 1e-4;
    close(notices[0].at, prefill, 1);
    close(done_at(&notices, 1), prefill + 0.010 + 1e-6 * 1000.0, 1);
    assert_eq!(turn(0, 5, 1.0).output, 5);
}
