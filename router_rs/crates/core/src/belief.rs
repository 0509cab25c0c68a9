//! What the core believes a worker does: time per token by batch, prefill speed.
//!
//! Belief is not truth. The table comes from a profile or from the degree; what is learned on line is one scale on it,
//! so that a slower worker is noticed while the shape of the table (how company slows a token) stays as profiled.

use serde::{Deserialize, Serialize};

/// Cost table of a worker as it is handed in; absent numbers come from the degree.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// Microseconds per token of a sequence that runs alone.
    pub token_us: Option<f64>,
    /// Microseconds that each sequence of the batch adds to every token.
    pub token_us_per_seq: Option<f64>,
    /// Prompt tokens per second.
    pub prefill_tokens_per_s: Option<f64>,
    /// Do not learn a scale.
    pub pinned: bool,
}

impl Profile {
    /// Parses a profile and checks that its numbers are positive; the message names the field.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let profile: Self = serde_json::from_str(json).map_err(|e| format!("profile_json: {e}"))?;
        for (field, value, least) in [
            ("token_us", profile.token_us, 1e-3),
            ("token_us_per_seq", profile.token_us_per_seq, 0.0),
            ("prefill_tokens_per_s", profile.prefill_tokens_per_s, 1.0),
        ] {
            if let Some(value) = value
                && !(value.is_finite() && (least..=1e12).contains(&value))
            {
                return Err(format!(
                    "profile_json: {field}: {value} is not within {least} to 1e12"
                ));
            }
        }
        Ok(profile)
    }
}

/// Weight of a new observation in the learned scale.
const LEARN: f64 = 0.05;
/// Bounds of the learned scale: past them the profile is wrong, not slow.
const SCALE: (f64, f64) = (0.1, 10.0);

/// The cost table in use.
#[derive(Debug, Clone, PartialEq)]
pub struct Belief {
    token_us: f64,
    token_us_per_seq: f64,
    prefill_us: f64,
    scale: f64,
    pinned: bool,
}

impl Belief {
    /// The table of `profile`, completed by what `degree` suggests: an 8B-class model takes about 20 ms a token on one
    /// GPU, a degree of d makes a token d^0.7 times faster (communication eats the rest) and prefill d^0.9 times.
    pub fn new(degree: u32, profile: Option<&Profile>) -> Self {
        let degree = f64::from(degree.max(1));
        let given = profile.cloned().unwrap_or_default();
        Self {
            token_us: given.token_us.unwrap_or(20_000.0 / degree.powf(0.7)),
            token_us_per_seq: given.token_us_per_seq.unwrap_or(200.0 / degree.powf(0.7)),
            prefill_us: 1e6
                / given
                    .prefill_tokens_per_s
                    .unwrap_or(8_000.0 * degree.powf(0.9)),
            scale: 1.0,
            pinned: given.pinned,
        }
    }

    /// Microseconds per token of one sequence in a batch of `batch`.
    pub fn token_us(&self, batch: f64) -> f64 {
        self.scale * (self.token_us + self.token_us_per_seq * batch)
    }

    /// Microseconds to prefill `tokens` that are not cached.
    pub fn prefill_us(&self, tokens: u64) -> f64 {
        self.scale * self.prefill_us * tokens as f64
    }

    /// Tokens per microsecond of a batch of `batch`.
    pub fn throughput(&self, batch: f64) -> f64 {
        batch / self.token_us(batch)
    }

    /// The learned scale; above 1 means slower than profiled.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Keeps what was learned about the old table when the same worker reports a new one.
    pub fn inherit(&mut self, old: &Self) {
        if !self.pinned && (self.token_us, self.prefill_us) == (old.token_us, old.prefill_us) {
            self.scale = old.scale;
        }
    }

    /// Learns from work that took `actual_us` where the table says `believed_us`.
    pub fn observe(&mut self, actual_us: f64, believed_us: f64) {
        if self.pinned || !(believed_us > 0.0 && actual_us > 0.0) {
            return;
        }
        // One observation may not throw the scale about: a step that sat in the engine's queue looks ten times slower.
        let ratio = (actual_us / believed_us).clamp(0.5, 2.0);
        self.scale = (self.scale * (1.0 + LEARN * (ratio - 1.0))).clamp(SCALE.0, SCALE.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_thirty_percent_off_is_learned() {
        let mut belief = Belief::new(1, None);
        let truth = 1.3 * belief.token_us(8.0) * 500.0;
        for _ in 0..200 {
            let believed = belief.token_us(8.0) * 500.0;
            belief.observe(truth, believed);
        }
        assert!((belief.scale() - 1.3).abs() < 0.01, "{}", belief.scale());
    }

    #[test]
    fn a_pinned_profile_is_not_learned_over() {
        let profile = Profile::from_json(r#"{"token_us": 10, "pinned": true}"#).unwrap();
        let mut belief = Belief::new(4, Some(&profile));
        belief.observe(100.0, 1.0);
        assert!((belief.scale() - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn bad_profiles_name_the_field() {
        assert!(
            Profile::from_json(r#"{"token_us": -1}"#)
                .unwrap_err()
                .contains("token_us")
        );
        assert!(
            Profile::from_json(r#"{"tokens": 1}"#)
                .unwrap_err()
                .contains("tokens")
        );
    }

    #[test]
    fn higher_degrees_are_faster() {
        let (one, four) = (Belief::new(1, None), Belief::new(4, None));
        assert!(four.token_us(1.0) < one.token_us(1.0));
        assert!(four.prefill_us(1000) < one.prefill_us(1000));
    }
}
