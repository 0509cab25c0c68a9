//! Who runs next on a worker: one file a variant, one table.

mod fcfs;
mod longest_first;
mod round_robin;
mod shortest_first;

use serde::{Deserialize, Serialize};

/// The variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderKind {
    /// Steps by arrival.
    Fcfs,
    /// Trajectories take turns.
    RoundRobin,
    /// Least attained service first (Autellix).
    ShortestFirst,
    /// Longest predicted remaining length first (Heddle).
    LongestFirst,
}

impl OrderKind {
    /// The variant behind the name.
    pub const fn variant(self) -> &'static dyn Order {
        match self {
            Self::Fcfs => &fcfs::Fcfs,
            Self::RoundRobin => &round_robin::RoundRobin,
            Self::ShortestFirst => &shortest_first::ShortestFirst,
            Self::LongestFirst => &longest_first::LongestFirst,
        }
    }
}

/// Place in a queue: the smallest is next. `seq` makes keys of different steps differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderKey {
    /// False sorts first: steps that have waited as long as they may.
    pub in_turn: bool,
    /// The variant's measure.
    pub measure: u64,
    /// Arrival.
    pub seq: u64,
}

/// What an order may look at.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Output tokens of the trajectory's ended steps.
    pub attained: u64,
    /// Turns that the trajectory has had.
    pub turns: u64,
    /// Its expected output tokens still to come.
    pub remaining: u64,
}

/// An order of held steps.
pub trait Order: Sync {
    /// The measure of a step; smaller is sooner, ties go by arrival.
    fn measure(&self, candidate: &Candidate) -> u64;

    /// Priority level for the engine among `levels`, higher first.
    fn level(&self, candidate: &Candidate, levels: u8) -> u8;

    /// A step can be passed by others again and again, so its wait needs a bound.
    fn may_starve(&self) -> bool;

    /// A held step may be sent over the slots to make the engine put a lower one aside.
    fn preempts(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(kind: OrderKind, candidates: &[Candidate]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|&i| (kind.variant().measure(&candidates[i]), i));
        order
    }

    #[test]
    fn each_order_picks_its_own_first() {
        let candidate = |attained, turns, remaining| Candidate {
            attained,
            turns,
            remaining,
        };
        let held = [
            candidate(9_000, 2, 100),
            candidate(100, 9, 50),
            candidate(3_000, 1, 70_000),
        ];
        assert_eq!(sorted(OrderKind::Fcfs, &held), [0, 1, 2]);
        assert_eq!(sorted(OrderKind::RoundRobin, &held), [2, 0, 1]);
        assert_eq!(sorted(OrderKind::ShortestFirst, &held), [1, 2, 0]);
        assert_eq!(sorted(OrderKind::LongestFirst, &held), [2, 0, 1]);
    }

    #[test]
    fn least_attained_service_is_first_come_within_one_queue() {
        let candidate = |attained| Candidate {
            attained,
            turns: 0,
            remaining: 1,
        };
        assert_eq!(
            sorted(OrderKind::ShortestFirst, &[candidate(900), candidate(600)]),
            [0, 1]
        );
    }

    #[test]
    fn overdue_steps_sort_before_all_others() {
        let overdue = OrderKey {
            in_turn: false,
            measure: u64::MAX,
            seq: 9,
        };
        assert!(
            overdue
                < OrderKey {
                    in_turn: true,
                    measure: 0,
                    seq: 0
                }
        );
    }
}
