//! One thing happens: to the driver, as far as it can.

use super::garbage::garbage;
use super::op::{ADMISSIONS, ORDERS, Op, PLACEMENTS};
use crate::driver::{Books, Driver};
use heddle_core::Event;
use heddle_core::event::{LinkSpec, StepAdopted, StepArrived, WorkerUp};
use heddle_core::plan::{PlanSpec, Share};

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

pub(super) fn apply(driver: &mut Driver, op: &Op, next_step: &mut u64) {
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
