//! How long a trajectory still is, before and beside a trained predictor.
//!
//! Lengths are taken as lognormal. The distribution of a trajectory is blended from a prior, from all trajectories
//! that ended, and from the ended ones of its group; what it has generated so far conditions it:
//! `E[X - s | X > s]`. The longer it runs past what was expected, the more is still to come: a heavy tail has no
//! "nearly done".

use crate::event::EventError;
pub use crate::lognormal::LogNormal;
use crate::policy::Policy;

/// Trajectories that running statistics look back over.
const MEMORY: f64 = 2048.0;
/// Gaps that must have been seen before they say when a trajectory is dormant.
const GAPS_NEEDED: f64 = 32.0;
/// Shortest time after which a trajectory can be dormant.
const DORMANT_FLOOR_US: f64 = 250_000.0;
/// Spread within a group as a share of the spread of all: siblings share the prompt.
const GROUP_SPREAD: f64 = 0.7;
/// Siblings that the overall mean counts for in a group.
const GROUP_PRIOR: f64 = 1.0;

/// Running mean and variance of logarithms, forgetting what lies far back.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LogStats {
    n: f64,
    mean: f64,
    m2: f64,
}

impl LogStats {
    /// Adds ln(`value`), at least ln 1.
    pub fn add(&mut self, value: f64) {
        if self.n >= MEMORY {
            let keep = (MEMORY - 1.0) / self.n;
            self.n *= keep;
            self.m2 *= keep;
        }
        let x = value.max(1.0).ln();
        self.n += 1.0;
        let delta = x - self.mean;
        self.mean += delta / self.n;
        self.m2 += delta * (x - self.mean);
    }

    /// Takes an earlier value back: the trajectory was not over.
    pub fn take_back(&mut self, value: f64) {
        if self.n < 2.0 {
            *self = Self::default();
            return;
        }
        let x = value.max(1.0).ln();
        let before = (self.mean * self.n - x) / (self.n - 1.0);
        self.m2 = (self.m2 - (x - self.mean) * (x - before)).max(0.0);
        self.mean = before;
        self.n -= 1.0;
    }

    /// Number of values, after forgetting.
    pub fn count(&self) -> f64 {
        self.n
    }
}

/// A predictor's word on a trajectory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Remaining length when it was made.
    pub length: LogNormal,
    /// Tokens the trajectory had generated then.
    pub generated: u64,
    /// Steps the trajectory had ended then.
    pub steps: u32,
}

impl Prediction {
    /// Still in force when the trajectory has ended so many steps.
    pub fn holds_at(&self, steps: u32, policy: &Policy) -> bool {
        steps.saturating_sub(self.steps) < policy.prediction_ttl_steps
    }

    /// Refuses numbers that no predictor can mean; the message names the field.
    pub fn check(mean: f64, sigma: f64) -> Result<(), EventError> {
        let bad = |field, why: &str| {
            Err(EventError::BadField {
                field,
                why: why.to_owned(),
            })
        };
        if !(mean.is_finite() && mean >= 0.0) {
            return bad("mean", "must be a finite number of tokens, at least 0");
        }
        if !(sigma.is_finite() && (0.0..=5.0).contains(&sigma)) {
            return bad(
                "sigma",
                "must be within 0 to 5, the spread of the logarithm",
            );
        }
        Ok(())
    }
}

/// What is known about one trajectory.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Output tokens of its ended steps.
    pub generated: u64,
    /// Its ended steps.
    pub steps: u32,
    /// The last prediction.
    pub prediction: Option<Prediction>,
    /// Its group's ended members.
    pub siblings: Option<&'a LogStats>,
}

/// Statistics over all trajectories of this process.
#[derive(Debug, Clone, Default)]
pub struct Estimator {
    ended: LogStats,
    gaps: LogStats,
    /// What follows from the gaps, which is asked for several times a step.
    usual: Option<UsualGaps>,
    /// Mean growth of the context from one step to the next, in tokens.
    growth: Option<f64>,
    /// Mean output tokens of a step.
    step_tokens: Option<f64>,
    /// Share of its time that a trajectory spends in the engine, from mean step time and mean gap.
    service_us: Option<f64>,
    gap_us: Option<f64>,
    /// Share of the steps that arrived lately that continue a known trajectory.
    continued: Option<f64>,
}

