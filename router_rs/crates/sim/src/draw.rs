//! Random numbers that belong to a place, not to an order: the draw for (seed, purpose, a, b) is always the same,
//! whatever was drawn before. So two policies meet the same luck.

/// What a draw is for; keeps the draws of different purposes apart.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    /// The lasting part of a predictor's error about a trajectory.
    LastingError,
    /// The part of its error that is new at each step.
    PassingError,
    /// Which other trajectory's length a predictor without any signal names.
    Stranger,
}

/// splitmix64's finaliser: every bit of the input reaches every bit of the output.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// 64 bits for this place.
pub fn bits(seed: u64, purpose: Purpose, a: u64, b: u64) -> u64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut state = mix(seed.wrapping_add(GOLDEN));
    for part in [purpose as u64, a, b] {
        state = mix(state.wrapping_add(GOLDEN) ^ mix(part.wrapping_mul(GOLDEN).wrapping_add(1)));
    }
    state
}

/// Uniform in (0, 1).
pub fn uniform(seed: u64, purpose: Purpose, a: u64, b: u64) -> f64 {
    ((bits(seed, purpose, a, b) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Standard normal, by Box and Muller's transform of two uniforms.
pub fn normal(seed: u64, purpose: Purpose, a: u64, b: u64) -> f64 {
    let radius = (-2.0 * uniform(seed, purpose, a, 2 * b).ln()).sqrt();
    let angle = std::f64::consts::TAU * uniform(seed, purpose, a, 2 * b + 1);
    radius * angle.cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let n = 100_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..n {
            let z = normal(7, Purpose::LastingError, i, 3);
            sum += z;
            squares += z * z;
        }
        let n = n as f64;
        assert!((sum / n).abs() < 0.01, "mean {}", sum / n);
        assert!((squares / n - 1.0).abs() < 0.02, "variance {}", squares / n);
    }

    #[test]
    fn places_differ_and_repeat() {
        let one = bits(1, Purpose::PassingError, 2, 3);
        assert_eq!(one, bits(1, Purpose::PassingError, 2, 3));
        for other in [
            bits(2, Purpose::PassingError, 2, 3),
            bits(1, Purpose::LastingError, 2, 3),
            bits(1, Purpose::PassingError, 3, 2),
        ] {
            assert_ne!(one, other);
        }
    }
}
