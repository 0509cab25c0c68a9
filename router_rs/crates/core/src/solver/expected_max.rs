//! How long the longest of uncertain trajectories is.
//!
//! The largest of k estimates is not the expectation of the largest: with k trajectories of mean L
//! and spread σ that is L + σ e(k), e(k) being the expected maximum of k standard normals. For a
//! ranked group of different means and spreads we take
//!
//! > max over members i of `L_i + σ_i e(r_i)`
//!
//! where `r_i` is the member's place in the group rounded down to a power of two: the `r_i` longest
//! are each at least as long as member i on average, so their maximum is expected to exceed its
//! mean by about `σ_i e(r_i)`. Equal means and spreads give e(k) itself. It grows with every
//! member, mean and spread, and never falls when a member joins at either end: places only grow.

/// Expected maximum of 2^l standard normals, l = 0..=32: the integral of x d(Φ(x)^k), to 1e-6 (a
/// test integrates it again).
const EXPECTED_MAX: [f64; 33] = [
    0.000_000, 0.564_190, 1.029_375, 1.423_600, 1.765_991, 2.069_669, 2.343_733, 2.594_597,
    2.826_863, 3.043_903, 3.248_240, 3.441_799, 3.626_082, 3.802_279, 3.971_351, 4.134_083,
    4.291_129, 4.443_039, 4.590_278, 4.733_248, 4.872_294, 5.007_719, 5.139_788, 5.268_736,
    5.394_773, 5.518_083, 5.638_835, 5.757_180, 5.873_255, 5.987_183, 6.099_080, 6.209_048,
    6.317_183,
];

/// Range maximum over a fixed array in O(log n), 2 n numbers.
struct RangeMax {
    leaves: usize,
    tree: Vec<f64>,
}

impl RangeMax {
    fn new(values: impl ExactSizeIterator<Item = f64>) -> Self {
        let leaves = values.len();
        let mut tree = vec![f64::NEG_INFINITY; leaves];
        tree.extend(values);
        for node in (1..leaves).rev() {
            tree[node] = tree[2 * node].max(tree[2 * node + 1]);
        }
        Self { leaves, tree }
    }

    /// The largest value in `from..to`.
    fn over(&self, from: usize, to: usize) -> f64 {
        let (mut left, mut right) = (from + self.leaves, to + self.leaves);
        let mut best = f64::NEG_INFINITY;
        while left < right {
            if left % 2 == 1 {
                best = best.max(self.tree[left]);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                best = best.max(self.tree[right]);
            }
            left /= 2;
            right /= 2;
        }
        best
    }
}

/// The expected longest of any group of consecutive ranks.
pub(super) struct ExpectedMax<'a> {
    lengths: &'a [f64],
    /// `by_level[l]`: `L_i + σ_i e(2^l)`, for l >= 1; none where every spread is zero.
    by_level: Vec<RangeMax>,
}

impl<'a> ExpectedMax<'a> {
    /// `sigmas` has a value for each length, or none when all are zero.
    pub(super) fn new(lengths: &'a [f64], sigmas: &[f64]) -> Self {
        let levels = if sigmas.is_empty() {
            0
        } else {
            lengths.len().ilog2() as usize
        };
        let by_level = (1..=levels)
            .map(|level| {
                RangeMax::new(
                    lengths
                        .iter()
                        .zip(sigmas)
                        .map(|(length, sigma)| length + sigma * EXPECTED_MAX[level]),
                )
            })
            .collect();
        Self { lengths, by_level }
    }

    /// Expected length of the longest of ranks `head..tail` (not empty), tokens.
    pub(super) fn of(&self, head: usize, tail: usize) -> f64 {
        let mut longest = self.lengths[head];
        for (level, maxima) in (1..).zip(&self.by_level) {
            let from = head + (1 << level) - 1;
            if from >= tail {
                break;
            }
            longest = longest.max(maxima.over(from, tail));
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Φ by its series around 0 and continued integration elsewhere would do; erfc by Numerical
    /// Recipes' rational form is to 1e-7.
    fn phi(x: f64) -> f64 {
        let z = x.abs() / std::f64::consts::SQRT_2;
        let t = 1.0 / (1.0 + 0.5 * z);
        let poly = [
            -1.265_512_23,
            1.000_023_68,
            0.374_091_96,
            0.096_784_18,
            -0.186_288_06,
            0.278_868_07,
            -1.135_203_98,
            1.488_515_87,
            -0.822_152_23,
            0.170_872_77,
        ];
        let exponent = poly.iter().rev().fold(0.0, |sum, c| sum * t + c) - z * z;
        let upper = 0.5 * t * exponent.exp();
        if x > 0.0 { 1.0 - upper } else { upper }
    }

    #[test]
    fn the_table_is_the_expected_maximum_of_normals() {
        for (level, &tabled) in EXPECTED_MAX.iter().enumerate().take(16) {
            let k = f64::from(1u32 << level);
            let step = 1e-3;
            let mut sum = 0.0;
            for i in 0..9000 {
                let x = (f64::from(i) + 0.5) * step;
                sum += step * ((1.0 - phi(x).powf(k)) - phi(-x).powf(k));
            }
            assert!(
                (sum - tabled).abs() < 2e-4,
                "level {level}: {sum} against {tabled}"
            );
        }
        assert!(EXPECTED_MAX.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn equal_uncertain_trajectories_give_the_textbook_value() {
        let lengths = [1000.0; 64];
        let sigmas = [200.0; 64];
        let expected = ExpectedMax::new(&lengths, &sigmas);
        assert!((expected.of(0, 1) - 1000.0).abs() < 1e-9);
        assert!((expected.of(0, 64) - (1000.0 + 200.0 * EXPECTED_MAX[6])).abs() < 1e-9);
    }

    #[test]
    fn a_range_maximum_equals_a_scan_of_the_range() {
        let values = [3.0, -1.0, 7.0, 2.0, 2.5, 9.0, 0.0];
        let maxima = RangeMax::new(values.into_iter());
        for from in 0..values.len() {
            for to in from + 1..=values.len() {
                let scanned = values[from..to]
                    .iter()
                    .copied()
                    .fold(f64::NEG_INFINITY, f64::max);
                assert_eq!(maxima.over(from, to).to_bits(), scanned.to_bits());
            }
        }
    }
}
