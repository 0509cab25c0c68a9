//! Predicted lengths to priority levels.
//!
//! Levels are logarithmic in tokens, not shares of the current ranking: an engine compares requests that were sent at
//! different times (SGLang also keeps the priority with the cached prefix), so a level must mean the same tomorrow.

/// Tokens up to which a step has the lowest level.
const LOWEST_LOG2: f64 = 4.0;
/// Octaves that the levels divide: 2^4 to 2^20 tokens.
const OCTAVES: f64 = 16.0;

/// Level of a remaining length among `levels` (1 to 32): higher means longer.
pub fn level_of(remaining: u64, levels: u8) -> u8 {
    let octave = (remaining.max(1) as f64).log2() - LOWEST_LOG2;
    let level = (octave / OCTAVES * f64::from(levels)).floor();
    level.clamp(0.0, f64::from(levels.saturating_sub(1))) as u8
}

/// The number that the engine gets for a level, higher first.
pub fn engine_priority(level: u8, spacing: u32) -> i64 {
    i64::from(level) * i64::from(spacing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_grow_with_length_and_stay_within_bounds() {
        let mut last = 0;
        for log2 in 0..40 {
            let level = level_of(1 << log2, 32);
            assert!(level >= last && level < 32);
            last = level;
        }
        assert_eq!(
            (
                level_of(0, 32),
                level_of(u64::MAX, 32),
                level_of(u64::MAX, 1)
            ),
            (0, 31, 0)
        );
    }

    #[test]
    fn four_levels_of_thirty_two_are_a_factor_of_four() {
        assert_eq!(level_of(4096, 32) - level_of(1024, 32), 4);
        assert_eq!(engine_priority(3, 16), 48);
    }
}
