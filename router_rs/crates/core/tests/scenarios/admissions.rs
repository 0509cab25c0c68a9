//! Who may hold slots and KV: admission by slots and by the working set.

use heddle_core::belief::Profile;
use heddle_core::event::{Outcome, StepArrived, StepEnded, WorkerUp};
use heddle_core::{Event, Policy};

use crate::driver::{Books, Driver};

const SECOND: u64 = 1_000_000;

fn up(worker: u64, generation: u64, slots: u32, kv_tokens: u64) -> WorkerUp {
    WorkerUp {
        worker,
        generation,
        degree: 1,
        slots,
        kv_tokens,
        has_priority: true,
        profile: None,
        link: None,
        weights: 0,
    }
}

fn admitted_by(admission: &str, order: &str) -> Driver {
    let json = format!(
        r#"{{"order":"{order}","placement":"sticky","admission":"{admission}","kv_headroom":1,"kv_growth_share":0,"wait_share":1000}}"#
    );
    Driver::new(Policy::from_json(&json).unwrap())
}

#[test]
fn admission_by_slots_binds_a_step_to_a_worker_only_when_one_is_free() {
    let mut driver = admitted_by("slots", "fcfs");
    driver.worker_up(1, 1, 1);
    driver.worker_up(2, 1, 1);
    for step in 1..=4 {
        driver.arrive(step, step);
    }
    assert_eq!(
        (
            driver.stat("steps_at_worker"),
            driver.stat("steps_held_admission")
        ),
        (2, 2)
    );
    driver.done(2, 10);
    let dispatch = driver.dispatches.last().unwrap();
    assert_eq!((dispatch.step, dispatch.worker), (3, 2));
}

fn prompt(step: u64, trajectory: u64, prompt_tokens: u64) -> StepArrived {
    StepArrived {
        step,
        trajectory,
        prompt_tokens,
        ..StepArrived::default()
    }
}

fn done(driver: &mut Driver, step: u64, prompt_tokens: u64, output_tokens: u64) {
    let outcome = Outcome::Done;
    driver.end_with(StepEnded {
        step,
        outcome,
        prompt_tokens,
        output_tokens,
        cached_tokens: 0,
    });
}

#[test]
fn a_working_set_that_is_full_holds_newcomers_longest_first_and_no_resident_that_fits() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 1_000));
    assert!(driver.arrive_with(prompt(1, 1, 600)).is_some());
    assert!(
        driver.arrive_with(prompt(2, 2, 500)).is_none(),
        "1,100 of 1,000 tokens"
    );
    assert!(driver.arrive_with(prompt(3, 3, 500)).is_none());
    driver
        .handle(Event::Predicted {
            trajectory: 3,
            mean: 90_000.0,
            sigma: 0.1,
            gap_us: None,
        })
        .unwrap();
    done(&mut driver, 1, 600, 100);
    // In its tool gap it holds its KV; its next step passes although 800 and 500 do not fit.
    assert_eq!(driver.stat("steps_held_admission"), 2);
    assert!(driver.arrive_with(prompt(4, 1, 800)).is_some());
    done(&mut driver, 4, 800, 10);
    driver
        .handle(Event::TrajectoryFinished { trajectory: 1 })
        .unwrap();
    assert_eq!(
        driver.dispatches.last().unwrap().step,
        3,
        "the longest first"
    );
    assert_eq!(driver.stat("steps_held_admission"), 1);
}

#[test]
fn a_hold_for_kv_is_bounded() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 1_000));
    driver.arrive_with(prompt(1, 1, 900));
    driver.arrive_with(prompt(2, 2, 900));
    driver.advance_to(300 * SECOND - 1);
    assert_eq!(driver.steps[&2], Books::Waiting);
    driver.advance_to(300 * SECOND);
    assert_eq!(
        driver.steps[&2],
        Books::Running {
            worker: 1,
            generation: 1
        }
    );
}

#[test]
fn a_trajectory_that_stays_away_gives_its_kv_to_others() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 1_000));
    driver.arrive_with(prompt(1, 1, 900));
    driver.arrive_with(prompt(2, 2, 900));
    driver.advance_to(SECOND);
    done(&mut driver, 1, 900, 10);
    driver.advance_to(61 * SECOND);
    assert_eq!(
        driver.steps[&2],
        Books::Running {
            worker: 1,
            generation: 1
        }
    );
}

#[test]
fn what_fits_nowhere_even_alone_is_not_held_by_an_empty_worker() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 1_000));
    assert!(driver.arrive_with(prompt(1, 1, 5_000)).is_some());
}

