//! What can happen, drawn at random.

use heddle_core::Policy;
use heddle_core::event::{FailureKind, MigrationFailure, Outcome};
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub(super) enum Op {
    Pass(u64),
    Up {
        worker: u64,
        generation: u64,
        degree: u32,
        slots: u32,
        kv_tokens: u64,
        has_priority: bool,
        linked: bool,
        weights: u64,
    },
    Draining(u64, u64),
    Down(u64, u64),
    Removed(u64, u64),
    Report(u64, u64, u32, u32),
    Arrive {
        trajectory: u64,
        group: Option<u64>,
        prompt: u64,
        messages: u64,
        pinned: Option<u64>,
    },
    Adopt {
        trajectory: u64,
        group: Option<u64>,
        worker: u64,
        generation: u64,
        level: u8,
        running_us: u64,
        streaming: bool,
    },
    ArriveAgain(usize),
    FirstByte(usize),
    Abort(usize),
    Fail(usize, FailureKind),
    End(usize, Outcome, u64),
    Predict(u64, f64, f64),
    Expect(u64, Option<u64>, f64),
    Plan(u64, Vec<u64>),
    Policy(usize, usize, usize),
    Finish(u64),
    Ask(u64, u64),
    Land(usize, u64),
    FailTransfer(usize, MigrationFailure),
    Weights(u64, u64, u64),
    Pause(bool),
    Garbage(u64),
}

pub(super) const ORDERS: [&str; 4] = ["fcfs", "round_robin", "shortest_first", "longest_first"];
pub(super) const PLACEMENTS: [&str; 5] = [
    "round_robin",
    "least_load",
    "sticky",
    "cache_aware",
    "by_rank",
];
pub(super) const ADMISSIONS: [&str; 3] = ["unlimited", "slots", "working_set"];
pub(super) const MIGRATIONS: [&str; 3] = ["never", "on_rank_change", "when_worth_it"];
pub(super) const FAILURES: [MigrationFailure; 5] = [
    MigrationFailure::Cancelled,
    MigrationFailure::Declined,
    MigrationFailure::TargetFull,
    MigrationFailure::Deadline,
    MigrationFailure::Broken,
];

pub(super) fn op() -> impl Strategy<Value = Op> {
    let worker = || (1..5u64, 1..4u64);
    let kind = prop_oneof![
        Just(FailureKind::Unreachable),
        Just(FailureKind::Overloaded),
        Just(FailureKind::WorkerError)
    ];
    prop_oneof![
        12 => prop_oneof![0..50_000u64, 0..5_000_000u64, 0..200_000_000u64].prop_map(Op::Pass),
        6 => (worker(), 1..9u32, 1..4u32, prop_oneof![Just(0u64), 200..4000u64], any::<bool>(), prop::bool::weighted(0.8), 0..2u64).prop_map(
            |((worker, generation), degree, slots, kv_tokens, has_priority, linked, weights)| Op::Up {
                worker, generation, degree, slots, kv_tokens, has_priority, linked, weights: weights / 2
            }
        ),
        2 => worker().prop_map(|(w, g)| Op::Draining(w, g)),
        2 => worker().prop_map(|(w, g)| Op::Down(w, g)),
        1 => worker().prop_map(|(w, g)| Op::Removed(w, g)),
        2 => (worker(), 0..9u32, 0..9u32).prop_map(|((w, g), r, q)| Op::Report(w, g, r, q)),
        40 => (
            0..12u64,
            prop::option::of(0..3u64),
            0..600u64,
            0..5u64,
            prop::option::weighted(0.05, 1..6u64),
        )
            .prop_map(|(trajectory, group, prompt, messages, pinned)| Op::Arrive {
                trajectory, group, prompt, messages, pinned
            }),
        4 => (0..12u64, prop::option::of(0..3u64), worker(), 0..40u8, 0..9_000_000u64, any::<bool>()).prop_map(
            |(trajectory, group, (worker, generation), level, running_us, streaming)| Op::Adopt {
                trajectory, group, worker, generation, level, running_us, streaming
            }
        ),
        1 => any::<usize>().prop_map(Op::ArriveAgain),
        8 => any::<usize>().prop_map(Op::FirstByte),
        8 => any::<usize>().prop_map(Op::Abort),
        10 => (any::<usize>(), kind).prop_map(|(n, kind)| Op::Fail(n, kind)),
        30 => (any::<usize>(), 0..6usize, 0..3000u64).prop_map(|(n, o, t)| Op::End(n, Outcome::ALL[o], t)),
        10 => (0..14u64, 0.0..90_000.0f64, 0.0..2.0f64).prop_map(|(t, m, s)| Op::Predict(t, m, s)),
        4 => (0..14u64, prop::option::of(0..3u64), 0.0..90_000.0f64).prop_map(|(t, g, m)| Op::Expect(t, g, m)),
        2 => (1..50u64, prop::collection::vec(0..5u64, 0..5)).prop_map(|(v, sizes)| Op::Plan(v, sizes)),
        2 => (0..4usize, 0..5usize, 0..3usize).prop_map(|(o, p, a)| Op::Policy(o, p, a)),
        8 => (0..14u64, 0..6u64).prop_map(|(t, w)| Op::Ask(t, w)),
        10 => (any::<usize>(), 0..4000u64).prop_map(|(n, tokens)| Op::Land(n, tokens)),
        4 => (any::<usize>(), prop::sample::select(&FAILURES[..])).prop_map(|(n, why)| Op::FailTransfer(n, why)),
        1 => (1..5u64, 1..4u64, 0..2u64).prop_map(|(w, g, v)| Op::Weights(w, g, v)),
        3 => (0..14u64).prop_map(Op::Finish),
        2 => prop::bool::weighted(0.4).prop_map(Op::Pause),
        3 => any::<u64>().prop_map(Op::Garbage),
    ]
}

