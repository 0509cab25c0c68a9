//! An engine's settings, and what it counts.

use serde::{Deserialize, Serialize};

/// Who goes on when the pool runs dry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retraction {
    /// The longest outputs.
    #[default]
    Length,
    /// The highest priorities.
    Priority,
}

/// SGLang's server arguments, with its defaults where Heddle has no reason for another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Most new tokens of one prefill batch.
    pub chunked_prefill: u64,
    /// Order the waiting queue by priority and preempt.
    pub priority: bool,
    /// Preempt only what is worse by more than this.
    pub preemption_threshold: i64,
    /// Who stays when the pool runs dry.
    pub retraction: Retraction,
    /// Whoever is preempted or retracted leaves its KV in the prefix tree, as Heddle's plugin for SGLang has it.
    pub keep_decoded: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            chunked_prefill: 8192,
            priority: true,
            preemption_threshold: 10,
            retraction: Retraction::Length,
            keep_decoded: false,
        }
    }
}

/// What a worker did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Tokens whose KV was computed by prefill.
    pub prefilled: u64,
    /// Of these, tokens that were computed before: of sequences that were set back.
    pub prefilled_again: u64,
    /// Prompt tokens of admitted requests.
    pub prompt: u64,
    /// Of these, tokens found in the cache.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
    /// Sequences set back for a better one.
    pub preempted: u64,
    /// Sequences set back because the pool ran dry.
    pub retracted: u64,
    /// Seconds of prefill.
    pub prefill_s: f64,
    /// Seconds of decode.
    pub decode_s: f64,
    /// Sum over decode steps of the batch, so that / decode steps is the mean batch.
    pub batch_steps: u64,
    /// Decode steps.
    pub steps: u64,
}

impl Totals {
    /// Adds what another life of the worker did.
    pub fn add(&mut self, other: &Self) {
        self.prefilled += other.prefilled;
        self.prefilled_again += other.prefilled_again;
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.output += other.output;
        self.preempted += other.preempted;
        self.retracted += other.retracted;
        self.prefill_s += other.prefill_s;
        self.decode_s += other.decode_s;
        self.batch_steps += other.batch_steps;
        self.steps += other.steps;
    }
}