#[test]
fn what_can_never_fit_is_not_held_and_holds_nobody_after_it_was_refused() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 1_000));
    assert!(driver.arrive_with(prompt(1, 1, 600)).is_some());
    assert!(
        driver.arrive_with(prompt(2, 2, 900)).is_none(),
        "fits when the first has gone"
    );
    assert!(
        driver.arrive_with(prompt(3, 3, 1_001)).is_some(),
        "fits on no worker: the engine refuses it"
    );
    driver.end_with(StepEnded {
        step: 3,
        outcome: Outcome::ClientError,
        prompt_tokens: 1_001,
        output_tokens: 0,
        cached_tokens: 0,
    });
    // Of the refused prompt nothing stays behind: 600 and 300 fit.
    done(&mut driver, 1, 600, 0);
    driver
        .handle(Event::TrajectoryFinished { trajectory: 1 })
        .unwrap();
    assert_eq!(driver.dispatches.last().unwrap().step, 2);
    done(&mut driver, 2, 600, 0);
    assert!(driver.arrive_with(prompt(4, 4, 300)).is_some());
}

#[test]
fn a_worker_without_a_bound_takes_any_prompt_when_its_turn_comes() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 1_000));
    driver.worker(up(2, 1, 16, 0));
    assert!(driver.arrive_with(prompt(1, 1, 600)).is_some());
    let dispatch = driver.arrive_with(prompt(2, 2, 5_000));
    assert_eq!(dispatch.map(|dispatch| dispatch.worker), Some(2));
}

#[test]
fn single_requests_do_not_fill_the_working_set_after_they_have_ended() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 100_000));
    for request in 1..=2_000 {
        driver.advance_to(driver.now + 5_000);
        let sent = driver
            .arrive_with(prompt(request, request, 1_000))
            .is_some();
        // The first fill it while all still look like agents in their tool gaps.
        assert!(sent || request < 1_000, "request {request} is held");
        if sent {
            done(&mut driver, request, 1_000, 100);
        }
        let admitted: Vec<u64> = driver.steps.keys().copied().collect();
        for held in admitted {
            if matches!(driver.steps[&held], Books::Running { .. }) {
                done(&mut driver, held, 1_000, 100);
            }
        }
    }
    assert_eq!(driver.stat("steps_held_admission"), 0);
}

/// A trajectory on worker 1 that holds `context` tokens after its first step, and is in its tool gap.
fn resident(driver: &mut Driver, id: u64, context: u64) {
    assert!(driver.arrive_with(prompt(id, id, 100)).is_some());
    done(driver, id, 100, context - 100);
}

#[test]
fn those_with_most_kv_are_set_aside_when_contexts_have_outgrown_it_and_no_more_than_must() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 1_000));
    resident(&mut driver, 1, 300);
    resident(&mut driver, 2, 400);
    resident(&mut driver, 3, 500);
    // 1,200 of 1,000: to set aside the largest is enough.
    assert!(driver.arrive_with(prompt(11, 1, 300)).is_some());
    assert!(driver.arrive_with(prompt(12, 2, 400)).is_some());
    assert!(driver.arrive_with(prompt(13, 3, 500)).is_none());
    assert_eq!(driver.stat("set_aside_total"), 1);
    assert_eq!(driver.stat("steps_held_admission"), 1);
    // It comes back when there is room for it, on whichever worker.
    driver.worker(up(2, 1, 16, 1_000));
    assert_eq!(
        driver.dispatches.last().map(|d| (d.step, d.worker)),
        Some((13, 2))
    );
}

#[test]
fn a_trajectory_alone_on_its_worker_is_never_set_aside() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 1_000));
    resident(&mut driver, 1, 990);
    assert!(driver.arrive_with(prompt(11, 1, 1_000)).is_some());
    assert_eq!(driver.stat("set_aside_total"), 0);
}

#[test]
fn who_was_held_as_long_as_allowed_has_no_privilege_afterwards() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 1_000));
    resident(&mut driver, 1, 380);
    resident(&mut driver, 2, 380);
    resident(&mut driver, 3, 430);
    // All are in their steps, so that nothing makes room.
    assert!(driver.arrive_with(prompt(11, 1, 380)).is_some());
    assert!(driver.arrive_with(prompt(12, 2, 380)).is_some());
    assert!(driver.arrive_with(prompt(13, 3, 430)).is_none());
    driver.advance_to(300 * SECOND);
    assert!(matches!(driver.steps[&13], Books::Running { .. }));
    done(&mut driver, 13, 430, 10);
    assert!(
        driver.arrive_with(prompt(23, 3, 450)).is_none(),
        "it still holds most, and there is too little"
    );
    assert_eq!(driver.stat("set_aside_total"), 2);
}

