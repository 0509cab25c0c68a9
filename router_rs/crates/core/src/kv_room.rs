//! How a worker's KV is given out: what counts as taken, what fits beside it, what is too much.
//!
//! An engine keeps the KV of a trajectory in its tool gap until it needs the room, and evicts what was idle longest. So
//! admission need not count all that is idle as taken: what it gives out twice is computed again by who was away for
//! long. To hold `c` tokens for a time keeps others from decoding for their share of the KV; to compute them again keeps
//! everybody from it. Both are lost throughput, and equal after a gap of the time in which the worker would compute all of
//! its KV, over the share of a decode step that more company would not lengthen. Of the usual gaps, the part up to there
//! is counted. A worker that is large for its contexts holds everything; one that holds a few trajectories, next to
//! nothing.

use crate::Micros;
use crate::lognormal::LogNormal;
use crate::worker::Worker;

/// How KV is given out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvRule {
    /// Share of a worker's KV that is given out.
    pub headroom: f64,
    /// Share of the trajectories in their tool gaps that will come back: the others hold nothing. Near 1 for agents;
    /// near 0 for single requests, each of which looks like a trajectory until it has not come back for long.
    pub return_share: f64,
    /// Share of the KV that trajectories are expected to grow by that is set aside.
    pub growth_share: f64,
    /// KV tokens that a trajectory grows by with each output token.
    pub growth_per_output: f64,
    /// Tool gaps; none until enough were seen, and all that is idle counts.
    pub gaps: Option<Gaps>,
    /// Weight of computing a context again against holding it.
    pub recompute_weight: f64,
}

/// Lengths of tool gaps, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gaps {
    /// Their distribution.
    pub lengths: LogNormal,
    /// After so long a trajectory is dormant and holds nothing.
    pub most_us: f64,
}

impl Worker {
    /// Share of the KV in tool gaps that is worth holding: mean time of a gap until computing again is cheaper, over the
    /// mean time until the trajectory would be dormant.
    fn held_share(&self, rule: &KvRule) -> f64 {
        let Some(gaps) = rule.gaps else {
            return 1.0;
        };
        let alone_us = self.belief.token_us(1.0, 0.0);
        let full_us = self.belief.token_us(1.0, self.kv_tokens as f64);
        let all_again_us = self.belief.prefill_us(self.kv_tokens);
        let even_us = rule.recompute_weight * all_again_us * full_us / alone_us;
        if even_us >= gaps.most_us {
            return 1.0;
        }
        gaps.lengths.mean_up_to(even_us) / gaps.lengths.mean_up_to(gaps.most_us)
    }

    /// KV tokens that count as taken: of trajectories in their steps, and of what is idle the part worth holding of those
    /// that will come back.
    fn counted(&self, rule: &KvRule) -> f64 {
        let live = self.committed() - self.idle + self.incoming;
        let idle = if self.idle > 0 {
            rule.return_share * self.held_share(rule) * self.idle as f64
        } else {
            0.0
        };
        live as f64 + idle
    }

    /// Room for a trajectory that holds `tokens` of KV and has `remaining` output tokens to come, beside the others and
    /// what is set aside for their growth. A worker that nothing is counted on takes anything.
    ///
    /// Growth is a forecast, and may be off by any factor: a predictor that has seen little says more of each trajectory
    /// than the KV holds. So nothing is set aside for it on a worker where no step runs or waits: an idle engine would
    /// keep newcomers out for what nobody computes. What grows all the same is set aside later. And none is taken to grow
    /// beyond the whole KV, whatever is said of it: there it ends.
    pub fn has_room(&self, tokens: u64, remaining: u64, rule: &KvRule) -> bool {
        let counted = self.counted(rule);
        if self.kv_tokens == 0 || counted < 1.0 {
            return true;
        }
        let growth = if self.load() == 0 {
            0.0
        } else {
            let going_on = counted / (self.committed() + self.incoming) as f64;
            let most = (self.kv_tokens as f64 / rule.growth_per_output) as u64;
            let to_come = going_on * self.homed_up_to(most) as f64 + remaining.min(most) as f64;
            rule.growth_share * rule.growth_per_output * to_come
        };
        counted + tokens as f64 + growth <= self.kv_tokens as f64 * rule.headroom
    }

    /// Output tokens to come of those at home here, of each no more than `most`.
    fn homed_up_to(&self, most: u64) -> u64 {
        match self.homed.first() {
            Some(longest) if longest.weight > most => {
                let longer = self.homed.before(0, most);
                self.homed.total_weight() - longer.weight + longer.count as u64 * most
            }
            _ => self.homed.total_weight(),
        }
    }

    /// When a worker at which no step runs or waits takes a trajectory of `tokens` in the place of idle KV that it holds;
    /// none while one runs or waits, or KV is on its way here.
    ///
    /// That KV is held so that it need not be computed again. An engine that has stood idle for as long as that would
    /// take has lost as much as there is to save, and who held it may never come back: from then on it takes anything.
    pub fn gives_way_at(&self, tokens: u64, rule: &KvRule) -> Option<Micros> {
        if self.load() > 0 || self.incoming > 0 {
            return None;
        }
        let over = self.counted(rule) + tokens as f64 - self.kv_tokens as f64 * rule.headroom;
        let displaced = over.clamp(0.0, self.committed() as f64) as u64;
        let wait_us = self.belief.prefill_us(displaced) as Micros;
        Some(self.idle_since.saturating_add(wait_us))
    }

    /// Share of the KV that is in use with `tokens` more; above 1 where they do not fit.
    pub fn fullness_with(&self, tokens: u64, rule: &KvRule) -> f64 {
        (self.counted(rule) + tokens as f64) / self.kv_tokens.max(1) as f64
    }

    /// KV tokens by which what lies here is more than is given out; the engine evicts as much.
    pub fn overflow(&self, rule: &KvRule) -> f64 {
        if self.kv_tokens == 0 {
            return 0.0;
        }
        (self.counted(rule) - self.kv_tokens as f64 * rule.headroom).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::WorkerUp;

    fn held_share(kv_tokens: u64, gaps: Option<Gaps>, recompute_weight: f64) -> f64 {
        let up = WorkerUp {
            worker: 1,
            generation: 1,
            degree: 1,
            slots: 16,
            kv_tokens,
            has_priority: true,
            profile: None,
            link: None,
            weights: 0,
        };
        let rule = KvRule {
            headroom: 1.0,
            return_share: 1.0,
            growth_share: 0.0,
            growth_per_output: 1.0,
            gaps,
            recompute_weight,
        };
        Worker::new(&up, 1).held_share(&rule)
    }

    #[test]
    fn the_more_a_worker_has_to_compute_again_the_more_of_the_gaps_it_holds() {
        let gaps = Some(Gaps {
            lengths: LogNormal::with_mean(1e6, 1.0),
            most_us: 5e6,
        });
        let shares: Vec<f64> = [0, 10_000, 100_000, 1_000_000, 10_000_000]
            .map(|kv_tokens| held_share(kv_tokens, gaps, 0.12))
            .to_vec();
        assert!(shares.is_sorted() && shares[0] < 1e-9, "{shares:?}");
        assert!(shares[1] > 0.01 && shares[1] < 0.2, "{shares:?}");
        assert!((shares[4] - 1.0).abs() < f64::EPSILON, "{shares:?}");
        assert!((held_share(10_000, gaps, 1e3) - 1.0).abs() < f64::EPSILON);
        assert!((held_share(10_000, None, 0.12) - 1.0).abs() < f64::EPSILON);
    }
}
