//! The decode batch: segments of unchanging company, and who goes back when the pool runs dry.

use super::sequence::Sequence;
use super::{Engine, Phase, Retraction};
use crate::segment::Segment;

/// While sequences wait, admission is tried again after so many decode steps; SGLang tries at every one.
const BLOCKED_ADMISSION_STEPS: u64 = 64;
/// Steps a retraction makes room for (`SGLANG_RETRACT_DECODE_STEPS`).
const RETRACT_DECODE_STEPS: u64 = 20;

impl Engine {
    pub(super) fn start_segment(&mut self, at: f64) {
        if self.running.len() as u64 > self.pool.obtainable() {
            self.retract();
        }
        self.note_use();
        let batch = self.running.len() as u64;
        let context = self.running.iter().map(|one| one.computed).sum();
        let finishes = self
            .running
            .iter()
            .map(|one| one.request.output - one.made)
            .min();
        let mut steps = finishes
            .unwrap_or(0)
            .min(self.pool.obtainable() / batch.max(1))
            .max(1);
        if !self.waiting.is_empty() {
            steps = steps.min(BLOCKED_ADMISSION_STEPS);
        }
        let segment = Segment {
            start: at,
            first_step: self.costs.step_s(self.running.len(), context),
            growth: batch as f64 * self.costs.context_token_s,
            steps,
        };
        self.phase = Phase::Decode { segment, steps };
    }

    pub(super) fn close_segment(&mut self, at: f64, segment: Segment, steps: u64) {
        if steps == 0 {
            return;
        }
        let batch = self.running.len() as u64;
        self.totals.steps += steps;
        self.totals.batch_steps += steps * batch;
        self.totals.output += steps * batch;
        self.totals.decode_s += segment.duration(steps);
        for one in &mut self.running {
            one.made += steps;
            one.computed += steps;
            let fits = self.pool.grow(&mut one.hold, one.computed);
            debug_assert!(fits, "a decode segment outran the KV pool");
        }
        self.ratio.decay(steps);
        let (ended, running) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(Sequence::is_complete);
        self.running = running;
        let ended: Vec<Sequence> = ended;
        for sequence in ended {
            self.finish(&sequence, at);
        }
    }

    /// The pool is dry: sends sequences back until the rest can decode a while (`retract_decode`). One is always left,
    /// and fits: `submit` refuses what alone would not.
    fn retract(&mut self) {
        match self.settings.retraction {
            Retraction::Length => self
                .running
                .sort_by_key(|one| (std::cmp::Reverse(one.made), one.request.prompt)),
            Retraction::Priority => self.running.sort_by_key(|one| {
                let rank = one.rank(self.settings.priority);
                (rank, std::cmp::Reverse(one.made), one.request.prompt)
            }),
        }
        while self.running.len() > 1 {
            let Some(last) = self.running.pop() else {
                return;
            };
            self.totals.retracted += 1;
            let last = self.release(last);
            self.waiting.enter(last);
            if self.running.len() as u64 * RETRACT_DECODE_STEPS <= self.pool.obtainable() {
                break;
            }
        }
        self.ratio.learn(&self.running, RETRACT_DECODE_STEPS);
    }
}