/// Events of a rollout in which KV moves often: short gaps, three linked workers, estimates that change their mind.
pub(super) fn moving_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (0..400_000u64).prop_map(Op::Pass),
        20 => (0..6u64).prop_map(|trajectory| Op::Arrive {
            trajectory, group: None, prompt: 300, messages: 0, pinned: None
        }),
        20 => (any::<usize>(), 1..400u64).prop_map(|(n, tokens)| Op::End(n, Outcome::Done, tokens)),
        3 => any::<usize>().prop_map(Op::Abort),
        20 => (0..6u64, 1.0..90_000.0f64, 0.0..0.5f64).prop_map(|(t, m, s)| Op::Predict(t, m, s)),
        6 => (0..6u64, 1..4u64).prop_map(|(t, w)| Op::Ask(t, w)),
        12 => (any::<usize>(), 0..800u64).prop_map(|(n, tokens)| Op::Land(n, tokens)),
        2 => (any::<usize>(), prop::sample::select(&FAILURES[..])).prop_map(|(n, why)| Op::FailTransfer(n, why)),
        1 => (1..4u64, 0..2u64).prop_map(|(w, v)| Op::Weights(w, 1, v)),
        1 => (1..4u64).prop_map(|w| Op::Down(w, 1)),
        2 => (1..4u64).prop_map(|w| linked(w, 1)),
        2 => prop::bool::weighted(0.3).prop_map(Op::Pause),
    ]
}

pub(super) fn linked(worker: u64, generation: u64) -> Op {
    Op::Up {
        worker,
        generation,
        degree: if worker == 1 { 8 } else { 1 },
        slots: 4,
        kv_tokens: 0,
        has_priority: true,
        linked: true,
        weights: 0,
    }
}

pub(super) fn policy() -> impl Strategy<Value = Policy> {
    (0..4usize, 0..5usize, 0..3usize, 0..3usize, 0..2u32, 0..3u32, prop_oneof![Just(0u64), Just(3_000u64)]).prop_map(
        |(order, placement, admission, migration, backlog, over, worker_wait_ms)| {
            let json = format!(
                r#"{{"order":"{}","placement":"{}","admission":"{}","migration":"{}","backlog":{backlog},"max_over_send":{over},
                    "worker_wait_ms":{worker_wait_ms},"idle_ttl_ms":400000,"dormant_after_ms":20000,"cache_nodes":12}}"#,
                ORDERS[order], PLACEMENTS[placement], ADMISSIONS[admission], MIGRATIONS[migration]
            );
            Policy::from_json(&json).unwrap()
        },
    )
}
