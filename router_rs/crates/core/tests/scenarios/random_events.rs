//! Any events in any order: never a panic, always a sound state, no step lost, none held for ever, and the same events
//! give the same actions.

use crate::driver::{Books, Driver};
use heddle_core::event::{
    FailureKind, LinkSpec, MigrationFailure, Outcome, StepAdopted, StepArrived, StepEnded, WorkerUp,
};
use heddle_core::plan::{PlanSpec, Share};
use heddle_core::replay::replay;
use heddle_core::{Event, Policy};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

#[derive(Debug, Clone)]
enum Op {
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

const ORDERS: [&str; 4] = ["fcfs", "round_robin", "shortest_first", "longest_first"];
const PLACEMENTS: [&str; 5] = [
    "round_robin",
    "least_load",
    "sticky",
    "cache_aware",
    "by_rank",
];
const ADMISSIONS: [&str; 3] = ["unlimited", "slots", "working_set"];
const MIGRATIONS: [&str; 3] = ["never", "on_rank_change", "when_worth_it"];
const FAILURES: [MigrationFailure; 5] = [
    MigrationFailure::Cancelled,
    MigrationFailure::Declined,
    MigrationFailure::TargetFull,
    MigrationFailure::Deadline,
    MigrationFailure::Broken,
];

fn op() -> impl Strategy<Value = Op> {
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

fn policy() -> impl Strategy<Value = Policy> {
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

/// The `n`-th live step, counted round.
fn nth(driver: &Driver, n: usize) -> Option<(u64, Books)> {
    let count = driver.steps.len();
    (count > 0)
        .then(|| {
            driver
                .steps
                .iter()
                .nth(n % count)
                .map(|(&step, &books)| (step, books))
        })
        .flatten()
}

/// The `n`-th transfer that runs, counted round.
fn nth_transfer(driver: &Driver, n: usize) -> Option<u64> {
    let count = driver.transfers.len().max(1);
    driver.transfers.keys().nth(n % count).copied()
}

fn apply(driver: &mut Driver, op: &Op, next_step: &mut u64) {
    match op.clone() {
        Op::Pass(us) => driver.advance_to(driver.now + us),
        Op::Up {
            worker,
            generation,
            degree,
            slots,
            kv_tokens,
            has_priority,
            linked,
            weights,
        } => driver.worker(WorkerUp {
            worker,
            generation,
            degree,
            slots,
            kv_tokens,
            has_priority,
            profile: None,
            // Slow enough that steps arrive in mid-move.
            link: linked.then_some(LinkSpec {
                tokens_per_s: 1_000.0 * f64::from(degree),
                setup_us: 100,
            }),
            weights,
        }),
        Op::Draining(worker, generation) => {
            driver
                .handle(Event::WorkerDraining { worker, generation })
                .unwrap();
        }
        Op::Down(worker, generation) => driver
            .handle(Event::WorkerDown { worker, generation })
            .unwrap(),
        Op::Removed(worker, generation) => driver
            .handle(Event::WorkerRemoved { worker, generation })
            .unwrap(),
        Op::Report(worker, generation, running, waiting) => driver
            .handle(Event::LoadReport {
                worker,
                generation,
                running,
                waiting,
                kv_used: 7,
            })
            .unwrap(),
        Op::Arrive {
            trajectory,
            group,
            prompt,
            messages,
            pinned,
        } => {
            *next_step += 1;
            driver
                .arrived(StepArrived {
                    step: *next_step,
                    trajectory,
                    group,
                    prompt_tokens: prompt,
                    chain: (0..messages).map(|i| trajectory * 1000 + i).collect(),
                    pinned_worker: pinned,
                    bound: pinned.is_some() && prompt % 2 == 1,
                })
                .unwrap();
        }
        Op::Adopt {
            trajectory,
            group,
            worker,
            generation,
            level,
            running_us,
            streaming,
        } => {
            *next_step += 1;
            driver.adopt(StepAdopted {
                step: *next_step,
                trajectory,
                group,
                prompt_tokens: 100,
                worker,
                generation,
                level,
                running_us,
                streaming,
            });
        }
        Op::ArriveAgain(n) => {
            if let Some((step, _)) = nth(driver, n) {
                driver
                    .arrived(StepArrived {
                        step,
                        ..StepArrived::default()
                    })
                    .unwrap_err();
            }
        }
        Op::FirstByte(n) => {
            if let Some((step, _)) = nth(driver, n) {
                driver.handle(Event::FirstByte { step }).unwrap();
            }
        }
        Op::Abort(n) => {
            if let Some((step, books)) = nth(driver, n)
                && books != Books::Rejected
            {
                driver.abort(step);
            }
        }
        Op::Fail(n, kind) => match nth(driver, n) {
            Some((step, Books::Running { .. } | Books::Withdrawn { .. })) => {
                driver.fail(step, kind);
            }
            // A report of an attempt that is not running changes nothing.
            Some((step, _)) => driver
                .handle(Event::AttemptFailed {
                    step,
                    worker: 1,
                    generation: 99,
                    kind,
                })
                .unwrap(),
            None => {}
        },
        Op::End(n, outcome, tokens) => {
            if let Some((step, _)) = nth(driver, n) {
                driver.end(step, outcome, tokens);
            }
        }
        Op::Predict(trajectory, mean, sigma) => {
            let known = driver.core.trajectory_view(trajectory).is_some();
            let taken = driver.handle(Event::Predicted {
                trajectory,
                mean,
                sigma,
                gap_us: None,
            });
            assert_eq!(taken.is_ok(), known);
        }
        Op::Expect(trajectory, group, mean) => driver
            .handle(Event::TrajectoryExpected {
                trajectory,
                group,
                mean,
                sigma: 0.5,
            })
            .unwrap(),
        Op::Plan(version, sizes) => {
            let partition = sizes.iter().enumerate().map(|(i, &size)| Share {
                worker: i as u64 + 1,
                size,
            });
            let spec = PlanSpec {
                version,
                partition: partition.collect(),
                ttl_ms: Some(version * 1000),
            };
            let _ = driver.handle(Event::InstallPlan(spec));
        }
        Op::Policy(order, placement, admission) => {
            let json = format!(
                r#"{{"order":"{}","placement":"{}","admission":"{}"}}"#,
                ORDERS[order], PLACEMENTS[placement], ADMISSIONS[admission]
            );
            let policy = driver.core.policy().amended(&json).unwrap();
            driver.handle(Event::SetPolicy(Box::new(policy))).unwrap();
        }
        Op::Finish(trajectory) => {
            let known = driver.core.trajectory_view(trajectory).is_some();
            let taken = driver.handle(Event::TrajectoryFinished { trajectory });
            assert_eq!(taken.is_ok(), known);
        }
        Op::Ask(trajectory, to) => {
            let _ = driver.handle(Event::MigrationAsked {
                trajectory,
                to,
                within_us: (trajectory % 3 > 0).then_some(100_000 * trajectory),
            });
        }
        Op::Land(n, tokens) => {
            if let Some(migration) = nth_transfer(driver, n) {
                driver.land(migration, tokens);
            }
        }
        Op::FailTransfer(n, why) => {
            if let Some(migration) = nth_transfer(driver, n) {
                driver.fail_transfer(migration, why);
            }
        }
        Op::Weights(worker, generation, weights) => driver
            .handle(Event::WeightsUpdated {
                worker,
                generation,
                weights,
            })
            .unwrap(),
        Op::Pause(paused) => driver.pause(paused),
        Op::Garbage(id) => garbage(driver, id.max(1 << 40)),
    }
}

/// Events that name what does not exist.
fn garbage(driver: &mut Driver, id: u64) {
    let refused = driver.stat("refused_events_total");
    let kind = FailureKind::Unreachable;
    let ended = StepEnded {
        step: id,
        outcome: Outcome::Done,
        prompt_tokens: 1,
        output_tokens: 1,
        cached_tokens: 0,
    };
    for event in [
        Event::FirstByte { step: id },
        Event::StepAborting { step: id },
        Event::AttemptFailed {
            step: id,
            worker: id,
            generation: id,
            kind,
        },
        Event::StepEnded(ended),
        Event::Predicted {
            trajectory: id,
            mean: 1.0,
            sigma: 0.1,
            gap_us: None,
        },
        Event::Predicted {
            trajectory: 1,
            mean: f64::NAN,
            sigma: 0.1,
            gap_us: None,
        },
        Event::TrajectoryFinished { trajectory: id },
        Event::MigrationAsked {
            trajectory: id,
            to: 1,
            within_us: None,
        },
    ] {
        driver.handle(event).unwrap_err();
    }
    assert_eq!(driver.stat("refused_events_total"), refused + 8);
    driver
        .handle(Event::MigrationLanded {
            migration: id,
            tokens: 1,
        })
        .unwrap();
    driver
        .handle(Event::WorkerDown {
            worker: id,
            generation: id,
        })
        .unwrap();
}

/// Lets everything come to its end with one worker there, and checks that it does.
fn drain(driver: &mut Driver) {
    driver.pause(false);
    driver.worker(WorkerUp {
        worker: 9,
        generation: 1,
        degree: 1,
        slots: 2,
        kv_tokens: 500,
        has_priority: true,
        profile: None,
        link: None,
        weights: 0,
    });
    for _ in 0..2000 {
        let Some((step, books)) = driver
            .steps
            .iter()
            .find(|(step, books)| **books != Books::Waiting || driver.aborting.contains(step))
            .map(|(&step, &books)| (step, books))
        else {
            // Nothing for the driver to do: what is still held must be bounded by a timer.
            if driver.steps.is_empty() {
                break;
            }
            let at = driver.core.poll_timeout().expect("held steps have a timer");
            driver.advance_to(at);
            continue;
        };
        match books {
            Books::Rejected => driver.end(step, Outcome::Rejected, 0),
            _ if driver.aborting.contains(&step) => driver.end(step, Outcome::Aborted, 3),
            Books::Withdrawn { .. } => driver.fail(step, FailureKind::Unreachable),
            _ => {
                driver.advance_to(driver.now + 1000);
                driver.done(step, 10);
            }
        }
    }
    assert!(
        driver.steps.is_empty(),
        "steps held for ever: {:?}",
        driver.steps
    );
    assert_eq!(
        driver.stat("steps_arrived_total"),
        driver.stat("steps_ended_total")
    );
    driver.advance_to(driver.now + 401_000_000);
    for name in [
        "trajectories",
        "trajectories_active",
        "steps_live",
        "steps_at_worker",
        "timers",
    ] {
        let plan_expiry = u64::from(name == "timers" && driver.stat("plan_version") > 0);
        assert!(
            driver.stat(name) <= plan_expiry,
            "{name} is {}",
            driver.stat(name)
        );
    }
    assert_eq!(driver.stat("illegal_moves_total"), 0);
    let ended: u64 = ["landed", "failed", "cancelled", "expired"]
        .iter()
        .map(|end| driver.stat(&format!("migrations_{end}_total")))
        .sum();
    assert_eq!(driver.stat("migrations_requested_total"), ended);
    assert_eq!(
        driver.stat("migrations_started_total"),
        driver.migrates.len() as u64
    );
}

fn run(policy: Policy, ops: &[Op]) -> Driver {
    let mut driver = Driver::new(policy);
    let mut next_step = 0;
    for op in ops {
        apply(&mut driver, op, &mut next_step);
    }
    drain(&mut driver);
    driver
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_events_leave_a_sound_core_and_every_step_ends(policy in policy(), ops in prop::collection::vec(op(), 1..160)) {
        let mut first = run(policy.clone(), &ops);
        let second = run(policy, &ops);
        prop_assert_eq!(first.digest.hex(), second.digest.hex());
        let journal = first.core.take_journal();
        let again = replay(&journal, None).unwrap();
        prop_assert_eq!(again.digest, first.digest.hex());
        prop_assert_eq!(again.actions as usize > 0, !first.dispatches.is_empty() || !first.rejects.is_empty() || !first.expired.is_empty());
    }
}

/// Events of a rollout in which KV moves often: short gaps, three linked workers, estimates that change their mind.
fn moving_op() -> impl Strategy<Value = Op> {
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

fn linked(worker: u64, generation: u64) -> Op {
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

/// Enough of them that the property is about something. The seed is fixed, so that it always is.
static MOVES_SEEN: std::sync::Mutex<[u64; 3]> = std::sync::Mutex::new([0; 3]);

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 200, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

    fn any_moves_leave_a_sound_core(
        rule in 1..3usize, plan in any::<bool>(), ops in prop::collection::vec(moving_op(), 40..200),
    ) {
        let json = format!(r#"{{"placement": "by_rank", "admission": "unlimited", "migration": "{}",
            "idle_ttl_ms": 400000, "dormant_after_ms": 20000}}"#, MIGRATIONS[rule]);
        let mut all: Vec<Op> = (1..4).map(|worker| linked(worker, 1)).collect();
        if plan {
            all.push(Op::Plan(200, vec![1, 2, 3]));
        }
        all.extend(ops);
        let mut first = run(Policy::from_json(&json).unwrap(), &all);
        let again = replay(&first.core.take_journal(), None).unwrap();
        prop_assert_eq!(again.digest, first.digest.hex());
        let mut seen = MOVES_SEEN.lock().unwrap();
        for (seen, name) in seen.iter_mut().zip(["migrations_started_total", "migrations_landed_total", "migrations_waited_for_total"]) {
            *seen += first.stat(name);
        }
    }
}

#[test]
fn any_moves_leave_a_sound_core_and_there_are_many_of_them() {
    any_moves_leave_a_sound_core();
    let seen = *MOVES_SEEN.lock().unwrap();
    assert!(seen.into_iter().all(|count| count > 5), "{seen:?}");
}
