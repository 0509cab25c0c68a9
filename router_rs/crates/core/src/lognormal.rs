//! The lognormal distribution of lengths, and what is left of it once so much is known to be exceeded.

/// A lognormal length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogNormal {
    /// Mean of the logarithm.
    pub mu: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
}

impl LogNormal {
    /// The lognormal with this mean (of the length itself) and this spread of its logarithm.
    pub fn with_mean(mean: f64, sigma: f64) -> Self {
        Self {
            mu: mean.max(1e-9).ln() - sigma * sigma / 2.0,
            sigma,
        }
    }

    /// `E[X - s | X > s]`.
    ///
    /// With u = (ln s - mu) / sigma the conditional mean is `s * h(u - sigma) / h(u)`, where
    /// `h(x) = erfcx(x / sqrt 2)`: no difference of tiny tail probabilities, so it holds arbitrarily far out.
    pub fn remaining_after(&self, s: f64) -> f64 {
        let mean = (self.mu + self.sigma * self.sigma / 2.0).exp();
        if s <= 0.0 {
            return mean;
        }
        if self.sigma < 1e-6 {
            return (mean - s).max(0.0);
        }
        let u = (s.ln() - self.mu) / self.sigma;
        if u < -4.0 {
            return (mean - s).max(0.0);
        }
        let root = std::f64::consts::SQRT_2;
        let ratio = erfcx((u - self.sigma) / root) / erfcx(u / root);
        (s * (ratio - 1.0)).max(0.0)
    }

    /// `E[min(X, limit)]` for a limit above 0, to 1e-6 of the mean.
    pub fn mean_up_to(&self, limit: f64) -> f64 {
        let mean = (self.mu + self.sigma * self.sigma / 2.0).exp();
        if self.sigma < 1e-6 {
            return mean.min(limit);
        }
        let u = (limit.ln() - self.mu) / self.sigma;
        mean * normal_below(u - self.sigma) + limit * normal_below(-u)
    }
}

/// Share of a standard normal below `x`, to 1e-7 (Abramowitz and Stegun, 7.1.26): placement asks too often for a series.
fn normal_below(x: f64) -> f64 {
    const TERMS: [f64; 5] = [
        0.254_829_592,
        -0.284_496_736,
        1.421_413_741,
        -1.453_152_027,
        1.061_405_429,
    ];
    let z = x.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let sum = TERMS.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    let beyond = sum * (-z * z).exp() / 2.0;
    if x > 0.0 { 1.0 - beyond } else { beyond }
}

/// exp(x²)·erfc(x): series below 2, continued fraction above; relative error below 1e-9 for x > -6.
fn erfcx(x: f64) -> f64 {
    if x < 2.0 {
        // erf(x) = 2/sqrt(pi) * exp(-x²) * sum of 2^k x^(2k+1) / (2k+1)!!
        let square = x * x;
        let mut term = x;
        let mut sum = x;
        let mut k = 1.0;
        while term.abs() > 1e-12 * sum.abs() && k < 200.0 {
            term *= 2.0 * square / (2.0 * k + 1.0);
            sum += term;
            k += 1.0;
        }
        square.exp() - std::f64::consts::FRAC_2_SQRT_PI * sum
    } else {
        // erfcx(x) = 1/sqrt(pi) / (x + (1/2)/(x + 1/(x + (3/2)/(x + ...)))), evaluated from the inside.
        let mut tail = x;
        for k in (1..=40).rev() {
            tail = x + f64::from(k) / 2.0 / tail;
        }
        std::f64::consts::FRAC_2_SQRT_PI / 2.0 / tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_complementary_error_function_is_exact_where_it_is_known() {
        for (x, known) in [
            (0.0, 1.0),
            (0.5, 0.615_690_344_2),
            (1.0, 0.427_583_576_2),
            (3.0, 0.179_001_151_2),
        ] {
            assert!((erfcx(x) - known).abs() < 1e-8, "{x}: {}", erfcx(x));
        }
        assert!((erfcx(1.999_999) - erfcx(2.000_001)).abs() < 1e-6);
        assert!((erfcx(-2.0) - 108.940_904_389_9).abs() < 1e-6);
        assert!((erfcx(50.0) * 50.0 * std::f64::consts::PI.sqrt() - 1.0).abs() < 1e-3);
    }

    #[test]
    fn remaining_after_agrees_with_numerical_integration() {
        let length = LogNormal {
            mu: 7.0,
            sigma: 1.0,
        };
        for s in [1.0, 100.0, 1000.0, 5000.0, 40_000.0] {
            let (mut mass, mut moment) = (0.0, 0.0);
            let steps = 200_000;
            for i in 0..steps {
                let z = -9.0 + 18.0 * (f64::from(i) + 0.5) / f64::from(steps);
                let x = (length.mu + length.sigma * z).exp();
                if x > s {
                    let density = (-z * z / 2.0).exp();
                    mass += density;
                    moment += density * (x - s);
                }
            }
            let expected = moment / mass;
            let got = length.remaining_after(s);
            assert!(
                (got / expected - 1.0).abs() < 2e-3,
                "s={s}: {got} against {expected}"
            );
        }
    }

    #[test]
    fn remaining_stays_finite_and_grows_far_past_what_was_expected() {
        let length = LogNormal {
            mu: 6.0,
            sigma: 0.5,
        };
        let mut last = 0.0;
        for s in [2_000.0, 20_000.0, 2e6, 2e9] {
            let remaining = length.remaining_after(s);
            assert!(
                remaining.is_finite() && remaining > last,
                "s={s}: {remaining}"
            );
            last = remaining;
        }
    }

    #[test]
    fn the_mean_up_to_a_limit_agrees_with_numerical_integration() {
        for sigma in [0.3, 1.0, 2.0] {
            let length = LogNormal { mu: 1.0, sigma };
            for limit in [1e-3, 0.5, 2.7, 20.0, 1e6] {
                let steps = 200_000;
                let sum: f64 = (0..steps)
                    .map(|i| {
                        let z = -12.0 + 24.0 * (f64::from(i) + 0.5) / f64::from(steps);
                        (length.mu + sigma * z).exp().min(limit) * (-z * z / 2.0).exp()
                    })
                    .sum();
                let known = sum * 24.0 / f64::from(steps) / std::f64::consts::TAU.sqrt();
                let got = length.mean_up_to(limit);
                assert!(
                    (got - known).abs() < 1e-5 * known.max(limit.min(1.0)),
                    "{got} {known}"
                );
            }
        }
        let fixed = LogNormal::with_mean(3.0, 0.0);
        assert!((fixed.mean_up_to(2.0) - 2.0).abs() < 1e-12);
        assert!((fixed.mean_up_to(5.0) - 3.0).abs() < 1e-12);
    }
}
