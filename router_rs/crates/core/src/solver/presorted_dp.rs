//! Presorted dynamic programming (paper §5.2, Lemma 5.1): workers by MP degree, highest first, take
//! consecutive ranks.
//!
//! `dp[j][i] = min over k of max(dp[j-1][k], cost_j(k..i))`. For a fixed i the first term rises
//! with k and the second falls, so the minimum is at their crossing; the crossing moves right with
//! i. One pointer a row: O(n m) evaluations instead of O(n² m).
//!
//! Most of the table cannot matter: with an upper bound U on the optimum, row j needs only the i
//! that the first j workers reach within U and from which the others finish within U. A few greedy
//! sweeps give a U within a per cent, and windows as narrow.
//!
//! The paper also aggregates short trajectories to shrink n. Beside such windows that saves nothing
//! (`benches/solver.rs`); it is kept as an option.

use super::balance;
use super::cost::{GroupCost, Placed, makespan};
use super::exact::{Search, Settled};
use super::lattice::Stock;

/// How far above the least bound not known to be infeasible U may be. Narrower costs more sweeps
/// than it saves.
const SLACK: f64 = 1.01;

/// Workers in a fixed order over ranks that may be cut at some places only.
struct Line<'a, C> {
    cost: &'a C,
    order: &'a [usize],
    /// Ascending, from 0 to the number of ranks; positions below are indices into it.
    cuts: &'a [usize],
}

impl<C: GroupCost> Line<'_, C> {
    fn cost(&self, shape: usize, from: usize, to: usize) -> f64 {
        self.cost.cost(shape, self.cuts[from], self.cuts[to])
    }

    fn end(&self) -> usize {
        self.cuts.len() - 1
    }

    /// The furthest positions that 0, 1, 2.. workers reach within `bound`.
    fn furthest(&self, bound: f64) -> Vec<usize> {
        let mut reached = vec![0];
        for &shape in self.order {
            let from = reached[reached.len() - 1];
            let (mut fits, mut fails) = (from, self.end() + 1);
            while fails - fits > 1 {
                let middle = fits + (fails - fits) / 2;
                if self.cost(shape, from, middle) <= bound {
                    fits = middle;
                } else {
                    fails = middle;
                }
            }
            reached.push(fits);
        }
        reached
    }

    /// The nearest positions from which the last m, m - 1 .. 0 workers finish within `bound`, in
    /// the order of `furthest`.
    fn nearest(&self, bound: f64) -> Vec<usize> {
        let mut needed = vec![self.end()];
        for &shape in self.order.iter().rev() {
            let to = needed[needed.len() - 1];
            let (mut holds, mut low) = (to, 0);
            while low < holds {
                let middle = low + (holds - low) / 2;
                if self.cost(shape, middle, to) <= bound {
                    holds = middle;
                } else {
                    low = middle + 1;
                }
            }
            needed.push(holds);
        }
        needed.reverse();
        needed
    }

    /// A bound within which all ranks are placed, at most `SLACK` above one within which they are
    /// not; infinite if there is none.
    fn upper_bound(&self) -> f64 {
        let feasible = |bound| self.furthest(bound)[self.order.len()] == self.end();
        if !feasible(f64::MAX) {
            return f64::INFINITY;
        }
        let whole = |&shape: &usize| self.cost(shape, 0, self.end());
        let alone = |&shape: &usize| self.cost(shape, 0, 1);
        let mut high = self
            .order
            .iter()
            .map(whole)
            .fold(f64::INFINITY, f64::min)
            .min(f64::MAX);
        let mut low = self.order.iter().map(alone).fold(f64::INFINITY, f64::min);
        if feasible(low) {
            return low;
        }
        while high > SLACK * low {
            let middle = if low > 0.0 {
                low.sqrt() * high.sqrt()
            } else {
                high / 2.0
            };
            if middle <= low || middle >= high {
                break;
            }
            if feasible(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    /// The least makespan: the last entry of the table.
    fn optimum(&self) -> f64 {
        let upper = self.upper_bound();
        if upper.is_infinite() {
            return upper;
        }
        let (furthest, nearest) = (self.furthest(upper), self.nearest(upper));
        // Row j over its window nearest[j]..=furthest[j]; row 0 is the single state "nothing
        // placed".
        let mut row = vec![0.0];
        let mut window_from = 0;
        for (j, &shape) in (1..).zip(self.order) {
            let last = window_from + row.len() - 1;
            let mut k = window_from;
            let mut next = Vec::with_capacity(furthest[j] + 1 - nearest[j]);
            for i in nearest[j]..=furthest[j] {
                // First k whose left side costs at least its right side, or the last of the window
                // or i itself.
                let mut here = self.cost(shape, k, i.max(k));
                let mut before = f64::INFINITY;
                while k < last.min(i) && row[k - window_from] < here {
                    before = here;
                    k += 1;
                    here = self.cost(shape, k, i);
                }
                if before.is_infinite() && k > window_from {
                    before = self.cost(shape, k - 1, i);
                }
                next.push(row[k - window_from].max(here).min(before));
            }
            row = next;
            window_from = nearest[j];
        }
        row[self.end() - window_from]
    }
}

/// The plan of fixed workers, or of the best homogeneous MP degree when the stock is GPUs; groups
/// in rank order.
pub(super) fn solve<C: GroupCost>(cost: &C, stock: &Stock, cuts: &[usize]) -> Option<Placed> {
    let orders: Vec<Vec<usize>> = match stock {
        Stock::Gpus { free, degrees } => degrees
            .iter()
            .enumerate()
            .map(|(shape, degree)| vec![shape; (free / degree).min(cost.ranks())])
            .filter(|order| !order.is_empty())
            .collect(),
        Stock::Workers(counts) => {
            vec![
                counts
                    .iter()
                    .enumerate()
                    .flat_map(|(shape, &count)| std::iter::repeat_n(shape, count))
                    .collect(),
            ]
        }
        Stock::Sequence(order) => vec![order.clone()],
    };
    let best = orders
        .into_iter()
        .map(|order| {
            (
                Line {
                    cost,
                    order: &order,
                    cuts,
                }
                .optimum(),
                order,
            )
        })
        .min_by(|(a, _), (b, _)| a.total_cmp(b))
        .filter(|(seconds, _)| seconds.is_finite())?;
    let (seconds, order) = best;
    let groups =
        Search::new(cost, &Stock::Sequence(order.clone()), &Settled::default()).within(seconds)?;
    debug_assert!(makespan(cost, &groups) <= seconds);
    Some(balance::in_order(cost, &order, &groups))
}
