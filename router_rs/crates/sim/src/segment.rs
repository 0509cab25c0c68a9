//! A run of decode steps with an unchanging batch, in closed form.
//!
//! Step k (from 0) takes `first_step + k * growth` seconds: the batch is constant and its context grows by one token a
//! sequence and step. So n steps take `n * first_step + growth * n * (n - 1) / 2`, and how many fit into a time is the
//! root of a quadratic. Nothing is done per token.

/// Started at `start` (seconds); ends by itself after `steps` steps.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// Seconds.
    pub start: f64,
    /// Seconds of its first step.
    pub first_step: f64,
    /// Seconds by which each step is longer than the one before.
    pub growth: f64,
    /// Most steps.
    pub steps: u64,
}

impl Segment {
    /// Seconds that the first `steps` steps take.
    pub fn duration(&self, steps: u64) -> f64 {
        let n = steps as f64;
        n * self.first_step + self.growth * (n * (n - 1.0).max(0.0) / 2.0)
    }

    /// When step number `steps` (from 1) is complete.
    pub fn time_after(&self, steps: u64) -> f64 {
        self.start + self.duration(steps)
    }

    /// Steps complete at `now`; exact against [`Self::time_after`], at most `steps`.
    pub fn steps_by(&self, now: f64) -> u64 {
        let elapsed = now - self.start;
        if elapsed <= 0.0 {
            return 0;
        }
        let guess = if self.growth > 0.0 {
            let half = self.first_step - self.growth / 2.0;
            ((half * half + 2.0 * self.growth * elapsed).sqrt() - half) / self.growth
        } else {
            elapsed / self.first_step
        };
        let mut steps = self.steps.min(guess as u64);
        // The root is rounded; the schedule is defined by time_after, so step to agree with it.
        while steps < self.steps && self.time_after(steps + 1) <= now {
            steps += 1;
        }
        while steps > 0 && self.time_after(steps) > now {
            steps -= 1;
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn steps_by_inverts_time_after(
            start in 0.0..1e5f64, first in 1e-4..0.1f64, growth in prop_oneof![Just(0.0), 1e-9..1e-4f64],
            steps in 1u64..100_000, at in 0u64..100_000,
        ) {
            let segment = Segment { start, first_step: first, growth, steps };
            let at = at.min(steps);
            prop_assert_eq!(segment.steps_by(segment.time_after(at)), at);
            prop_assert_eq!(segment.steps_by(segment.time_after(at) + first / 2.0), at);
        }
    }
}
