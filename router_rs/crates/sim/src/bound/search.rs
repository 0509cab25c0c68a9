//! Looking for the best of prices that are all good.

/// Sections that a peak is narrowed down by, to a hundredth of what was searched.
const STEPS: usize = 12;

/// Where in 0 to 1 a function with one peak has it, by golden sections.
pub(super) fn highest(of: impl Fn(f64) -> f64) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let (mut low, mut high) = (0.0, 1.0);
    let (mut left, mut right) = (1.0 - GOLDEN, GOLDEN);
    let (mut at_left, mut at_right) = (of(left), of(right));
    for _ in 0..STEPS {
        if at_left < at_right {
            (low, left, at_left) = (left, right, at_right);
            right = low + GOLDEN * (high - low);
            at_right = of(right);
        } else {
            (high, right, at_right) = (right, left, at_left);
            left = high - GOLDEN * (high - low);
            at_left = of(left);
        }
    }
    [low, high, left, right]
        .into_iter()
        .map(|at| (of(at), at))
        .fold((f64::NEG_INFINITY, 0.0), |best, one| {
            if one.0 > best.0 { one } else { best }
        })
        .1
}
