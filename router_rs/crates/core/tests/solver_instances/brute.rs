//! The definition of the problem, enumerated: every set partition of the trajectories, every MP
//! degree for every group.
//!
//! Nothing here knows of ranks, bounds or monotone costs. Exponential: at most eight trajectories.

/// Workers that a plan may use.
pub enum Workers<'a> {
    /// Any multiset of `degrees` that sums to at most this.
    Gpus(u32),
    /// At most these, by index into the degrees.
    Counts(&'a [usize]),
}

/// The lexicographically least costs, dearest first, over all plans. `costs[group][shape]`, a group
/// being a bit set of trajectories. `None` if no plan is allowed.
pub fn best_costs(
    n: usize,
    degrees: &[u32],
    costs: &[Vec<f64>],
    workers: &Workers<'_>,
) -> Option<Vec<f64>> {
    let mut best = None;
    let mut blocks = Vec::new();
    partitions(0, n, &mut blocks, &mut |blocks| {
        let mut chosen = Vec::new();
        match workers {
            Workers::Gpus(gpus) => {
                shapes(
                    blocks,
                    costs,
                    &mut chosen,
                    &mut best,
                    gpus,
                    &|left, shape| left.checked_sub(degrees[shape]),
                );
            }
            Workers::Counts(counts) => {
                shapes(
                    blocks,
                    costs,
                    &mut chosen,
                    &mut best,
                    &counts.to_vec(),
                    &|left: &Vec<usize>, shape| {
                        let mut left = left.clone();
                        left[shape] = left[shape].checked_sub(1)?;
                        Some(left)
                    },
                );
            }
        }
    });
    best
}

/// Calls `visit` with every set partition of trajectories `next..n` added to `blocks`.
fn partitions(next: usize, n: usize, blocks: &mut Vec<usize>, visit: &mut impl FnMut(&[usize])) {
    if next == n {
        visit(blocks);
        return;
    }
    for at in 0..blocks.len() {
        blocks[at] |= 1 << next;
        partitions(next + 1, n, blocks, visit);
        blocks[at] &= !(1 << next);
    }
    blocks.push(1 << next);
    partitions(next + 1, n, blocks, visit);
    blocks.pop();
}

/// Tries every shape for every block, as far as `take` allows it.
fn shapes<L>(
    blocks: &[usize],
    costs: &[Vec<f64>],
    chosen: &mut Vec<f64>,
    best: &mut Option<Vec<f64>>,
    left: &L,
    take: &impl Fn(&L, usize) -> Option<L>,
) {
    if chosen.len() == blocks.len() {
        let mut sorted = chosen.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        if best.as_ref().is_none_or(|best| less(&sorted, best)) {
            *best = Some(sorted);
        }
        return;
    }
    let block = blocks[chosen.len()];
    for (shape, &cost) in costs[block].iter().enumerate() {
        if let Some(left) = take(left, shape) {
            chosen.push(cost);
            shapes(blocks, costs, chosen, best, &left, take);
            chosen.pop();
        }
    }
}

/// Lexicographic order of costs, dearest first; a worker without trajectories costs nothing.
fn less(a: &[f64], b: &[f64]) -> bool {
    for at in 0..a.len().max(b.len()) {
        let (x, y) = (
            a.get(at).copied().unwrap_or(0.0),
            b.get(at).copied().unwrap_or(0.0),
        );
        if x.to_bits() != y.to_bits() {
            return x < y;
        }
    }
    false
}
