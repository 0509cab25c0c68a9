//! Finished trajectories of the same prompt: the strongest sign of a length before the first step.

/// A finished trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sibling {
    /// Tokens it generated.
    pub output_tokens: i64,
    /// Steps it took.
    pub steps: i64,
}

/// Finished trajectories of one prompt, and what they have in common whoever looks at them.
#[derive(Clone, Debug)]
pub struct Siblings {
    all: Vec<Sibling>,
    mean: f64,
    spread: f64,
    longest: f64,
    moments: (f64, f64, f64),
}

impl Siblings {
    /// Of those, oldest first.
    pub fn new(all: Vec<Sibling>) -> Self {
        let logs: Vec<f64> = all
            .iter()
            .map(|one| (one.output_tokens.max(1) as f64).ln())
            .collect();
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let squares: f64 = logs.iter().map(|log| (log - mean) * (log - mean)).sum();
        Self {
            mean,
            spread: if logs.len() > 1 {
                (squares / count).sqrt()
            } else {
                f64::NAN
            },
            longest: logs.iter().copied().fold(f64::NAN, f64::max),
            moments: moments_of(&logs),
            all,
        }
    }

    /// Oldest first.
    pub fn all(&self) -> &[Sibling] {
        &self.all
    }

    /// Count, mean and squared deviations of the logarithms of their lengths.
    pub fn log_moments(&self) -> (f64, f64, f64) {
        self.moments
    }

    /// What they tell a trajectory that has come so far, in the order of their `names`; NaN where none tells.
    ///
    /// What is left is the mean over siblings that got further than this trajectory is; where none did, half
    /// of the tokens it is past the longest is taken as left.
    pub fn numbers(&self, done_tokens: i64, done_steps: i64, row: &mut Vec<f64>) {
        if self.all.is_empty() {
            row.push(0.0);
            row.extend([f64::NAN; 6]);
            return;
        }
        let further = Beyond::of(self.all.iter().map(|one| one.output_tokens), done_tokens);
        let steps = Beyond::of(self.all.iter().map(|one| one.steps), done_steps);
        let left = further
            .mean()
            .unwrap_or_else(|| (done_tokens as f64 - self.longest.exp()) / 2.0);
        row.extend([
            self.all.len() as f64,
            self.mean,
            self.spread,
            self.longest,
            further.count / self.all.len() as f64,
            left.max(0.0).ln_1p(),
            steps.mean().unwrap_or(0.0),
        ]);
    }
}

/// By how much values exceed a bound, those that do.
struct Beyond {
    count: f64,
    total: i64,
}

impl Beyond {
    fn of(values: impl Iterator<Item = i64>, bound: i64) -> Self {
        let mut found = Self {
            count: 0.0,
            total: 0,
        };
        for value in values.filter(|value| *value > bound) {
            found.count += 1.0;
            found.total = found.total.saturating_add(value.saturating_sub(bound));
        }
        found
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.total as f64 / self.count)
    }
}

/// By Welford's way.
fn moments_of(values: &[f64]) -> (f64, f64, f64) {
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        count += 1.0;
        let step = value - mean;
        mean += step / count;
        squares += step * (value - mean);
    }
    (count, mean, squares)
}
