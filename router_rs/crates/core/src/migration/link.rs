//! What is known of a worker's transfers: the rate it announced, how much slower it turned out, and whether to trust it.
//!
//! A worker whose transfers fail, or whose moved KV is not found by the next step, is left alone for a while that doubles
//! with each fault: moving without effect costs the cluster its network and gains nothing.

use crate::Micros;
use crate::event::LinkSpec;
use crate::worker::Worker;

/// First pause after a fault.
const PAUSE_FIRST: Micros = 2_000_000;
/// Longest pause.
const PAUSE_MOST: Micros = 300_000_000;
/// Weight of a new observation in the learned slowness.
const LEARN: f64 = 0.25;
/// Bounds of the learned slowness. Wide, because an emulated worker may run fifty times faster than real time.
const SLOWNESS: (f64, f64) = (1e-3, 1e3);

/// A worker's link.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    tokens_per_us: f64,
    setup_us: f64,
    /// Transfers take so many times as long as announced.
    slowness: f64,
    paused_until: Micros,
    pause: Micros,
}

impl Link {
    /// The link that a worker announces.
    pub fn new(spec: &LinkSpec) -> Self {
        Self {
            tokens_per_us: spec.tokens_per_s / 1e6,
            setup_us: spec.setup_us as f64,
            slowness: 1.0,
            paused_until: 0,
            pause: 0,
        }
    }

    /// Keeps what was learned when the same worker announces itself anew.
    #[must_use]
    pub fn inherit(mut self, old: Option<&Self>) -> Self {
        if let Some(old) = old {
            self.slowness = old.slowness;
            self.pause = old.pause;
            self.paused_until = old.paused_until;
        }
        self
    }

    /// Microseconds from the first to the last token over this link alone.
    fn us(&self, tokens: u64) -> f64 {
        self.slowness * (self.setup_us + tokens as f64 / self.tokens_per_us)
    }

    /// True while its last transfers give no reason for a pause.
    pub fn is_trusted(&self, now: Micros) -> bool {
        now >= self.paused_until
    }

    /// A transfer failed, or moved nothing that was found.
    pub fn fault(&mut self, now: Micros) {
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MOST);
        self.paused_until = now + self.pause;
    }

    /// What was moved was found.
    pub fn clear(&mut self) {
        self.pause = 0;
        self.paused_until = 0;
    }

    /// Learns from a transfer that took `actual_us` where `expected_us` was expected.
    fn observe(&mut self, actual_us: f64, expected_us: f64) {
        if actual_us > 0.0 && expected_us > 0.0 {
            let ratio = (actual_us / expected_us).powf(LEARN);
            self.slowness = (self.slowness * ratio).clamp(SLOWNESS.0, SLOWNESS.1);
        }
    }
}

impl Worker {
    /// Microseconds that `tokens` of KV take from here to `target`: the slower of the two links says. None where either
    /// has no link, or they run other weights.
    pub fn transfer_us(&self, target: &Self, tokens: u64) -> Option<f64> {
        let (from, to) = (self.link.as_ref()?, target.link.as_ref()?);
        (self.weights == target.weights).then(|| from.us(tokens).max(to.us(tokens)))
    }

    /// Microseconds that its own link takes for `tokens`.
    pub(super) fn link_us(&self, tokens: u64) -> f64 {
        self.link.as_ref().map_or(0.0, |link| link.us(tokens))
    }

    /// Learns from a transfer that its link held up.
    pub(super) fn learn_transfer(&mut self, tokens: u64, actual_us: f64) {
        let expected = self.link_us(tokens);
        if let Some(link) = &mut self.link {
            link.observe(actual_us, expected);
        }
    }

    /// It may take part in a transfer that nobody insists on.
    pub(super) fn is_linked(&self, now: Micros) -> bool {
        now >= self.suspect_until && self.link.as_ref().is_some_and(|link| link.is_trusted(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        Link::new(&LinkSpec {
            tokens_per_s: 1e6,
            setup_us: 500,
        })
    }

    #[test]
    fn a_link_twice_as_slow_as_announced_is_learned() {
        let mut link = link();
        for _ in 0..40 {
            let expected = link.us(10_000);
            link.observe(2.0 * 10_500.0, expected);
        }
        assert!((link.us(10_000) / 21_000.0 - 1.0).abs() < 0.01, "{link:?}");
    }

    #[test]
    fn pauses_double_and_end_with_the_first_good_transfer() {
        let mut link = link();
        link.fault(0);
        assert!(!link.is_trusted(PAUSE_FIRST - 1) && link.is_trusted(PAUSE_FIRST));
        link.fault(PAUSE_FIRST);
        assert!(!link.is_trusted(2 * PAUSE_FIRST) && link.is_trusted(3 * PAUSE_FIRST));
        link.clear();
        assert!(link.is_trusted(0));
    }
}