/// Tool gaps, when enough were seen.
#[derive(Debug, Clone, Copy)]
struct UsualGaps {
    lengths: LogNormal,
    /// Two sigmas past the usual gap, in microseconds.
    dormant_after: u64,
}

impl UsualGaps {
    fn of(gaps: &LogStats) -> Self {
        let lengths = LogNormal {
            mu: gaps.mean,
            sigma: (gaps.m2 / gaps.n).sqrt(),
        };
        let after = (lengths.mu + 2.0 * lengths.sigma).exp();
        Self {
            lengths,
            dormant_after: after.max(DORMANT_FLOOR_US) as u64,
        }
    }
}

fn blend(mean: &mut Option<f64>, value: f64) {
    const WEIGHT: f64 = 1.0 / 64.0;
    *mean = Some(mean.map_or(value, |old| old + WEIGHT * (value - old)));
}

impl Estimator {
    /// Expected output tokens still to come, at least 1.
    pub fn remaining(&self, policy: &Policy, of: &Progress<'_>) -> u64 {
        let tokens = match of.prediction {
            Some(p) if p.holds_at(of.steps, policy) => p
                .length
                .remaining_after(of.generated.saturating_sub(p.generated) as f64),
            _ => self
                .length(policy, of.siblings)
                .remaining_after(of.generated as f64),
        };
        // A length past 2^40 tokens is a broken prediction; the bound keeps sums far from overflow.
        tokens.clamp(1.0, (1u64 << 40) as f64).round() as u64
    }

    /// Distribution of a trajectory's whole length before it has done anything.
    fn length(&self, policy: &Policy, siblings: Option<&LogStats>) -> LogNormal {
        let prior = LogNormal::with_mean(policy.prior_mean_tokens, policy.prior_sigma);
        let weight = policy.prior_weight;
        let n = self.ended.n;
        let mu = if n > 0.0 {
            (weight * prior.mu + n * self.ended.mean) / (weight + n)
        } else {
            prior.mu
        };
        let variance = if n > 0.0 {
            let shift = self.ended.mean - mu;
            (weight * prior.sigma.powi(2) + self.ended.m2 + n * shift * shift) / (weight + n)
        } else {
            prior.sigma.powi(2)
        };
        let sigma = variance.sqrt();
        match siblings {
            Some(group) if group.n > 0.0 => LogNormal {
                mu: (GROUP_PRIOR * mu + group.n * group.mean) / (GROUP_PRIOR + group.n),
                sigma: sigma * GROUP_SPREAD,
            },
            _ => LogNormal { mu, sigma },
        }
    }

    /// A trajectory of this length is over, as far as can be told.
    pub fn trajectory_ended(&mut self, tokens: u64) {
        self.ended.add(tokens as f64);
    }

    /// It was not over.
    pub fn trajectory_returned(&mut self, tokens: u64) {
        self.ended.take_back(tokens as f64);
    }

    /// A step arrived, the first of its trajectory or a later one.
    pub fn step_arrived(&mut self, continues: bool) {
        let value = f64::from(u8::from(continues));
        self.continued = Some(
            self.continued
                .map_or(1.0, |old| old + (value - old) / 128.0),
        );
    }

    /// Share of the trajectories in their tool gaps that come back. In the long run as many steps continue a trajectory
    /// as ends of steps are followed by another.
    pub fn return_share(&self) -> f64 {
        self.continued.unwrap_or(1.0)
    }

    /// A tool gap lasted `us`.
    pub fn gap_seen(&mut self, us: u64) {
        self.gaps.add(us as f64);
        self.usual = (self.gaps.n >= GAPS_NEEDED).then(|| UsualGaps::of(&self.gaps));
        blend(&mut self.gap_us, us as f64);
    }

    /// A step took `service_us` from dispatch to end, generated `output` tokens and grew the context by `growth`.
    pub fn step_seen(&mut self, service_us: u64, output: u64, growth: u64) {
        blend(&mut self.service_us, service_us as f64);
        blend(&mut self.step_tokens, output as f64);
        blend(&mut self.growth, growth as f64);
    }

