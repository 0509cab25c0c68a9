//! What a worker of one MP degree truly does: seconds of a decode step by batch and context, seconds of a prefill.
//!
//! The numbers are a worker profile's (`heddle_contracts.worker_profile.DegreeProfile`); `prefill_fixed_s` and
//! `prefill_pair_s` are those of the emulated worker (`heddle_shim.emulator.timing`), which models launches and the
//! attention of prompt tokens to what stands before them. Invariant: all are finite, steps take time.

use heddle_core::belief::Profile;
use serde::{Deserialize, Serialize};

/// True costs of one degree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Batches at which a decode step is known, rising from 1.
    pub batches: Vec<u32>,
    /// Seconds of a decode step at each of them, context left out.
    pub step_seconds: Vec<f64>,
    /// Seconds that each token of context in the batch adds to a decode step.
    #[serde(default)]
    pub context_token_s: f64,
    /// Seconds of a prefill batch whatever it holds.
    #[serde(default)]
    pub prefill_fixed_s: f64,
    /// Seconds of each uncached prompt token.
    #[serde(default)]
    pub prefill_token_s: f64,
    /// Seconds of each pair of a new prompt token and a token before it.
    #[serde(default)]
    pub prefill_pair_s: f64,
}

/// A decode step of b sequences takes `at_none + slope b` seconds for b from `first` to `last`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Smallest batch.
    pub first: f64,
    /// Largest batch.
    pub last: f64,
    /// Seconds.
    pub at_none: f64,
    /// Seconds a sequence.
    pub slope: f64,
}

