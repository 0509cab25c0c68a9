//! Any events in any order: never a panic, always a sound state, no step lost, none held for ever, and the same events
//! give the same actions.

mod apply;
mod drain;
mod garbage;
mod op;

use crate::driver::Driver;
use apply::apply;
use drain::drain;
use heddle_core::Policy;
use heddle_core::replay::replay;
use op::{MIGRATIONS, Op, linked, moving_op, op, policy};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

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