#[test]
fn who_was_held_as_long_as_allowed_goes_where_least_room_is_lacking() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 1_000));
    resident(&mut driver, 1, 480);
    resident(&mut driver, 2, 480);
    driver.worker(up(2, 1, 16, 1_000));
    for id in 3..=5 {
        resident(&mut driver, id, 280);
    }
    for (id, context) in [(1, 480), (2, 480), (3, 280), (4, 280), (5, 280)] {
        assert!(driver.arrive_with(prompt(10 + id, id, context)).is_some());
    }
    assert!(driver.arrive_with(prompt(6, 6, 500)).is_none());
    driver.advance_to(300 * SECOND);
    // By its placement it would begin on the first, which has fewer trajectories.
    assert_eq!(
        driver.dispatches.last().map(|d| (d.step, d.worker)),
        Some((6, 2))
    );
}

#[test]
fn a_newcomer_needs_room_for_what_all_will_grow_to() {
    let json =
        r#"{"placement":"sticky","admission":"working_set","kv_headroom":1,"kv_growth_share":1}"#;
    let mut driver = Driver::new(Policy::from_json(json).unwrap());
    driver.worker(up(1, 1, 16, 10_000));
    let arrive = |driver: &mut Driver, id: u64, mean: f64| {
        let sent = driver.arrive_with(prompt(id, id, 100)).is_some();
        driver
            .handle(Event::Predicted {
                trajectory: id,
                mean,
                sigma: 0.1,
                gap_us: None,
            })
            .unwrap();
        sent
    };
    assert!(arrive(&mut driver, 1, 8_000.0));
    // Before anything is predicted of it, it counts with the 4,000 tokens of the prior.
    assert!(
        !arrive(&mut driver, 2, 5_000.0),
        "100 and 8,000, 100 and 4,000"
    );
    assert_eq!(driver.stat("steps_held_admission"), 1);
    arrive(&mut driver, 3, 1_000.0);
    assert_eq!(
        driver.stat("steps_held_admission"),
        2,
        "nobody overtakes the longest"
    );
}

/// Steps of one trajectory that grow its context by 200 tokens each, 100 of them its answer, `gap` microseconds apart.
fn teach(driver: &mut Driver, id: u64, steps: u64, gap: u64) {
    for step in 0..steps {
        driver.advance_to(driver.now + gap);
        let context = 200 * step;
        let number = 1_000 * id + step;
        assert!(
            driver
                .arrive_with(prompt(number, id, context + 100))
                .is_some()
        );
        done(driver, number, context + 100, 100);
    }
    driver
        .handle(Event::TrajectoryFinished { trajectory: id })
        .unwrap();
}

#[test]
fn a_step_holds_its_context_and_the_answer_to_come_and_a_tool_gap_no_more_than_the_context() {
    let mut driver = admitted_by("working_set", "fcfs");
    driver.worker(up(1, 1, 16, 100_000));
    teach(&mut driver, 9, 300, 0);
    assert!(driver.arrive_with(prompt(1, 1, 50_000)).is_some());
    assert!(
        driver.arrive_with(prompt(2, 2, 49_900)).is_none(),
        "50,100 and 50,000 of 100,000"
    );
    done(&mut driver, 1, 50_000, 1);
    assert_eq!(driver.dispatches.last().map(|sent| sent.step), Some(2));
}

/// A worker of 1,000 tokens that computes so many a second, beside whose idle trajectory of 600 one of 500 arrives after
/// gaps of a second each.
fn newcomer_beside_idle_kv(prefill_tokens_per_s: f64) -> Driver {
    let mut driver = admitted_by("working_set", "fcfs");
    let profile = Profile {
        prefill_tokens_per_s: Some(prefill_tokens_per_s),
        pinned: true,
        ..Profile::default()
    };
    driver.worker(up(2, 1, 16, 100_000));
    teach(&mut driver, 9, 40, SECOND);
    driver
        .handle(Event::WorkerRemoved {
            worker: 2,
            generation: 1,
        })
        .unwrap();
    driver.worker(WorkerUp {
        profile: Some(profile),
        ..up(1, 1, 16, 1_000)
    });
    resident(&mut driver, 1, 600);
    driver.arrive_with(prompt(12, 2, 500));
    driver
}

#[test]
fn kv_that_is_sooner_computed_again_than_its_tool_gap_is_over_keeps_nobody_out() {
    let mut driver = newcomer_beside_idle_kv(28_000.0);
    assert_eq!(driver.stat("steps_held_admission"), 0);
    // It comes back to a worker that has too little for both.
    assert!(driver.arrive_with(prompt(11, 1, 600)).is_none());
    assert_eq!(driver.stat("set_aside_total"), 1);
}

#[test]
fn kv_that_takes_longer_to_compute_again_than_its_tool_gap_is_held() {
    let driver = newcomer_beside_idle_kv(50.0);
    assert_eq!(driver.stat("steps_held_admission"), 1);
}
