//! Writing down what happened, so that a live run can be replayed.
//!
//! JSON lines. The first is `{"format": 1, "policy": {...}}`; then `{"now": us, "event": {...}}` for each event and
//! `{"now": us}` for each call of `handle_timeout`, in the order they were handled.

use serde::{Deserialize, Serialize};

use crate::Micros;
use crate::event::Event;
use crate::policy::Policy;

/// Bytes that are kept for the driver to take; a driver that does not take them loses the rest of the run.
const BOUND: usize = 256 << 20;

/// Version of the format.
pub const FORMAT: u32 = 1;

/// First line of a journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Version of the format.
    pub format: u32,
    /// Policy at the start.
    pub policy: Policy,
}

/// Every other line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry<E> {
    /// Time handed in.
    pub now: Micros,
    /// The event; absent for a timeout.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub event: Option<E>,
}

/// Lines not yet taken.
#[derive(Debug)]
pub(crate) struct Journal {
    lines: Vec<u8>,
    truncated: bool,
}

impl Journal {
    pub(crate) fn new(policy: &Policy) -> Self {
        let mut journal = Self {
            lines: Vec::new(),
            truncated: false,
        };
        journal.line(&Header {
            format: FORMAT,
            policy: policy.clone(),
        });
        journal
    }

    pub(crate) fn event(&mut self, now: Micros, event: &Event) {
        self.line(&Entry {
            now,
            event: Some(event),
        });
    }

    pub(crate) fn timeout(&mut self, now: Micros) {
        self.line(&Entry::<Event> { now, event: None });
    }

    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }

    pub(crate) fn is_truncated(&self) -> bool {
        self.truncated
    }

    fn line(&mut self, value: &impl Serialize) {
        // Once a line is missing, the lines after it replay to something else: stop for good.
        if self.truncated || self.lines.len() > BOUND {
            self.truncated = true;
            return;
        }
        let start = self.lines.len();
        if serde_json::to_writer(&mut self.lines, value).is_err() {
            self.lines.truncate(start);
            self.truncated = true;
            return;
        }
        self.lines.push(b'\n');
    }
}
