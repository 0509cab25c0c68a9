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
    /// Microseconds that each token of context in the batch adds to every token.
    pub token_us_per_context_token: Option<f64>,
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
            (
                "token_us_per_context_token",
                profile.token_us_per_context_token,
                0.0,
            ),
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

/// Least weight of a new observation in the learned scale.
const LEARN: f64 = 0.05;
/// Weight of what another worker teaches an idle one.
const HEARSAY: f64 = 0.1;
/// Observations from which on one of them cannot throw the scale about: a step that sat in the engine's queue looks ten
/// times slower than it is.
const SETTLED: u32 = 8;
/// Bounds of the learned scale. Wide, because an emulated worker may run fifty times faster than real time.
const SCALE: (f64, f64) = (1e-4, 1e4);

/// The cost table in use.
#[derive(Debug, Clone, PartialEq)]
pub struct Belief {
    token_us: f64,
    token_us_per_seq: f64,
    token_us_per_context_token: f64,
    prefill_us: f64,
    scale: f64,
    observations: u32,
    pinned: bool,
}

impl Belief {
    /// The table of `profile`, completed by what `degree` suggests.
    ///
    /// The suggestion is the arithmetic of an 8-billion-parameter model in 16 bits on a GPU with 3.35 TB/s: reading the
    /// weights takes 5.2 ms split over the degree, launches and all-reduces 1.3 ms at any degree, a sequence 32 us, a
    /// token of context (144 KiB of KV) 0.06 us; prefill is bound by compute at 28,000 tokens/s.
    pub fn new(degree: u32, profile: Option<&Profile>) -> Self {
        let degree = f64::from(degree.max(1));
        let compute = degree.powf(0.85);
        let given = profile.cloned().unwrap_or_default();
        Self {
            token_us: given.token_us.unwrap_or(1_300.0 + 5_200.0 / degree),
            token_us_per_seq: given.token_us_per_seq.unwrap_or(32.0 / compute),
            token_us_per_context_token: given.token_us_per_context_token.unwrap_or(0.06 / degree),
            prefill_us: 1e6 / given.prefill_tokens_per_s.unwrap_or(28_000.0 * compute),
            scale: 1.0,
            observations: 0,
            pinned: given.pinned,
        }
    }

    /// Microseconds per token of one sequence in a batch of `batch` sequences that hold `context` tokens together.
    pub fn token_us(&self, batch: f64, context: f64) -> f64 {
        let company = self.token_us_per_seq * batch + self.token_us_per_context_token * context;
        self.scale * (self.token_us + company)
    }

    /// Microseconds to prefill `tokens` that are not cached.
    pub fn prefill_us(&self, tokens: u64) -> f64 {
        self.scale * self.prefill_us * tokens as f64
    }

    /// The learned scale; above 1 means slower than profiled.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The worker has been seen at work, or its table is said to be right.
    pub fn is_settled(&self) -> bool {
        self.pinned || self.observations > 0
    }

    /// What others of the fleet taught, until the worker itself is seen at work.
    pub fn assume(&mut self, scale: f64) {
        if !self.is_settled() {
            self.scale = scale;
        }
    }

    /// An idle worker's scale goes towards that of one that was just seen. One that had a slow minute would else be believed
    /// slow for ever, since nothing is sent there that could tell otherwise.
    pub fn hear(&mut self, scale: f64) {
        if !self.pinned {
            self.scale *= (scale / self.scale).powf(HEARSAY);
        }
    }

    /// Keeps what was learned about the old table when the same worker reports a new one.
    pub fn inherit(&mut self, old: &Self) {
        if !self.pinned && (self.token_us, self.prefill_us) == (old.token_us, old.prefill_us) {
            self.scale = old.scale;
            self.observations = old.observations;
        }
    }

    /// Learns from work that took `actual_us` where the table says `believed_us`: the geometric mean of the first
    /// observations, a moving one later.
    pub fn observe(&mut self, actual_us: f64, believed_us: f64) {
        if self.pinned || !(believed_us > 0.0 && actual_us > 0.0) {
            return;
        }
        let mut ratio = actual_us / believed_us;
        if self.observations >= SETTLED {
            ratio = ratio.clamp(0.5, 2.0);
        }
        self.observations = self.observations.saturating_add(1);
        let weight = (1.0 / f64::from(self.observations)).max(LEARN);
        self.scale = (self.scale * ratio.powf(weight)).clamp(SCALE.0, SCALE.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_thirty_percent_off_is_learned() {
        let mut belief = Belief::new(1, None);
        let truth = 1.3 * belief.token_us(8.0, 9_000.0) * 500.0;
        for _ in 0..200 {
            let believed = belief.token_us(8.0, 9_000.0) * 500.0;
            belief.observe(truth, believed);
        }
        assert!((belief.scale() - 1.3).abs() < 0.01, "{}", belief.scale());
    }

    #[test]
    fn a_clock_fifty_times_faster_is_learned_from_few_steps() {
        let mut belief = Belief::new(1, None);
        for _ in 0..5 {
            belief.observe(
                belief.token_us(8.0, 0.0) / belief.scale() / 50.0,
                belief.token_us(8.0, 0.0),
            );
        }
        assert!(
            (belief.scale() * 50.0 - 1.0).abs() < 0.01,
            "{}",
            belief.scale()
        );
        let settled = (0..10).fold(belief, |mut b, _| {
            b.observe(b.token_us(1.0, 0.0), b.token_us(1.0, 0.0));
            b
        });
        let mut shaken = settled.clone();
        shaken.observe(
            settled.token_us(1.0, 0.0) * 1000.0,
            settled.token_us(1.0, 0.0),
        );
        assert!(
            shaken.scale() < settled.scale() * 1.1,
            "one late step is not believed"
        );
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
        assert!(four.token_us(1.0, 0.0) < one.token_us(1.0, 0.0));
        assert!(four.prefill_us(1000) < one.prefill_us(1000));
    }
}