impl Costs {
    /// Checks the numbers; the message names the field.
    pub fn validate(&self) -> Result<(), String> {
        if self.batches.first() != Some(&1)
            || self.batches.windows(2).any(|pair| pair[0] >= pair[1])
        {
            return Err("batches: must rise from 1".into());
        }
        if self.step_seconds.len() != self.batches.len() {
            return Err("step_seconds: must have one value for each of batches".into());
        }
        let falls = self.step_seconds.windows(2).any(|pair| pair[0] > pair[1]);
        if falls || !self.step_seconds.iter().all(|s| s.is_finite() && *s > 0.0) {
            return Err("step_seconds: must be finite, above 0 and never fall".into());
        }
        for (field, value) in [
            ("context_token_s", self.context_token_s),
            ("prefill_fixed_s", self.prefill_fixed_s),
            ("prefill_token_s", self.prefill_token_s),
            ("prefill_pair_s", self.prefill_pair_s),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(format!(
                    "{field}: {value} is not a finite number of at least 0"
                ));
            }
        }
        Ok(())
    }

    /// All times multiplied by `factor`: a worker that is slower than its profile.
    #[must_use]
    pub fn slowed(&self, factor: f64) -> Self {
        Self {
            batches: self.batches.clone(),
            step_seconds: self.step_seconds.iter().map(|s| s * factor).collect(),
            context_token_s: self.context_token_s * factor,
            prefill_fixed_s: self.prefill_fixed_s * factor,
            prefill_token_s: self.prefill_token_s * factor,
            prefill_pair_s: self.prefill_pair_s * factor,
        }
    }

    /// Seconds of a decode step of `batch` sequences that together hold `context` tokens: straight lines between the
    /// known batches and on past the last.
    pub fn step_s(&self, batch: usize, context: u64) -> f64 {
        self.batch_s(batch) + context as f64 * self.context_token_s
    }

    fn batch_s(&self, batch: usize) -> f64 {
        let known = self.batches.len();
        if known == 1 {
            return self.step_seconds[0];
        }
        let above = self.batches.partition_point(|&at| (at as usize) < batch);
        let right = above.clamp(1, known - 1);
        let (b0, b1) = (
            f64::from(self.batches[right - 1]),
            f64::from(self.batches[right]),
        );
        let (t0, t1) = (self.step_seconds[right - 1], self.step_seconds[right]);
        t0 + (t1 - t0) / (b1 - b0) * (batch as f64 - b0)
    }

    /// Seconds of one prefill batch of parts, each (new tokens, tokens before them).
    pub fn prefill_s(&self, parts: impl Iterator<Item = (u64, u64)>) -> f64 {
        let (mut tokens, mut pairs) = (0u64, 0.0);
        for (new, before) in parts {
            tokens += new;
            pairs += new as f64 * (before as f64 + new as f64 / 2.0);
        }
        self.prefill_fixed_s + tokens as f64 * self.prefill_token_s + pairs * self.prefill_pair_s
    }

    /// Least seconds of worker time that a generated token takes at any batch up to `slots`, context left out, when `paid_s`
    /// of every step are accounted for elsewhere.
    pub fn least_token_s(&self, slots: u32, paid_s: f64) -> f64 {
        let inner = self.batches.iter().copied().filter(|&batch| batch < slots);
        inner
            .chain([slots])
            .map(|batch| (self.batch_s(batch as usize) - paid_s) / f64::from(batch))
            .fold(f64::INFINITY, f64::min)
    }

    /// The straight lines that a step lies on over batches of 1 to `slots`, context left out.
    pub fn lines(&self, slots: u32) -> impl Iterator<Item = Line> + '_ {
        let last = f64::from(slots.max(1));
        let ends = self.batches.iter().skip(1).map(|&batch| f64::from(batch));
        let inner = ends.take_while(move |&end| end < last);
        let mut first = 1.0;
        inner.chain([last]).map(move |end| {
            let line = self.line(first, end);
            first = end;
            line
        })
    }

    fn line(&self, first: f64, last: f64) -> Line {
        let at_first = self.batch_s(first as usize);
        let slope = if last > first {
            (self.batch_s(last as usize) - at_first) / (last - first)
        } else {
            0.0
        };
        Line {
            first,
            last,
            at_none: at_first - slope * first,
            slope,
        }
    }

    /// What a profile says of this to the core: the line through batch 1 and `slots`.
    pub fn belief(&self, slots: u32) -> Profile {
        let alone = self.batch_s(1);
        let company = f64::from(slots.max(2) - 1);
        let slope = (self.batch_s(slots.max(2) as usize) - alone) / company;
        Profile {
            token_us: Some(1e6 * (alone - slope).max(1e-9)),
            token_us_per_seq: Some(1e6 * slope),
            token_us_per_context_token: Some(1e6 * self.context_token_s),
            prefill_tokens_per_s: (self.prefill_token_s > 0.0).then(|| 1.0 / self.prefill_token_s),
            ..Profile::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        Costs {
            batches: vec![1, 3, 9],
            step_seconds: vec![0.010, 0.012, 0.024],
            context_token_s: 1e-6,
            prefill_fixed_s: 0.5,
            prefill_token_s: 0.001,
            prefill_pair_s: 1e-5,
        }
    }

    #[test]
    fn steps_lie_on_straight_lines_between_and_past_known_batches() {
        let costs = costs();
        for (batch, seconds) in [
            (1, 0.010),
            (2, 0.011),
            (3, 0.012),
            (6, 0.018),
            (9, 0.024),
            (12, 0.030),
        ] {
            assert!((costs.step_s(batch, 0) - seconds).abs() < 1e-12, "{batch}");
        }
        assert!((costs.step_s(1, 1000) - 0.011).abs() < 1e-12);
    }

    #[test]
    fn a_prefill_costs_its_tokens_and_their_pairs() {
        let seconds = costs().prefill_s([(100, 0), (10, 1000)].into_iter());
        let pairs = 100.0 * 50.0 + 10.0 * 1005.0;
        assert!((seconds - (0.5 + 0.110 + pairs * 1e-5)).abs() < 1e-12);
    }

    #[test]
    fn the_least_token_time_is_at_the_best_batch() {
        assert!((costs().least_token_s(9, 0.0) - 0.024 / 9.0).abs() < 1e-12);
        assert!((costs().least_token_s(2, 0.0) - 0.011 / 2.0).abs() < 1e-12);
        // What is left of a step is least for its tokens where it is small.
        assert!((costs().least_token_s(9, 0.0095) - 0.0005).abs() < 1e-12);
    }

    #[test]
    fn lines_lie_on_the_steps_and_end_with_the_slots() {
        let costs = costs();
        for slots in [1, 2, 3, 5, 9, 12] {
            let lines: Vec<Line> = costs.lines(slots).collect();
            assert!((lines.last().unwrap().last - f64::from(slots)).abs() < 1e-12);
            for batch in 1..=slots {
                let at = f64::from(batch);
                let on = lines
                    .iter()
                    .filter(|line| line.first <= at && at <= line.last);
                let found: Vec<f64> = on.map(|line| line.at_none + line.slope * at).collect();
                assert!(!found.is_empty());
                for seconds in found {
                    assert!(
                        (seconds - costs.step_s(batch as usize, 0)).abs() < 1e-12,
                        "{batch} of {slots}"
                    );
                }
            }
        }
    }

    #[test]
    fn wrong_numbers_name_their_field() {
        let falling = Costs {
            step_seconds: vec![0.02, 0.01, 0.03],
            ..costs()
        };
        assert!(falling.validate().unwrap_err().starts_with("step_seconds"));
        let negative = Costs {
            prefill_token_s: -1.0,
            ..costs()
        };
        assert!(
            negative
                .validate()
                .unwrap_err()
                .starts_with("prefill_token_s")
        );
        assert!(costs().validate().is_ok());
    }
}
