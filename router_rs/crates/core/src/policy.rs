//! What the core is told to do: variants of each family and their numbers.
//!
//! A policy is complete and valid by construction: [`Policy::amended`] lays a partial JSON object over another
//! policy and refuses what does not fit, naming the field.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::admission::AdmissionKind;
use crate::migration::MigrationKind;
use crate::order::OrderKind;
use crate::placement::PlacementKind;

/// The whole policy. Times are milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Who runs next on a worker.
    pub order: OrderKind,
    /// Where a step runs.
    pub placement: PlacementKind,
    /// Who may hold KV at all.
    pub admission: AdmissionKind,
    /// When KV is moved to another worker in a tool gap.
    pub migration: MigrationKind,

    /// Levels that priorities are quantised to (1 to 32): each is a metric label in the engine.
    pub priority_levels: u8,
    /// Engine priority = level x spacing. SGLang preempts when the difference is above 10.
    pub priority_spacing: u32,
    /// Levels by which a held step must outrank the lowest running one before it is sent over the slots.
    pub preempt_levels: u8,
    /// Most steps sent over the slots of a worker at a time, so that its engine preempts.
    pub max_over_send: u32,
    /// Steps sent to a worker beyond its slots regardless of rank.
    pub backlog: u32,

    /// A step that has waited this long goes to the head of its worker's queue.
    pub max_wait_ms: u64,
    /// A step held by admission this long is let through.
    pub max_hold_ms: u64,
    /// `max_wait_ms` and `max_hold_ms` come down to so many times what all work still takes, as far as it can be told.
    pub wait_share: f64,
    /// A step behind an aborting one of its trajectory goes on after this long even if the abort has not ended.
    pub abort_wait_ms: u64,
    /// A step that finds no worker waits this long for one before it is rejected.
    pub worker_wait_ms: u64,
    /// Attempts of a step before it is rejected.
    pub max_attempts: u32,

    /// A trajectory idle this long is forgotten. Long before it has become dormant, and costs no more than its entry.
    pub idle_ttl_ms: u64,
    /// A trajectory in its tool gap this long is not counted as active any more; comes down to what gaps are
    /// usually like once enough of them were seen.
    pub dormant_after_ms: u64,

    /// Mean output tokens of a trajectory before any has been seen.
    pub prior_mean_tokens: f64,
    /// Standard deviation of the logarithm of that length.
    pub prior_sigma: f64,
    /// Finished trajectories that the prior counts for.
    pub prior_weight: f64,
    /// Steps after which a prediction is no longer used.
    pub prediction_ttl_steps: u32,

    /// Move a trajectory off its worker only when the gain is this many times the cost.
    pub move_margin: f64,
    /// Without a plan, a trajectory leaves for an equal worker when a token takes so many times as long on its own.
    pub level_margin: f64,
    /// Share of a worker's KV that admission gives out.
    pub kv_headroom: f64,
    /// Share of a trajectory's expected growth that admission keeps room for; what outgrows it is set aside later.
    pub kv_growth_share: f64,
    /// Weight of computing a context again against holding its KV through a tool gap: the less, the less idle KV counts as
    /// taken. Below 1, because the engine evicts only what it must, and part of what is not held is still there.
    pub recompute_weight: f64,
    /// Weight of the decoding that a prefill interrupts against the wait of the steps that are gathered for one; 0: each is
    /// sent at once.
    pub gather_weight: f64,
    /// Steps are held for others to come no longer than this after the last one.
    pub gather_most_ms: u64,
    /// Cache-aware placement: share of the prompt that must match for a worker to be chosen by its cache.
    pub cache_threshold: f64,
    /// Cache-aware placement: loads further apart than this (and than the relative threshold) are balanced.
    pub balance_abs_threshold: u32,
    /// Cache-aware placement: see `balance_abs_threshold`.
    pub balance_rel_threshold: f64,
    /// Cache-aware placement: most messages remembered for a worker.
    pub cache_nodes: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            order: OrderKind::LongestFirst,
            placement: PlacementKind::ByRank,
            admission: AdmissionKind::WorkingSet,
            migration: MigrationKind::WhenWorthIt,
            priority_levels: 32,
            priority_spacing: 16,
            preempt_levels: 4,
            max_over_send: 2,
            backlog: 0,
            max_wait_ms: 300_000,
            max_hold_ms: 300_000,
            wait_share: 1.0,
            abort_wait_ms: 5_000,
            worker_wait_ms: 0,
            max_attempts: 3,
            idle_ttl_ms: 6 * 3_600_000,
            dormant_after_ms: 60_000,
            prior_mean_tokens: 4_000.0,
            prior_sigma: 1.0,
            prior_weight: 8.0,
            prediction_ttl_steps: 8,
            move_margin: 1.25,
            level_margin: 1.1,
            kv_headroom: 0.95,
            kv_growth_share: 0.1,
            recompute_weight: 0.12,
            gather_weight: 1.0,
            gather_most_ms: 100,
            cache_threshold: 0.5,
            balance_abs_threshold: 32,
            balance_rel_threshold: 1.0001,
            cache_nodes: 65_536,
        }
    }
}

