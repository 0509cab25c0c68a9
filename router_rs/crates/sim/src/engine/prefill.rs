//! Who is prefilled next: SGLang's `PrefillAdder` (`managers/schedule_policy.py`).
//!
//! One [`PrefillPass`] is one attempt to form a prefill batch. It reserves KV as it admits, so it cannot promise what
//! the pool does not have. What running requests may still ask for is reserved too, scaled by the new-token ratio.

use super::sequence::Sequence;
use crate::kv::Pool;

/// Share of the still allowed output that admission sets KV aside for at first (`SGLANG_INIT_NEW_TOKEN_RATIO`).
const FIRST_RATIO: f64 = 0.7;
/// Least share (`SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR` of the first).
const LEAST_RATIO: f64 = FIRST_RATIO * 0.14;
/// Decode steps from the first to the least (`SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS`).
const DECAY_STEPS: f64 = 600.0;

/// The share of their remaining allowance that running requests are believed to use. Falls while decode goes well and
/// rises to what a retraction has shown to be needed.
#[derive(Debug, Clone, Copy)]
pub struct NewTokenRatio(f64);

impl Default for NewTokenRatio {
    fn default() -> Self {
        Self(FIRST_RATIO)
    }
}

impl NewTokenRatio {
    /// So many decode steps went well.
    pub fn decay(&mut self, steps: u64) {
        let fallen = self.0 - steps as f64 * (FIRST_RATIO - LEAST_RATIO) / DECAY_STEPS;
        self.0 = fallen.max(LEAST_RATIO);
    }

    /// A retraction left `kept`; each has room for `margin` steps.
    pub fn learn(&mut self, kept: &[Sequence], margin: u64) {
        let decoded: u64 = kept.iter().map(|one| one.made + margin).sum();
        let allowed: f64 = kept.iter().map(|one| one.request.most_output as f64).sum();
        self.0 = (decoded as f64 / (allowed + 1.0)).min(1.0);
    }
}

/// What came of one candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is in the batch, whole or in part.
    Added,
    /// The KV pool lacks room. Ends the pass: nobody overtakes, nobody is preempted.
    NoToken,
    /// The chunk is full.
    NoBudget,
}

/// Tokens `start` to `end` of one sequence, prefilled in this batch.
#[derive(Debug)]
pub struct Part {
    /// The sequence.
    pub sequence: Sequence,
    /// First token.
    pub start: u64,
    /// Behind the last token.
    pub end: u64,
}

impl Part {
    /// The sequence samples its next token at the end of this part.
    pub fn is_last(&self) -> bool {
        self.end == self.sequence.target
    }
}

/// Forms one prefill batch of at most `chunk` new tokens.
#[derive(Debug)]
pub struct PrefillPass {
    ratio: f64,
    chunk: u64,
    reserved: f64,
}

impl PrefillPass {
    /// A batch beside `running`.
    pub fn new(running: &[Sequence], ratio: NewTokenRatio, chunk: u64) -> Self {
        let reserved: u64 = running.iter().map(Sequence::reserved).sum();
        Self {
            ratio: ratio.0,
            chunk,
            reserved: reserved as f64 * ratio.0,
        }
    }

    fn room(&self, pool: &Pool) -> f64 {
        pool.obtainable() as f64 - self.reserved
    }

    /// Goes on with the sequence whose prompt was cut by the last pass; it comes before all others. Says where the part
    /// ends, or nothing without room.
    pub fn resume(&mut self, pool: &mut Pool, sequence: &mut Sequence) -> Option<u64> {
        let end = self.chunk_end(sequence.computed, sequence.target);
        if !pool.grow(&mut sequence.hold, end) {
            return None;
        }
        self.take(sequence, end);
        Some(end)
    }

    /// Admits a waiting sequence, whole or as much of it as the chunk holds: where its part starts and ends.
    pub fn add(
        &mut self,
        pool: &mut Pool,
        sequence: &mut Sequence,
    ) -> Result<(u64, u64), Admission> {
        let target = sequence.to_compute();
        let path = sequence.request.path;
        // At least one token is computed, or there would be nothing to sample from.
        let mut hold = pool.open(&path, target - 1);
        let start = hold.known;
        let end = self.chunk_end(start, target);
        let needs = (target - start + sequence.reserved()) as f64;
        let outcome = if needs > self.room(pool) {
            Admission::NoToken
        } else if end <= start {
            Admission::NoBudget
        } else if pool.grow(&mut hold, end) {
            Admission::Added
        } else {
            Admission::NoToken
        };
        if outcome != Admission::Added {
            pool.close(&path, hold, None);
            return Err(outcome);
        }
        sequence.hold = hold;
        sequence.computed = start;
        sequence.target = target;
        self.take(sequence, end);
        Ok((start, end))
    }

    /// Running sequences to preempt for `newcomer` (`preempt_to_schedule`), as indices: lowest priority first, newest
    /// first, each worse by strictly more than `threshold`. Empty if that does not make room.
    pub fn victims_for(
        &self,
        pool: &mut Pool,
        newcomer: &Sequence,
        running: &[Sequence],
        threshold: i64,
    ) -> Vec<usize> {
        let rank = newcomer.rank(true);
        let mut worse: Vec<usize> = (0..running.len())
            .filter(|&i| running[i].rank(true) - rank > threshold)
            .collect();
        if worse.is_empty() {
            return worse;
        }
        worse.sort_unstable_by_key(|&i| {
            std::cmp::Reverse((running[i].rank(true), running[i].order))
        });
        let target = newcomer.to_compute();
        let known = pool.matched(&newcomer.request.path, target - 1);
        let mut lacking = (target - known + newcomer.reserved()) as f64 - self.room(pool);
        for (taken, &victim) in worse.iter().enumerate() {
            // What was set aside for it counts, the KV it gives back does not (running_request_credit).
            lacking -= running[victim].reserved() as f64 * self.ratio;
            if lacking <= 0.0 {
                worse.truncate(taken + 1);
                return worse;
            }
        }
        Vec::new()
    }

    /// A running sequence was preempted: nothing is set aside for it any more.
    pub fn forget(&mut self, victim: &Sequence) {
        self.reserved -= victim.reserved() as f64 * self.ratio;
    }

    fn chunk_end(&self, start: u64, target: u64) -> u64 {
        target.min(start + self.chunk)
    }

    fn take(&mut self, sequence: &Sequence, end: u64) {
        self.chunk -= end - sequence.computed;
        if end == sequence.target {
            self.reserved += sequence.reserved() as f64;
        }
    }
}
