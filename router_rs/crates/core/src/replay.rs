//! Running a journal through a fresh core.

use thiserror::Error;

use crate::action::Action;
use crate::event::Event;
use crate::journal::{Entry, FORMAT, Header};
use crate::machine::Core;
use crate::policy::Policy;

/// What a replay did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Lines handled: events and timeouts.
    pub events: u64,
    /// Actions that they caused.
    pub actions: u64,
    /// FNV-1a over all actions in order, 16 hex digits: equal for equal decisions of one build.
    pub digest: String,
    /// The core's numbers at the end, as [`Core::stats`] has them: those of the live core at that moment.
    pub stats: Vec<(String, u64)>,
}

/// A journal that cannot be replayed.
#[derive(Debug, Error)]
#[error("journal line {line}: {why}")]
pub struct ReplayError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

/// Running digest of actions.
#[derive(Debug, Clone, Copy)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Takes an action in.
    pub fn add(&mut self, action: &Action) {
        // An action is a plain struct of numbers and names: it always has a JSON form.
        for byte in serde_json::to_vec(action).unwrap_or_default() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// 16 hex digits.
    pub fn hex(self) -> String {
        format!("{:016x}", self.0)
    }
}

/// Replays `journal`; with `policy`, under that one instead of the journal's own first policy.
pub fn replay(journal: &[u8], policy: Option<Policy>) -> Result<Replay, ReplayError> {
    let mut lines = journal
        .split(|&byte| byte == b'\n')
        .enumerate()
        .map(|(i, line)| (i + 1, line))
        .filter(|(_, line)| !line.is_empty());
    let (line, first) = lines.next().ok_or(ReplayError {
        line: 1,
        why: "the journal is empty".into(),
    })?;
    let header: Header = serde_json::from_slice(first).map_err(|e| ReplayError {
        line,
        why: e.to_string(),
    })?;
    if header.format != FORMAT {
        return Err(ReplayError {
            line,
            why: format!("format {} is not {FORMAT}", header.format),
        });
    }
    let mut core = Core::new(policy.unwrap_or(header.policy));
    let mut digest = Digest::default();
    let (mut events, mut actions) = (0, 0);
    for (line, text) in lines {
        let entry: Entry<Event> = serde_json::from_slice(text).map_err(|e| ReplayError {
            line,
            why: e.to_string(),
        })?;
        match entry.event {
            // A refused event was refused in the live run too, and counted there.
            Some(event) => {
                let _ = core.handle(entry.now, event);
            }
            None => core.handle_timeout(entry.now),
        }
        events += 1;
        while let Some(action) = core.poll_action() {
            actions += 1;
            digest.add(&action);
        }
    }
    Ok(Replay {
        events,
        actions,
        digest: digest.hex(),
        stats: core.stats(),
    })
}
