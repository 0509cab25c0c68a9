//! What a group of consecutive ranks costs on a worker.
//!
//! The solvers rely on two things, property-tested for each implementation: a cost never falls when
//! a member joins the group at either end (`cost(s, h, t) <= cost(s, h, t + 1)` and `cost(s, h + 1,
//! t) <= cost(s, h, t)`), and an empty group costs nothing.

use super::lattice::Stock;

/// Seconds a group takes. `shape` is an index into the allowed degrees, highest degree first; ranks
/// count from 0, longest first.
pub trait GroupCost {
    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// Number of shapes (allowed degrees).
    fn shapes(&self) -> usize;

    /// Seconds for ranks `head..tail`; infinite if the worker cannot run them.
    fn cost(&self, shape: usize, head: usize, tail: usize) -> f64;

    /// The largest tail in `head..=limit` such that `cost(shape, head, tail) <= bound`. `guess`:
    /// where to look first.
    fn reach(&self, shape: usize, head: usize, limit: usize, bound: f64, guess: usize) -> usize {
        // Gallop away from the guess, then bisect: about 2 log2 of its error in evaluations.
        let guess = guess.clamp(head, limit);
        let (mut fits, mut fails) = (head, limit + 1);
        let mut stride = 1;
        if guess == head || self.cost(shape, head, guess) <= bound {
            fits = guess;
            while fits + stride < fails {
                if self.cost(shape, head, fits + stride) > bound {
                    fails = fits + stride;
                    break;
                }
                fits += stride;
                stride *= 2;
            }
        } else {
            fails = guess;
            while fails > head + stride {
                if self.cost(shape, head, fails - stride) <= bound {
                    fits = fails - stride;
                    break;
                }
                fails -= stride;
                stride *= 2;
            }
        }
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.cost(shape, head, middle) <= bound {
                fits = middle;
            } else {
                fails = middle;
            }
        }
        fits
    }
}

/// A worker of this shape takes ranks `head..tail`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Index into the allowed degrees.
    pub shape: usize,
    /// First rank.
    pub head: usize,
    /// One past the last rank.
    pub tail: usize,
}

impl Group {
    /// Seconds this group takes.
    pub fn cost<C: GroupCost>(&self, cost: &C) -> f64 {
        cost.cost(self.shape, self.head, self.tail)
    }
}

/// A solver's result: groups in rank order, and the workers that it left without one.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    /// Groups, ascending by head.
    pub groups: Vec<Group>,
    /// Workers or GPUs not used.
    pub idle: Stock,
}

/// The largest cost of a group; zero for none.
pub fn makespan<C: GroupCost>(cost: &C, groups: &[Group]) -> f64 {
    groups
        .iter()
        .map(|group| group.cost(cost))
        .fold(0.0, f64::max)
}
