//! The waiting queue: by priority, then by entry (SGLang's `_sort_by_priority_and_fcfs`). A sequence that is set back
//! enters anew, behind its equals.

use std::collections::BTreeMap;

use heddle_core::StepId;

use super::sequence::Sequence;

/// Sequences without a slot.
#[derive(Debug, Default)]
pub struct Waiting {
    queue: BTreeMap<(i64, u64), Sequence>,
    entries: u64,
    by_priority: bool,
}

impl Waiting {
    /// An empty queue; without `by_priority`, first come is first served.
    pub fn new(by_priority: bool) -> Self {
        Self {
            by_priority,
            ..Self::default()
        }
    }

    /// Waiting sequences.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True when nobody waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a sequence behind its equals.
    pub fn enter(&mut self, mut sequence: Sequence) {
        self.entries += 1;
        sequence.order = self.entries;
        let key = (sequence.rank(self.by_priority), sequence.order);
        self.queue.insert(key, sequence);
    }

    /// Takes out the one that is served next.
    pub fn pop(&mut self) -> Option<Sequence> {
        self.queue.pop_first().map(|(_, sequence)| sequence)
    }

    /// Puts the one that was just taken out back to its place.
    pub fn put_back(&mut self, sequence: Sequence) {
        let key = (sequence.rank(self.by_priority), sequence.order);
        self.queue.insert(key, sequence);
    }

    /// Takes a step out, if it waits here.
    pub fn remove(&mut self, step: StepId) -> Option<Sequence> {
        let key = self
            .queue
            .iter()
            .find(|(_, sequence)| sequence.request.step == step)
            .map(|(key, _)| *key)?;
        self.queue.remove(&key)
    }
}
