//! Sorting-initialised simulated annealing over the MP degrees (paper §6.2, Algorithm 2): the
//! paper's baseline, kept for comparison and as the way to go should a cost ever not be monotone.
//!
//! The state is a multiset of workers, always sorted by degree, highest first; its energy is the
//! makespan of presorted placement. It starts at random, at a temperature equal to the first
//! makespan; a move redistributes, splits or merges; it stops when the temperature is below a share
//! of the first. Deterministic in the seed.

use super::balance;
use super::cost::{Group, GroupCost, Placed, makespan};
use super::exact::{Search, Settled};
use super::lattice::Stock;
use super::prng::SplitMix64;

/// The temperature schedule. The paper gives none; these take the makespan to within a few per cent
/// of the optimum on its grid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cooling {
    /// The temperature is multiplied by this after each round of moves.
    pub factor: f64,
    /// Stop below this share of the first temperature (the paper's ε).
    pub floor: f64,
    /// Moves tried at each temperature.
    pub moves: u32,
}

impl Default for Cooling {
    fn default() -> Self {
        Self {
            factor: 0.97,
            floor: 1e-4,
            moves: 4,
        }
    }
}

/// The best plan found; groups in rank order. Fixed workers leave nothing to anneal: presorted
/// placement of them.
pub(super) fn solve<C: GroupCost>(
    cost: &C,
    stock: &Stock,
    degrees: &[u32],
    seed: u64,
    cooling: Cooling,
) -> Option<Placed> {
    let (order, groups) = match stock {
        Stock::Gpus { free, .. } => anneal(cost, *free, degrees, seed, cooling)?,
        Stock::Workers(counts) => {
            let order: Vec<usize> = counts
                .iter()
                .enumerate()
                .flat_map(|(shape, &count)| std::iter::repeat_n(shape, count))
                .collect();
            let groups = place(cost, &order)?;
            (order, groups)
        }
        Stock::Sequence(order) => (order.clone(), place(cost, order)?),
    };
    Some(balance::in_order(cost, &order, &groups))
}

/// Presorted placement on workers in this order. The parametric search gives the DP's optimum (a
/// test holds them equal), faster.
fn place<C: GroupCost>(cost: &C, order: &[usize]) -> Option<Vec<Group>> {
    Search::new(cost, &Stock::Sequence(order.to_vec()), &Settled::default()).optimum(None)
}

fn anneal<C: GroupCost>(
    cost: &C,
    gpus: usize,
    degrees: &[u32],
    seed: u64,
    cooling: Cooling,
) -> Option<(Vec<usize>, Vec<Group>)> {
    let mut random = SplitMix64::new(seed);
    let shapes = Shapes { degrees };
    let mut order = Vec::new();
    shapes.fill(gpus, &mut order, &mut random);
    order.sort_unstable();
    // The random start may lack the one degree that holds the longest trajectory; the highest
    // degrees then do.
    let mut placed = place(cost, &order);
    if placed.is_none() {
        order.clear();
        shapes.fill_highest(gpus, &mut order);
        placed = place(cost, &order);
    }
    let mut groups = placed?;
    let mut energy = makespan(cost, &groups);
    let (mut best, mut best_energy) = ((order.clone(), groups.clone()), energy);
    let first = energy;
    let mut temperature = first;
    while temperature > cooling.floor * first {
        for _ in 0..cooling.moves {
            let mut candidate = order.clone();
            shapes.step(&mut candidate, gpus, &mut random);
            candidate.sort_unstable();
            let Some(placed) = place(cost, &candidate) else {
                continue;
            };
            let seconds = makespan(cost, &placed);
            let accept =
                seconds <= energy || random.unit() < ((energy - seconds) / temperature).exp();
            if accept {
                (order, groups, energy) = (candidate, placed, seconds);
                if energy < best_energy {
                    (best, best_energy) = ((order.clone(), groups.clone()), energy);
                }
            }
        }
        temperature *= cooling.factor;
    }
    Some(best)
}

/// Moves between multisets of workers. Shapes are indices into `degrees`, which descends.
struct Shapes<'a> {
    degrees: &'a [u32],
}

impl Shapes<'_> {
    fn degree(&self, shape: usize) -> usize {
        self.degrees[shape] as usize
    }

    /// Builds workers of random degrees until no degree fits into `gpus`.
    fn fill(&self, mut gpus: usize, order: &mut Vec<usize>, random: &mut SplitMix64) {
        loop {
            let first = (0..self.degrees.len()).find(|&shape| self.degree(shape) <= gpus);
            let Some(first) = first else { return };
            let shape = first + random.below(self.degrees.len() - first);
            gpus -= self.degree(shape);
            order.push(shape);
        }
    }

    /// Builds workers of the highest degree that fits until none does.
    fn fill_highest(&self, mut gpus: usize, order: &mut Vec<usize>) {
        for shape in 0..self.degrees.len() {
            while self.degree(shape) <= gpus {
                gpus -= self.degree(shape);
                order.push(shape);
            }
        }
    }

    /// One random move: redistribute (two workers' GPUs over random new ones), split (one worker
    /// into smaller ones) or merge (smaller ones into a larger).
    fn step(&self, order: &mut Vec<usize>, gpus: usize, random: &mut SplitMix64) {
        match random.below(3) {
            0 => self.redistribute(order, random),
            1 => self.split(order, random),
            _ => self.merge(order, random),
        }
        let used: usize = order.iter().map(|&shape| self.degree(shape)).sum();
        self.fill_highest(gpus - used, order);
    }

    fn redistribute(&self, order: &mut Vec<usize>, random: &mut SplitMix64) {
        let mut freed = 0;
        for _ in 0..2.min(order.len()) {
            freed += self.degree(order.swap_remove(random.below(order.len())));
        }
        self.fill(freed, order, random);
    }

    fn split(&self, order: &mut Vec<usize>, random: &mut SplitMix64) {
        let at = random.below(order.len());
        let shape = order[at];
        if shape + 1 == self.degrees.len() {
            return;
        }
        order.swap_remove(at);
        let part = shape + 1 + random.below(self.degrees.len() - shape - 1);
        order.extend(std::iter::repeat_n(
            part,
            self.degree(shape) / self.degree(part),
        ));
    }

    fn merge(&self, order: &mut Vec<usize>, random: &mut SplitMix64) {
        let target = random.below(self.degrees.len());
        let mut freed = 0;
        while freed < self.degree(target) {
            let smaller: Vec<usize> = (0..order.len()).filter(|&at| order[at] > target).collect();
            if smaller.is_empty() {
                break;
            }
            freed += self.degree(order.swap_remove(smaller[random.below(smaller.len())]));
        }
        if freed >= self.degree(target) {
            order.push(target);
            freed -= self.degree(target);
        }
        self.fill_highest(freed, order);
    }
}
