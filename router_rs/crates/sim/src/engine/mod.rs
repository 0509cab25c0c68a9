//! What one worker does: SGLang's continuous batching as a state machine in modelled time.
//!
//! [`Engine::advance`] carries out everything due, each event at its own time, so a late caller changes nothing.
//! Between two boundaries (end of a prefill batch; a sequence finishing, arriving or leaving; the pool running dry) the
//! batch is constant and decode is computed in closed form: the cost of a run does not depend on how many tokens are
//! generated.
//!
//! Rules kept from SGLang 0.5.23 (managers/scheduler.py, `schedule_policy.py`, `schedule_batch.py`), as in
//! `heddle_shim.emulator.engine`, with which a test compares it: prefill first, decode waits for it; long prompts in
//! chunks; lack of KV ends admission and preempts nobody; preemption only when every slot is taken, and strictly above
//! the threshold; who is preempted or retracted loses the KV of what it decoded (unless `keep_decoded`: then it stays as
//! an evictable prefix), keeps its output and queues again behind its equals; a finished sequence's KV, decoded tokens
//! included, enters the prefix tree.

mod admission;
mod decode;
mod moving;
mod prefill;
mod sequence;
mod settings;
mod waiting;

use heddle_core::StepId;

pub use sequence::{Notice, Request, What};
pub use settings::{Retraction, Settings, Totals};

use crate::costs::Costs;
use crate::kv::Pool;
use crate::segment::Segment;
use prefill::{NewTokenRatio, Part};
use sequence::Sequence;
use waiting::Waiting;

/// What the modelled GPU does.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Every step and batch ends here, where the scheduler decides.
    Idle,
    /// Prefills until then.
    Prefill { ends: f64 },
    /// Decodes; `steps` is below the segment's own when something has happened.
    Decode { segment: Segment, steps: u64 },
}

/// One worker. Times are seconds and never go back.
#[derive(Debug)]
pub struct Engine {
    costs: Costs,
    settings: Settings,
    slots: usize,
    pool: Pool,
    waiting: Waiting,
    running: Vec<Sequence>,
    parts: Vec<Part>,
    chunked: Option<Sequence>,
    phase: Phase,
    ratio: NewTokenRatio,
    now: f64,
    notices: Vec<Notice>,
    totals: Totals,
    /// Most KV that requests needed at once, at the boundaries.
    most_used: u64,
}

impl Engine {
    /// An idle worker.
    pub fn new(costs: Costs, slots: u32, kv_tokens: u64, settings: Settings) -> Self {
        Self {
            waiting: Waiting::new(settings.priority),
            costs,
            settings,
            slots: slots as usize,
            pool: Pool::new(kv_tokens),
            running: Vec::new(),
            parts: Vec::new(),
            chunked: None,
            phase: Phase::Idle,
            ratio: NewTokenRatio::default(),
            now: 0.0,
            notices: Vec::new(),
            totals: Totals::default(),
            most_used: 0,
        }
    }

    /// A request arrives. It ends in exactly one `Done` or `Refused`, unless it is withdrawn.
    pub fn submit(&mut self, now: f64, mut request: Request) {
        self.advance(now);
        let room = self.pool.total.saturating_sub(request.prompt);
        request.most_output = request.most_output.min(room);
        if request.output > room {
            self.notices.push(Notice {
                step: request.step,
                at: self.now,
                what: What::Refused,
            });
            return;
        }
        self.waiting.enter(Sequence::new(request));
        self.disturb();
    }

    /// Takes everything due by `now` to its end.
    pub fn advance(&mut self, now: f64) {
        while let Some(due) = self.next_event().filter(|&due| due <= now) {
            self.reach_boundary(due);
        }
        self.now = self.now.max(now);
    }

    /// When the batch changes next if nothing else happens.
    pub fn next_event(&self) -> Option<f64> {
        match self.phase {
            Phase::Idle => None,
            Phase::Prefill { ends } => Some(ends),
            Phase::Decode { segment, steps } => Some(segment.time_after(steps)),
        }
    }

    /// What happened since the last call, in order.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Forgets a waiting step, as a cancelled request; one in a batch goes on to its end.
    pub fn withdraw_waiting(&mut self, step: StepId) -> bool {
        self.waiting.remove(step).is_some()
    }

    /// (requests that hold a slot, requests that wait, KV tokens that requests need), as a load report says.
    pub fn load(&self) -> (u32, u32, u64) {
        let slots = self.running.len() + self.parts.len() + usize::from(self.chunked.is_some());
        let decoded = match self.phase {
            Phase::Decode { segment, steps } => segment.steps_by(self.now).min(steps),
            _ => 0,
        };
        let used = self.pool.used() + decoded * self.running.len() as u64;
        (
            slots as u32,
            self.waiting.len() as u32,
            used.min(self.pool.total),
        )
    }

    /// What it did so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Most KV tokens that requests needed at once, looked at where the batch changes.
    pub fn most_used(&self) -> u64 {
        self.most_used
    }

    /// Tokens evicted from the cache.
    pub fn evicted(&self) -> u64 {
        self.pool.evicted()
    }

    /// Broken invariants, empty when all is well.
    pub fn audit(&self) -> Vec<String> {
        let mut faults = self.pool.audit();
        if self.running.len() + self.parts.len() > self.slots {
            faults.push("more sequences than slots".into());
        }
        if self.running.iter().any(Sequence::is_complete) {
            faults.push("a sequence in the decode batch is complete".into());
        }
        faults
    }

    /// Something changed now: it is looked at when the step in progress ends, or at once when idle.
    fn disturb(&mut self) {
        match &mut self.phase {
            Phase::Idle => self.schedule(self.now),
            Phase::Prefill { .. } => {}
            Phase::Decode { segment, steps } => {
                let mut done = segment.steps_by(self.now);
                if segment.time_after(done) < self.now {
                    done += 1;
                }
                *steps = done.min(*steps);
            }
        }
        self.advance(self.now);
    }

    fn reach_boundary(&mut self, at: f64) {
        self.now = at;
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => {}
            Phase::Prefill { .. } => self.close_prefill(at),
            Phase::Decode { segment, steps } => self.close_segment(at, segment, steps),
        }
        self.schedule(at);
    }

    /// One pass of the scheduler's loop: a prefill batch if anybody can be admitted, else decode.
    fn schedule(&mut self, at: f64) {
        if self.start_prefill(at) {
            return;
        }
        if !self.running.is_empty() {
            self.start_segment(at);
        } else if self.waiting.is_empty() {
            self.ratio = NewTokenRatio::default();
        }
    }

    /// Takes its KV from a sequence that goes back to the queue (`release_req`, `reset_for_retract`).
    fn release(&mut self, mut sequence: Sequence) -> Sequence {
        let keep = self.settings.keep_decoded.then_some(sequence.computed);
        self.pool.close(&sequence.request.path, sequence.hold, keep);
        sequence.computed = 0;
        sequence.set_back += 1;
        sequence
    }

    fn finish(&mut self, sequence: &Sequence, at: f64) {
        let kept = Some(sequence.computed);
        self.pool.close(&sequence.request.path, sequence.hold, kept);
        self.notices.push(Notice {
            step: sequence.request.step,
            at,
            what: What::Done {
                cached: sequence.cached.unwrap_or(0),
                admitted_at: sequence.admitted_at,
            },
        });
    }

    fn note_use(&mut self) {
        self.most_used = self.most_used.max(self.pool.used());
    }
}
