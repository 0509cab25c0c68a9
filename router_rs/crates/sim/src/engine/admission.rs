//! From the waiting queue into the batch: prefill batches begin and end, and whoever makes room goes back.

use heddle_core::StepId;

use super::prefill::{Part, PrefillPass};
use super::sequence::{Notice, Sequence, What};
use super::{Engine, Phase};

impl Engine {
    pub(super) fn start_prefill(&mut self, at: f64) -> bool {
        if self.chunked.is_none() && self.waiting.is_empty() {
            return false;
        }
        let mut set_back = Vec::new();
        let mut pass = PrefillPass::new(&self.running, self.ratio, self.settings.chunked_prefill);
        if let Some(mut chunked) = self.chunked.take() {
            let Some(end) = pass.resume(&mut self.pool, &mut chunked) else {
                // Nothing can be evicted for the rest of a prompt: its KV is given back and it queues again.
                let chunked = self.release(chunked);
                self.waiting.enter(chunked);
                return false;
            };
            let start = chunked.computed;
            self.parts.push(Part {
                sequence: chunked,
                start,
                end,
            });
        }
        while let Some(mut candidate) = self.waiting.pop() {
            let full = self.running.len() + self.parts.len() >= self.slots;
            if full {
                let victims = self.preempt_for(&candidate, &mut pass);
                if victims.is_empty() {
                    self.waiting.put_back(candidate);
                    break;
                }
                // They queue again when the pass is over: it may not take them up at once.
                set_back.extend(victims);
            }
            let Ok((start, end)) = pass.add(&mut self.pool, &mut candidate) else {
                self.waiting.put_back(candidate);
                break;
            };
            self.note_admission(&mut candidate, at);
            self.parts.push(Part {
                sequence: candidate,
                start,
                end,
            });
        }
        for sequence in set_back {
            self.waiting.enter(sequence);
        }
        if self.parts.is_empty() {
            return false;
        }
        let busy = self.costs.prefill_s(
            self.parts
                .iter()
                .map(|part| (part.end - part.start, part.start)),
        );
        for part in &self.parts {
            self.totals.prefilled += part.end - part.start;
            if part.sequence.set_back > 0 {
                self.totals.prefilled_again += part.end - part.start;
            }
        }
        self.totals.prefill_s += busy;
        self.note_use();
        self.phase = Phase::Prefill { ends: at + busy };
        true
    }

    fn note_admission(&mut self, sequence: &mut Sequence, at: f64) {
        if sequence.cached.is_none() {
            sequence.cached = Some(sequence.computed);
            sequence.admitted_at = at;
            self.totals.prompt += sequence.request.prompt;
            self.totals.cached += sequence.computed;
        }
    }

    pub(super) fn close_prefill(&mut self, at: f64) {
        for part in std::mem::take(&mut self.parts) {
            let last = part.is_last();
            let mut sequence = part.sequence;
            sequence.computed = part.end;
            self.pool
                .publish(&sequence.request.path, &mut sequence.hold, part.end);
            if !last {
                self.chunked = Some(sequence);
                continue;
            }
            if !sequence.is_complete() {
                sequence.made += 1;
                self.totals.output += 1;
            }
            if !sequence.begun {
                sequence.begun = true;
                self.notices.push(Notice {
                    step: sequence.request.step,
                    at,
                    what: What::Began,
                });
            }
            if sequence.is_complete() {
                self.finish(&sequence, at);
            } else {
                self.running.push(sequence);
            }
        }
    }

    /// Takes out of the batch whoever makes room for `newcomer`, without the KV it decoded.
    fn preempt_for(&mut self, newcomer: &Sequence, pass: &mut PrefillPass) -> Vec<Sequence> {
        if !self.settings.priority {
            return Vec::new();
        }
        let threshold = self.settings.preemption_threshold;
        let victims = pass.victims_for(&mut self.pool, newcomer, &self.running, threshold);
        let steps: Vec<StepId> = victims
            .iter()
            .map(|&i| self.running[i].request.step)
            .collect();
        let mut taken = Vec::with_capacity(steps.len());
        for step in steps {
            if let Some(at) = self.running.iter().position(|one| one.request.step == step) {
                let victim = self.running.remove(at);
                pass.forget(&victim);
                self.totals.preempted += 1;
                taken.push(self.release(victim));
            }
        }
        taken
    }
}
