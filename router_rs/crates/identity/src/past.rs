//! Trajectories of an earlier process.

use std::sync::Arc;

use crate::book::{Book, name_of, scope_of};
use crate::conversation::Conversation;
use crate::memory::Memory;

/// Begins the names of groups that nobody named; the opening follows, in 16 hex digits.
pub(crate) const OWN_GROUP: &str = "auto-";

/// A trajectory as the history of an earlier process has it.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// The trajectory.
    pub trajectory_id: &'a str,
    /// The model asked for.
    pub model: &'a str,
    /// Its group.
    pub group_id: Option<&'a str>,
    /// Its number in the group.
    pub sample: Option<u64>,
    /// Whose sub-agent it is.
    pub parent_id: Option<&'a str>,
    /// Steps begun.
    pub steps: u64,
    /// Segments begun.
    pub segments: u64,
    /// Monotonic seconds.
    pub last_seen: f64,
    /// What an earlier process remembered of its history ([`Book::memory`]).
    pub memory: Option<&'a str>,
}

impl Book {
    /// Takes up a trajectory of an earlier process: under its id, its steps and segments are counted on.
    ///
    /// Without a memory only a request that names it will find it. Samples of its group are counted on as well. Call it before the first request, the one seen longest ago first.
    pub fn restore(&mut self, past: &Past<'_>) {
        if let (Some(opening), Some(sample)) = (past.group_id.and_then(opening_of), past.sample) {
            let begun = self.samples.entry(opening).or_insert(0);
            *begun = (*begun).max(sample + 1);
        }
        let name = name_of(past.tenant, past.trajectory_id);
        if self.by_name.contains_key(&name) || self.len() >= self.limits.capacity {
            return;
        }
        let mut conversation = Conversation {
            steps: past.steps,
            segment: past.segments.saturating_sub(1),
            last_seen: past.last_seen,
            group_id: past.group_id.map(Arc::from),
            sample: past.sample,
            parent_id: past.parent_id.map(Arc::from),
            ..Conversation::new(past.tenant, past.trajectory_id.into())
        };
        conversation.scope = scope_of(past.tenant, past.model);
        let id = self.new_number();
        if let Some(memory) = past.memory.and_then(Memory::read) {
            memory.fill(&mut conversation);
            self.index.take_up(id, &mut conversation);
        }
        self.by_name.insert(name, id);
        self.conversations.insert(id, conversation);
    }
}

/// The opening that a group of our own is named by.
fn opening_of(group_id: &str) -> Option<u64> {
    let digits = group_id.strip_prefix(OWN_GROUP)?;
    let is_ours = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_ours
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}
