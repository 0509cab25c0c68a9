//! One sequence being generated. Where it is kept says where it stands: in the waiting queue, among the parts of a
//! prefill batch, as the chunked one, or in the decode batch; it is moved, so it is never in two places.

use heddle_core::StepId;

use crate::kv::{Hold, Path};

/// A request as it comes in.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The core's step.
    pub step: StepId,
    /// Whose tokens it is about.
    pub path: Path,
    /// Prompt tokens.
    pub prompt: u64,
    /// Tokens that the model will generate.
    pub output: u64,
    /// Tokens that the request asks for at most, by which admission reserves.
    pub most_output: u64,
    /// The engine's number, higher first.
    pub priority: i64,
}

/// A request and how far it is.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// What was asked for.
    pub request: Request,
    /// Output tokens sampled.
    pub made: u64,
    /// Tokens of prompt and output whose KV exists.
    pub computed: u64,
    /// While prefilling: tokens whose KV must exist before the next one is sampled.
    pub target: u64,
    /// Its KV; only meaningful while it is in a batch.
    pub hold: Hold,
    /// Grows with each entry into the waiting queue.
    pub order: u64,
    /// Prompt tokens found in the cache at its first admission; none before.
    pub cached: Option<u64>,
    /// When it was first admitted, seconds.
    pub admitted_at: f64,
    /// Times it was sent back to the queue.
    pub set_back: u32,
    /// Whether its first token was reported.
    pub begun: bool,
}

impl Sequence {
    /// A request that has not been queued yet.
    pub fn new(request: Request) -> Self {
        Self {
            request,
            made: 0,
            computed: 0,
            target: 0,
            hold: Hold::default(),
            order: 0,
            cached: None,
            admitted_at: 0.0,
            set_back: 0,
            begun: false,
        }
    }

    /// Every token has been sampled.
    pub fn is_complete(&self) -> bool {
        self.made >= self.request.output
    }

    /// Output tokens that admission sets aside for it, before the ratio (`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`).
    pub fn reserved(&self) -> u64 {
        const CLIP: u64 = 4096;
        self.request.most_output.saturating_sub(self.made).min(CLIP)
    }

    /// Order among the waiting and, from behind, among victims: priority first, then first come.
    pub fn rank(&self, by_priority: bool) -> i64 {
        if by_priority {
            -self.request.priority
        } else {
            0
        }
    }

    /// Tokens to prefill before the next one can be sampled: prompt and what was generated before it was set back.
    pub fn to_compute(&self) -> u64 {
        self.request.prompt + self.made
    }
}

/// Something a sequence went through, for the driver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Notice {
    /// The core's step.
    pub step: StepId,
    /// Seconds.
    pub at: f64,
    /// What it was.
    pub what: What,
}

/// What a sequence went through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// Its first token is there.
    Began,
    /// Its last token is there.
    Done {
        /// Prompt tokens found in the cache at its first admission.
        cached: u64,
        /// When it was first admitted, seconds.
        admitted_at: f64,
    },
    /// It needs more KV than this worker has.
    Refused,
}