/// A policy that does not fit. The message starts with the field.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {why}")]
pub struct PolicyError {
    /// Field at fault; "policy" when the text is no JSON object at all.
    pub field: String,
    /// What is wrong and what is allowed.
    pub why: String,
}

fn wrong(field: &str, why: impl Into<String>) -> PolicyError {
    PolicyError {
        field: field.to_owned(),
        why: why.into(),
    }
}

impl Policy {
    /// The default policy with the fields of `json` changed.
    pub fn from_json(json: &str) -> Result<Self, PolicyError> {
        Self::default().amended(json)
    }

    /// This policy with the fields of the JSON object `json` changed.
    pub fn amended(&self, json: &str) -> Result<Self, PolicyError> {
        let changes: Value =
            serde_json::from_str(json).map_err(|e| wrong("policy", e.to_string()))?;
        let Value::Object(changes) = changes else {
            return Err(wrong("policy", "must be a JSON object"));
        };
        let mut policy = self.clone();
        // One field at a time, so that the error can name it: serde's own message does not.
        for (field, value) in changes {
            let mut whole = policy.to_value();
            if let Value::Object(fields) = &mut whole {
                fields.insert(field.clone(), value);
            }
            policy = serde_json::from_value(whole).map_err(|e| wrong(&field, e.to_string()))?;
        }
        policy.validate()?;
        Ok(policy)
    }

    /// The policy as one JSON object with every field.
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    fn to_value(&self) -> Value {
        // A struct of numbers and unit enums always has a JSON form.
        serde_json::to_value(self).unwrap_or(Value::Null)
    }

    /// Checks what the types cannot.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let at_least = |field: &str, value: f64, least: f64| {
            if value.is_finite() && value >= least {
                Ok(())
            } else {
                Err(wrong(
                    field,
                    format!("{value} is not a number of at least {least}"),
                ))
            }
        };
        if !(1..=32).contains(&self.priority_levels) {
            return Err(wrong(
                "priority_levels",
                format!("{} is not within 1 to 32", self.priority_levels),
            ));
        }
        if self.preempt_levels == 0 {
            return Err(wrong(
                "preempt_levels",
                "must be at least 1: equals must not preempt each other",
            ));
        }
        if self.max_attempts == 0 {
            return Err(wrong("max_attempts", "must be at least 1"));
        }
        if self.idle_ttl_ms == 0 {
            return Err(wrong("idle_ttl_ms", "must be at least 1"));
        }
        at_least("prior_mean_tokens", self.prior_mean_tokens, 1.0)?;
        at_least("prior_sigma", self.prior_sigma, 0.0)?;
        at_least("prior_weight", self.prior_weight, 0.0)?;
        at_least("move_margin", self.move_margin, 1.0)?;
        at_least("balance_rel_threshold", self.balance_rel_threshold, 1.0)?;
        at_least("kv_headroom", self.kv_headroom, 0.0)?;
        at_least("level_margin", self.level_margin, 1.0)?;
        at_least("kv_growth_share", self.kv_growth_share, 0.0)?;
        at_least("recompute_weight", self.recompute_weight, 0.0)?;
        at_least("gather_weight", self.gather_weight, 0.0)?;
        at_least("wait_share", self.wait_share, 0.0)?;
        at_least("cache_threshold", self.cache_threshold, 0.0)?;
        for (field, share) in [
            ("kv_headroom", self.kv_headroom),
            ("kv_growth_share", self.kv_growth_share),
            ("cache_threshold", self.cache_threshold),
        ] {
            if share > 1.0 {
                return Err(wrong(field, format!("{share} is not a share of at most 1")));
            }
        }
        if self.kv_headroom == 0.0 {
            return Err(wrong("kv_headroom", "must be above 0"));
        }
        if self.prior_sigma > 5.0 {
            return Err(wrong(
                "prior_sigma",
                format!("{} is above 5", self.prior_sigma),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_json_changes_only_what_it_names() {
        let policy = Policy::from_json(r#"{"order": "fcfs", "backlog": 3}"#).unwrap();
        assert_eq!(
            policy,
            Policy {
                order: OrderKind::Fcfs,
                backlog: 3,
                ..Policy::default()
            }
        );
        assert_eq!(Policy::from_json(&policy.to_json()).unwrap(), policy);
    }

    #[test]
    fn errors_start_with_the_field() {
        for (json, field, hint) in [
            (r#"{"ordr": "fcfs"}"#, "ordr", "unknown field"),
            (r#"{"order": "lifo"}"#, "order", "`longest_first`"),
            (r#"{"placement": 3}"#, "placement", "invalid type"),
            (r#"{"priority_levels": 33}"#, "priority_levels", "1 to 32"),
            (r#"{"move_margin": 0.5}"#, "move_margin", "at least 1"),
            (r#"{"kv_headroom": 0}"#, "kv_headroom", "above 0"),
            ("[]", "policy", "object"),
            ("{", "policy", "EOF"),
        ] {
            let error = Policy::from_json(json).unwrap_err();
            assert_eq!(error.field, field, "{error}");
            assert!(error.why.contains(hint), "{error}");
        }
    }
}
