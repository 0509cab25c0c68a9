//! What agents ask for: scripts of trajectories, their steps' tokens and their tools' seconds.
//!
//! A script says what happens whatever the schedule is: a trajectory's tokens and tool times do not depend on when its
//! steps run. Invariant (checked by [`Workload::new`]): every script has a step and every step an output.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::prediction::Estimate;

/// One step: a generation and the tool call that follows it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// Tokens appended to the context before it (tool results); 0 at the first step, whose prompt is the script's.
    pub input: u64,
    /// Tokens it generates, at least 1.
    pub output: u64,
    /// Seconds of the tool call it ends with; what the last step says is not waited for.
    pub tool_s: f64,
}

/// One trajectory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Prompt tokens of its first step, at least 1.
    pub prompt: u64,
    /// Trajectories with the same group share the start of their prompts.
    #[serde(default)]
    pub group: Option<u64>,
    /// Seconds after the start of the rollout at which it begins.
    #[serde(default)]
    pub start_s: f64,
    /// Its steps.
    pub turns: Vec<Turn>,
}

impl Script {
    /// Tokens it generates.
    pub fn output(&self) -> u64 {
        self.turns.iter().map(|turn| turn.output).sum()
    }

    /// Prompt tokens of each step: all that was said and appended before it.
    pub fn prompts(&self) -> impl Iterator<Item = u64> + '_ {
        let mut context = self.prompt;
        self.turns.iter().enumerate().map(move |(index, turn)| {
            if index > 0 {
                context += turn.input;
            }
            let prompt = context;
            context += turn.output;
            prompt
        })
    }

    /// Largest context of any step, its output included.
    pub fn most_context(&self) -> u64 {
        let inputs: u64 = self.turns.iter().skip(1).map(|turn| turn.input).sum();
        self.prompt + inputs + self.output()
    }

    /// Seconds of its tools, without what follows its last step.
    pub fn tool_s(&self) -> f64 {
        let waited = self.turns.len().saturating_sub(1);
        self.turns[..waited].iter().map(|turn| turn.tool_s).sum()
    }
}

/// A workload that cannot be simulated.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("trajectory {trajectory}: {field}: {why}")]
pub struct WorkloadError {
    /// Index of the script.
    pub trajectory: usize,
    /// Field at fault.
    pub field: &'static str,
    /// What is wrong and what is allowed.
    pub why: String,
}

/// All trajectories of a rollout, and what of their prompts they share.
#[derive(Debug, Clone)]
pub struct Workload {
    scripts: Vec<Script>,
    shared: Vec<u64>,
    forecasts: Option<Vec<Vec<Estimate>>>,
}

/// Largest token count of one step: sums over a workload stay far from overflow.
const MOST_TOKENS: u64 = 1 << 32;
/// Longest tool call or start, seconds: 30 days.
const MOST_SECONDS: f64 = 30.0 * 86_400.0;

impl Workload {
    /// With what a real predictor said before each step of each script; checked against the scripts.
    pub fn with_forecasts(mut self, forecasts: Vec<Vec<Estimate>>) -> Result<Self, WorkloadError> {
        let wrong = |trajectory, why| WorkloadError {
            trajectory,
            field: "forecasts",
            why,
        };
        if forecasts.len() != self.scripts.len() {
            let why = format!(
                "{} scripts, forecasts of {}",
                self.scripts.len(),
                forecasts.len()
            );
            return Err(wrong(forecasts.len().min(self.scripts.len()), why));
        }
        for (trajectory, (said, script)) in forecasts.iter().zip(&self.scripts).enumerate() {
            if said.len() != script.turns.len() {
                let why = format!("{} for {} steps", said.len(), script.turns.len());
                return Err(wrong(trajectory, why));
            }
            let sound = |one: &Estimate| {
                (1.0..=1e12).contains(&one.mean) && (0.0..=5.0).contains(&one.sigma)
            };
            if let Some(step) = said.iter().position(|one| !sound(one)) {
                let why = format!("step {step}: must have mean >= 1 and 0 <= sigma <= 5");
                return Err(wrong(trajectory, why));
            }
        }
        self.forecasts = Some(forecasts);
        Ok(self)
    }

    /// What a real predictor said before each step, where it was given.
    pub fn forecasts(&self) -> Option<&[Vec<Estimate>]> {
        self.forecasts.as_deref()
    }

    /// Checks the scripts.
    pub fn new(scripts: Vec<Script>) -> Result<Self, WorkloadError> {
        for (trajectory, script) in scripts.iter().enumerate() {
            let wrong = |field, why: String| WorkloadError {
                trajectory,
                field,
                why,
            };
            if script.turns.is_empty() {
                return Err(wrong("turns", "must hold at least one step".into()));
            }
            if !(1..=MOST_TOKENS).contains(&script.prompt) {
                let why = format!("{} is not within 1 to {MOST_TOKENS} tokens", script.prompt);
                return Err(wrong("prompt", why));
            }
            if !(0.0..=MOST_SECONDS).contains(&script.start_s) {
                let why = format!("{} is not within 0 to {MOST_SECONDS} s", script.start_s);
                return Err(wrong("start_s", why));
            }
            for (index, turn) in script.turns.iter().enumerate() {
                if !(1..=MOST_TOKENS).contains(&turn.output) {
                    let why = format!("step {index}: {} is not a number of tokens", turn.output);
                    return Err(wrong("output", why));
                }
                if turn.input > MOST_TOKENS {
                    let why = format!("step {index}: {} tokens are too many", turn.input);
                    return Err(wrong("input", why));
                }
                if !(0.0..=MOST_SECONDS).contains(&turn.tool_s) {
                    let why = format!("step {index}: {} is not within 0 to 30 days", turn.tool_s);
                    return Err(wrong("tool_s", why));
                }
            }
        }
        let mut least: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        for script in &scripts {
            if let Some(group) = script.group {
                let (prompt, members) = least.entry(group).or_insert((script.prompt, 0));
                *prompt = script.prompt.min(*prompt);
                *members += 1;
            }
        }
        let shared = scripts
            .iter()
            .map(|script| match script.group.and_then(|g| least.get(&g)) {
                Some(&(prompt, members)) if members > 1 => prompt,
                _ => 0,
            })
            .collect();
        Ok(Self {
            scripts,
            shared,
            forecasts: None,
        })
    }

    /// The trajectories; their index is their id.
    pub fn scripts(&self) -> &[Script] {
        &self.scripts
    }

    /// Prompt tokens that a trajectory has in common with the others of its group: the shortest of their prompts.
    pub fn shared_prompt(&self, trajectory: usize) -> u64 {
        self.shared[trajectory]
    }

    /// Prompt tokens that one of its group computes for all, beside what each computes whoever came before: all that they
    /// share but the last token, which the one with the shortest prompt computes anyhow.
    pub fn common_prompt(&self, trajectory: usize) -> u64 {
        self.shared[trajectory].saturating_sub(1)
    }

    /// Output tokens of all.
    pub fn output(&self) -> u64 {
        self.scripts.iter().map(Script::output).sum()
    }

    /// Number of steps of all.
    pub fn steps(&self) -> usize {
        self.scripts.iter().map(|script| script.turns.len()).sum()
    }
}