    /// Median length of a tool gap; 0 until enough were seen, so that nothing is taken for hidden in them.
    pub fn usual_gap_us(&self) -> f64 {
        if self.gaps.n < GAPS_NEEDED {
            return 0.0;
        }
        self.gaps.mean.exp()
    }

    /// Lengths of tool gaps in microseconds; none until enough were seen.
    pub fn gap_lengths(&self) -> Option<LogNormal> {
        self.usual.map(|usual| usual.lengths)
    }

    /// Time in the tool gap after which a trajectory does not count as active: two sigmas past the usual gap, at
    /// most `dormant_after_ms` of the policy.
    pub fn dormant_after(&self, policy: &Policy) -> u64 {
        let bound = policy.dormant_after_ms.saturating_mul(1000);
        self.usual
            .map_or(bound, |usual| usual.dormant_after.min(bound))
    }

    /// Tokens by which the context of a trajectory in its step is expected to grow until the step has ended: its answer. No
    /// more than contexts grow by from step to step, so nothing where all trajectories have one step.
    pub fn expected_answer(&self) -> u64 {
        let answer = self.step_tokens.unwrap_or(0.0);
        answer.min(self.growth.unwrap_or(0.0)).round() as u64
    }

    /// Tokens by which a context grows with each output token: its own, and what tools put beside it.
    pub fn growth_per_output(&self) -> f64 {
        match (self.growth, self.step_tokens) {
            (Some(growth), Some(step)) => (growth / step.max(1.0)).clamp(1.0, 64.0),
            _ => 1.0,
        }
    }

    /// Output tokens of a usual step.
    pub fn step_tokens(&self) -> f64 {
        self.step_tokens.unwrap_or(256.0).max(1.0)
    }

    /// Share of its time that an active trajectory spends in an engine, above 0.
    pub fn duty(&self) -> f64 {
        match (self.service_us, self.gap_us) {
            (Some(service), Some(gap)) => (service / (service + gap).max(1.0)).clamp(0.01, 1.0),
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_siblings_outweigh_the_prior() {
        let policy = Policy::default();
        let estimator = Estimator::default();
        let mut siblings = LogStats::default();
        for _ in 0..8 {
            siblings.add(30_000.0);
        }
        let blank = Progress {
            generated: 0,
            steps: 0,
            prediction: None,
            siblings: None,
        };
        let with = estimator.remaining(
            &policy,
            &Progress {
                siblings: Some(&siblings),
                ..blank
            },
        );
        assert!(with > 2 * estimator.remaining(&policy, &blank), "{with}");
        assert!(with > 20_000 && with < 45_000, "{with}");
    }

    #[test]
    fn a_prediction_counts_down_and_runs_out() {
        let policy = Policy {
            prediction_ttl_steps: 2,
            ..Policy::default()
        };
        let estimator = Estimator::default();
        let prediction = Prediction {
            length: LogNormal::with_mean(900.0, 0.0),
            generated: 100,
            steps: 1,
        };
        let at = |generated, steps| {
            let progress = Progress {
                generated,
                steps,
                prediction: Some(prediction),
                siblings: None,
            };
            estimator.remaining(&policy, &progress)
        };
        assert_eq!(at(100, 1), 900);
        assert_eq!(at(600, 2), 400);
        assert_eq!(at(5_000, 2), 1);
        assert!(at(100, 3) > 2_000, "back to the prior after two steps");
    }

    #[test]
    fn what_is_taken_back_leaves_no_trace() {
        let mut stats = LogStats::default();
        stats.add(10.0);
        stats.add(200.0);
        let before = stats;
        stats.add(5_000.0);
        stats.take_back(5_000.0);
        assert!((stats.mean - before.mean).abs() < 1e-9 && (stats.m2 - before.m2).abs() < 1e-9);
    }

    #[test]
    fn usual_gaps_decide_when_a_trajectory_is_dormant() {
        let policy = Policy::default();
        let mut estimator = Estimator::default();
        assert_eq!(estimator.dormant_after(&policy), 60_000_000);
        for i in 0..100u64 {
            estimator.gap_seen(1_000_000 + 20_000 * i);
        }
        let after = estimator.dormant_after(&policy);
        assert!((2_000_000..6_000_000).contains(&after), "{after}");
    }
}
