//! The end of a run: nothing is left.

use crate::driver::{Books, Driver};
use heddle_core::event::{FailureKind, Outcome, WorkerUp};

/// Lets everything come to its end with one worker there, and checks that it does.
pub(super) fn drain(driver: &mut Driver) {
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
    // Twelve idle TTLs: announced trajectories that never came are remembered for so long.
    driver.advance_to(driver.now + 12 * 400_000_000 + 1_000_000);
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
