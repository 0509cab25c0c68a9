//! Events that are refused.

use crate::driver::Driver;
use heddle_core::Event;
use heddle_core::event::{FailureKind, Outcome, StepEnded};

/// Events that name what does not exist.
pub(super) fn garbage(driver: &mut Driver, id: u64) {
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
