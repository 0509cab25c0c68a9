//! Workers that come, drain, go and come back.

use heddle_core::Event;
use heddle_core::event::{FailureKind, WorkerUp};

use crate::driver::{Books, Driver};

fn fcfs() -> Driver {
    Driver::with_policy(r#"{"order":"fcfs","placement":"least_load","admission":"unlimited"}"#)
}

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

#[test]
fn a_lost_worker_s_steps_are_withdrawn_and_its_queue_goes_elsewhere() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 1);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    driver.worker_up(2, 1, 1);
    driver
        .handle(Event::WorkerDown {
            worker: 1,
            generation: 1,
        })
        .unwrap();
    assert_eq!(
        driver.steps[&1],
        Books::Withdrawn {
            worker: 1,
            generation: 1
        }
    );
    assert_eq!(
        driver.steps[&2],
        Books::Running {
            worker: 2,
            generation: 1
        }
    );
    driver.fail(1, FailureKind::Unreachable);
    driver.done(2, 10);
    assert_eq!(
        driver.steps[&1],
        Books::Running {
            worker: 2,
            generation: 1
        }
    );
}

#[test]
fn when_the_last_worker_is_lost_what_is_held_is_rejected() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 1);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    driver
        .handle(Event::WorkerDown {
            worker: 1,
            generation: 1,
        })
        .unwrap();
    assert_eq!(driver.steps[&2], Books::Rejected);
    driver.fail(1, FailureKind::Unreachable);
    assert_eq!(driver.steps[&1], Books::Rejected);
}

#[test]
fn a_draining_worker_gets_nothing_new_and_ends_what_it_has() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver.arrive(1, 1);
    driver.worker_up(2, 1, 4);
    driver
        .handle(Event::WorkerDraining {
            worker: 1,
            generation: 1,
        })
        .unwrap();
    for step in 2..=5 {
        assert_eq!(driver.arrive(step, 1).unwrap().worker, 2);
    }
    driver.done(1, 10);
    driver
        .handle(Event::WorkerRemoved {
            worker: 1,
            generation: 1,
        })
        .unwrap();
    assert_eq!(driver.core.worker_views().len(), 1);
}

#[test]
fn the_last_healthy_worker_is_kept_while_it_drains() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 4);
    driver
        .handle(Event::WorkerDraining {
            worker: 1,
            generation: 1,
        })
        .unwrap();
    assert_eq!(driver.arrive(1, 1).unwrap().worker, 1);
    driver.worker_up(2, 1, 4);
    assert_eq!(driver.arrive(2, 2).unwrap().worker, 2);
}

#[test]
fn events_of_an_old_generation_are_counted_and_ignored() {
    let mut driver = fcfs();
    driver.worker(up(1, 5, 4, 0));
    driver.arrive(1, 1);
    driver.worker(up(1, 4, 1, 0));
    for event in [
        Event::WorkerDown {
            worker: 1,
            generation: 4,
        },
        Event::WorkerDraining {
            worker: 1,
            generation: 4,
        },
        Event::WorkerRemoved {
            worker: 1,
            generation: 6,
        },
        Event::LoadReport {
            worker: 1,
            generation: 4,
            running: 9,
            waiting: 9,
            kv_used: 9,
        },
    ] {
        driver.handle(event).unwrap();
    }
    assert_eq!(driver.stat("stale_events_total"), 5);
    assert_eq!(
        driver.steps[&1],
        Books::Running {
            worker: 1,
            generation: 5
        }
    );
    assert_eq!(driver.core.worker_views()[0].slots, 4);
}

#[test]
fn a_new_generation_withdraws_what_the_old_one_ran() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 1);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    driver.worker(up(1, 2, 1, 0));
    assert_eq!(
        driver.steps[&1],
        Books::Withdrawn {
            worker: 1,
            generation: 1
        }
    );
    assert_eq!(
        driver.steps[&2],
        Books::Running {
            worker: 1,
            generation: 2
        }
    );
}

#[test]
fn a_suspect_worker_s_queue_goes_to_others() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 1);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    driver.worker_up(2, 1, 2);
    driver.fail(1, FailureKind::Unreachable);
    assert_eq!(
        driver.steps[&1],
        Books::Running {
            worker: 2,
            generation: 1
        }
    );
    assert_eq!(
        driver.steps[&2],
        Books::Running {
            worker: 2,
            generation: 1
        }
    );
}

#[test]
fn a_worker_that_reports_more_slots_is_given_more() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 1);
    for step in 1..=3 {
        driver.arrive(step, step);
    }
    driver.worker(up(1, 1, 3, 0));
    assert_eq!(driver.stat("steps_at_worker"), 3);
}

#[test]
fn workers_that_cannot_be_are_refused_by_field() {
    let mut driver = fcfs();
    let no_slots = driver.handle(Event::WorkerUp(up(1, 1, 0, 0))).unwrap_err();
    assert!(no_slots.to_string().starts_with("slots"));
    let no_degree = driver
        .handle(Event::WorkerUp(WorkerUp {
            degree: 0,
            ..up(1, 1, 1, 0)
        }))
        .unwrap_err();
    assert!(no_degree.to_string().starts_with("degree"));
}

#[test]
fn load_that_others_put_on_a_worker_is_seen_by_least_load() {
    let mut driver = fcfs();
    driver.worker_up(1, 1, 8);
    driver.worker_up(2, 1, 8);
    for _ in 0..2 {
        driver
            .handle(Event::LoadReport {
                worker: 1,
                generation: 1,
                running: 3,
                waiting: 0,
                kv_used: 0,
            })
            .unwrap();
    }
    let got: Vec<u64> = (1..=3)
        .map(|step| driver.arrive(step, step).unwrap().worker)
        .collect();
    assert_eq!(got, [2, 2, 2]);
}

#[test]
fn a_worker_that_reports_more_slots_takes_up_what_it_had_put_aside() {
    let json = r#"{"order":"longest_first","placement":"least_load","admission":"unlimited"}"#;
    let mut driver = Driver::with_policy(json);
    driver.worker_up(1, 1, 1);
    driver.arrive(1, 1);
    driver.arrive(2, 2);
    driver
        .handle(Event::Predicted {
            trajectory: 2,
            mean: 500_000.0,
            sigma: 0.0,
            gap_us: None,
        })
        .unwrap();
    assert!(driver.core.step_view(1).unwrap().preempted);
    driver.worker(up(1, 1, 2, 0));
    assert!(!driver.core.step_view(1).unwrap().preempted);
}
