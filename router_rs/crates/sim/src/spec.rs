//! What is simulated: workers and what they truly do, the core's policy, the quality of predictions, and what goes wrong.

use std::collections::BTreeMap;

use heddle_core::belief::Profile;
use heddle_core::plan::PlanSpec;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cluster::replanning::Replan;
use crate::costs::Costs;
use crate::engine::Settings;
use crate::network::Link;
use crate::prediction::Prediction;

/// What workers of one degree truly are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truth {
    /// Times.
    pub costs: Costs,
    /// Requests that run at once.
    pub slots: u32,
    /// KV capacity in tokens.
    pub kv_tokens: u64,
    /// How they move KV; absent where they cannot.
    #[serde(default)]
    pub link: Option<Link>,
}

/// A worker that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Index of the worker.
    pub worker: usize,
    /// Seconds after the start.
    pub at_s: f64,
    /// Seconds after the start at which a new one, with an empty cache, takes its place.
    #[serde(default)]
    pub back_s: Option<f64>,
}

/// A whole run but for the workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches of a run, not a state"
)]
pub struct Spec {
    /// What workers truly are, by degree.
    pub truth: BTreeMap<u32, Truth>,
    /// Degree of each worker; the index is its handle.
    pub workers: Vec<u32>,
    /// Host of each worker; where absent, each is on a host of its own.
    #[serde(default)]
    pub hosts: Vec<usize>,
    /// KV tokens a second that a host's network takes out of it, and as many into it; where absent, links are the only bound.
    #[serde(default)]
    pub host_tokens_per_s: Option<f64>,
    /// Changes to the core's default policy.
    #[serde(default)]
    pub policy: Map<String, Value>,
    /// What the core believes of workers, by degree; where absent, the line through the truth at batch 1 and all slots.
    #[serde(default)]
    pub beliefs: BTreeMap<u32, Profile>,
    /// A plan, installed before the first trajectory.
    #[serde(default)]
    pub plan: Option<PlanSpec>,
    /// When plans are made on the way; absent for one plan at most, made beforehand.
    #[serde(default)]
    pub replan: Option<Replan>,
    /// What the core is told about lengths.
    #[serde(default)]
    pub prediction: Prediction,
    /// Seed of everything random.
    #[serde(default)]
    pub seed: u64,
    /// The engines' settings.
    #[serde(default)]
    pub engine: Settings,
    /// The truth takes so many times as long as `truth` says, and the core is not told.
    #[serde(default = "one")]
    pub slowdown: f64,
    /// Seconds between load reports of a worker.
    #[serde(default = "two_seconds")]
    pub report_interval_s: f64,
    /// Seconds that a load report is old when it arrives.
    #[serde(default)]
    pub report_delay_s: f64,
    /// Workers that are lost.
    #[serde(default)]
    pub losses: Vec<Loss>,
    /// Answers are streamed: the core learns of the first byte when it is there, not with the last.
    #[serde(default = "yes")]
    pub streaming: bool,
    /// The owner of a trajectory says when it is over. Off: the core has to find out, as with most agents.
    #[serde(default)]
    pub end_signal: bool,
    /// Output tokens that each request asks for at most (`max_tokens`), by which engines reserve KV.
    #[serde(default = "no_bound")]
    pub most_output: u64,
    /// Write the core's journal.
    #[serde(default)]
    pub journal: bool,
    /// Keep when each step ran where.
    #[serde(default)]
    pub timeline: bool,
}

fn one() -> f64 {
    1.0
}

fn two_seconds() -> f64 {
    2.0
}

fn yes() -> bool {
    true
}

fn no_bound() -> u64 {
    u64::from(u32::MAX)
}

impl Spec {
    /// Parses a spec and checks it; the message names the field.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let spec: Self = serde_json::from_str(json).map_err(|error| format!("spec: {error}"))?;
        spec.validate()?;
        Ok(spec)
    }

    /// Checks what the types cannot; the message names the field.
    pub fn validate(&self) -> Result<(), String> {
        if self.workers.is_empty() {
            return Err("workers: must name at least one".into());
        }
        for (index, degree) in self.workers.iter().enumerate() {
            if !self.truth.contains_key(degree) {
                return Err(format!("workers[{index}]: truth has no degree {degree}"));
            }
        }
        for (degree, truth) in &self.truth {
            truth
                .costs
                .validate()
                .map_err(|why| format!("truth.{degree}.costs.{why}"))?;
            if *degree == 0 || truth.slots == 0 || truth.kv_tokens == 0 {
                return Err(format!(
                    "truth.{degree}: degree, slots and kv_tokens must be at least 1"
                ));
            }
            if let Some(link) = &truth.link
                && !(link.tokens_per_s.is_finite()
                    && link.tokens_per_s > 0.0
                    && link.setup_s.is_finite()
                    && link.setup_s >= 0.0)
            {
                return Err(format!(
                    "truth.{degree}.link: must have finite tokens_per_s above 0 and setup_s of at least 0"
                ));
            }
            if self.engine.chunked_prefill == 0 {
                return Err("engine.chunked_prefill: must be at least 1".into());
            }
        }
        for (field, value, least) in [
            ("slowdown", self.slowdown, 1e-6),
            ("report_interval_s", self.report_interval_s, 1e-3),
            ("report_delay_s", self.report_delay_s, 0.0),
        ] {
            if !(value.is_finite() && value >= least) {
                return Err(format!(
                    "{field}: {value} is not a finite number of at least {least}"
                ));
            }
        }
        if !self.hosts.is_empty() && self.hosts.len() != self.workers.len() {
            return Err(format!(
                "hosts: must have one value for each of {} workers, or none",
                self.workers.len()
            ));
        }
        if let Some(rate) = self.host_tokens_per_s
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(format!(
                "host_tokens_per_s: {rate} is not a finite number above 0"
            ));
        }
        for (index, loss) in self.losses.iter().enumerate() {
            if loss.worker >= self.workers.len() {
                return Err(format!(
                    "losses[{index}].worker: there is no worker {}",
                    loss.worker
                ));
            }
            let back = loss.back_s.unwrap_or(f64::MAX);
            if !(loss.at_s.is_finite() && loss.at_s >= 0.0 && back > loss.at_s) {
                return Err(format!("losses[{index}]: must have 0 <= at_s < back_s"));
            }
        }
        if let Some(replan) = &self.replan {
            replan.validate()?;
        }
        self.prediction.validate()
    }

    /// What a worker of this degree does in this run.
    pub fn true_costs(&self, truth: &Truth) -> Costs {
        truth.costs.slowed(self.slowdown)
    }

    /// How workers of this degree move KV in this run.
    pub fn true_link(&self, degree: u32) -> Option<Link> {
        let link = self.truth[&degree].link?;
        Some(Link {
            tokens_per_s: link.tokens_per_s / self.slowdown,
            setup_s: link.setup_s * self.slowdown,
        })
    }

    /// GPUs of all workers.
    pub fn gpus(&self) -> u32 {
        self.workers.iter().sum()
    }
}
