//! Presorted dynamic programming (paper §5.2, Lemma 5.1): workers by MP degree, highest first, take consecutive ranks.
//!
//! `dp[j][i] = min over k of max(dp[j-1][k], cost_j(k..i))`. For a fixed i the first term rises with k and the second falls, so the
//! minimum is at their crossing; the crossing moves right with i. One pointer a row: O(n m) evaluations instead of O(n² m).

use super::balance;
use super::cost::{GroupCost, Placed, makespan};
use super::exact::{Search, Settled};
use super::lattice::Stock;

/// The least makespan of the workers `order` over ranks cut at `cuts` (ascending from 0 to n).
fn bound<C: GroupCost>(cost: &C, order: &[usize], cuts: &[usize]) -> f64 {
    let mut row: Vec<f64> = cuts.iter().map(|&tail| cost.cost(order[0], 0, tail)).collect();
    let mut next = vec![0.0; row.len()];
    for &shape in &order[1..] {
        let mut k = 0;
        for i in 0..cuts.len() {
            // First k whose left side costs at least its right side; k = i has an empty right side, so it ends there.
            let mut before = f64::INFINITY;
            let mut here = cost.cost(shape, cuts[k], cuts[i]);
            while row[k] < here {
                before = here;
                k += 1;
                here = cost.cost(shape, cuts[k], cuts[i]);
            }
            if before.is_infinite() && k > 0 {
                before = cost.cost(shape, cuts[k - 1], cuts[i]);
            }
            next[i] = row[k].min(before);
        }
        std::mem::swap(&mut row, &mut next);
    }
    row[row.len() - 1]
}

/// The plan of fixed workers, or of the best homogeneous MP degree when the stock is GPUs; groups in rank order.
pub(super) fn solve<C: GroupCost>(cost: &C, stock: &Stock, cuts: &[usize]) -> Option<Placed> {
    let orders: Vec<Vec<usize>> = match stock {
        Stock::Gpus { free, degrees } => degrees
            .iter()
            .enumerate()
            .map(|(shape, degree)| vec![shape; (free / degree).min(cost.ranks())])
            .filter(|order| !order.is_empty())
            .collect(),
        Stock::Workers(counts) => {
            vec![counts.iter().enumerate().flat_map(|(shape, &count)| std::iter::repeat_n(shape, count)).collect()]
        }
        Stock::Sequence(order) => vec![order.clone()],
    };
    let best = orders
        .into_iter()
        .map(|order| (bound(cost, &order, cuts), order))
        .min_by(|(a, _), (b, _)| a.total_cmp(b))
        .filter(|(seconds, _)| seconds.is_finite())?;
    let (seconds, order) = best;
    let groups = Search::new(cost, &Stock::Sequence(order.clone()), &Settled::default()).within(seconds)?;
    debug_assert!(makespan(cost, &groups) <= seconds);
    Some(balance::in_order(cost, &order, &groups))
}
