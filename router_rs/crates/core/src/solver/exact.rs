//! The exact joint allocation by parametric search.
//!
//! For a bound C let f(s) be the most ranks, longest first, that the workers of lattice state s
//! finish within C: f(s) = max over edges (r, shape) into s of reach(shape, f(r), C). C is feasible
//! if some f(s) is all ranks. A group's cost depends on its longest member and falls when members
//! leave, so being further along is never worse and the greedy reach is exact; for `size_only`
//! consecutive groups are optimal among all set partitions (exchange argument of paper Lemma 5.1:
//! keep the sizes, order the groups by their longest member, and no group's longest member grows).
//!
//! The search keeps an interval: no plan is below `low`, a plan in hand costs `high`. A feasible C
//! lowers `high` to the cost of its plan; an infeasible one raises `low` to the smallest cost that
//! blocked it (nothing changes below that). So it ends at the exact optimum in floating point,
//! after about log2 of the number of candidate costs sweeps of states x shapes x log(group).

use super::balance;
use super::cost::{Group, GroupCost, Placed, makespan};
use super::lattice::{Edge, Lattice, Stock};

/// Ranks already settled, as disjoint ascending intervals that a group may neither contain nor
/// cross.
#[derive(Debug, Clone, Default)]
pub(super) struct Settled(Vec<(usize, usize)>);

impl Settled {
    /// Marks `head..tail` (open so far) as settled. Neighbours are merged.
    pub(super) fn insert(&mut self, head: usize, tail: usize) {
        if head == tail {
            return;
        }
        let at = self.0.partition_point(|&(start, _)| start < head);
        self.0.insert(at, (head, tail));
        if at + 1 < self.0.len() && self.0[at + 1].0 == tail {
            self.0[at].1 = self.0.remove(at + 1).1;
        }
        if at > 0 && self.0[at - 1].1 == head {
            self.0[at - 1].1 = self.0.remove(at).1;
        }
    }

    /// The first open rank at or after `rank`.
    fn skip(&self, rank: usize) -> usize {
        let at = self.0.partition_point(|&(start, _)| start <= rank);
        if at > 0 && self.0[at - 1].1 > rank {
            self.0[at - 1].1
        } else {
            rank
        }
    }

    /// Where the open run that holds `rank` ends.
    fn run_end(&self, rank: usize, ranks: usize) -> usize {
        let at = self.0.partition_point(|&(start, _)| start <= rank);
        self.0.get(at).map_or(ranks, |&(start, _)| start)
    }
}

/// How a state was best entered.
#[derive(Clone, Copy)]
struct Entry {
    from: u32,
    shape: Option<u32>,
    /// One past the last rank of the worker built.
    tail: usize,
}

impl Entry {
    fn is(&self, edge: &Edge) -> bool {
        self.from == edge.from && self.shape == edge.shape
    }
}

/// One problem: which ranks are open, which workers may be built, what groups cost. Scratch space
/// is kept between sweeps.
pub(super) struct Search<'a, C> {
    cost: &'a C,
    lattice: Lattice,
    settled: &'a Settled,
    reached: Vec<usize>,
    entered: Vec<Entry>,
}

/// What one sweep at a bound found.
enum Swept {
    /// All ranks are reached at this state.
    Feasible(usize),
    /// Not; and nothing changes for any bound below this cost.
    Blocked(f64),
}

impl<'a, C: GroupCost> Search<'a, C> {
    pub(super) fn new(cost: &'a C, stock: &Stock, settled: &'a Settled) -> Self {
        let lattice = Lattice::new(stock);
        let states = lattice.states();
        Self {
            cost,
            lattice,
            settled,
            reached: vec![0; states],
            entered: vec![
                Entry {
                    from: 0,
                    shape: None,
                    tail: 0
                };
                states
            ],
        }
    }

    /// The first open rank; the number of ranks when none is open.
    fn start(&self) -> usize {
        self.settled.skip(0)
    }

    fn sweep(&mut self, bound: f64) -> Swept {
        let ranks = self.cost.ranks();
        let mut blocked = f64::INFINITY;
        self.reached[0] = self.start();
        if self.reached[0] == ranks {
            return Swept::Feasible(0);
        }
        for state in 1..self.lattice.states() {
            let edges = self.lattice.edges_into(state);
            let last = self.entered[state];
            let mut best: Option<(usize, Entry)> = None;
            // The edge that won in the last sweep first: most others then take one evaluation to
            // rule out.
            for edge in edges
                .iter()
                .filter(|edge| last.is(edge))
                .chain(edges.iter().filter(|edge| !last.is(edge)))
            {
                let head = self.reached[edge.from as usize];
                let (tail, position) = match edge.shape {
                    None => (head, head),
                    Some(shape) => {
                        let shape = shape as usize;
                        let limit = self.settled.run_end(head, ranks);
                        if let Some((furthest, _)) = best
                            && furthest >= head
                        {
                            if furthest >= limit && furthest >= self.settled.skip(limit) {
                                continue;
                            }
                            let further = self.cost.cost(shape, head, limit.min(furthest + 1));
                            if further > bound {
                                blocked = blocked.min(further);
                                continue;
                            }
                        }
                        let tail = self.cost.reach(shape, head, limit, bound, last.tail);
                        if tail < limit {
                            blocked = blocked.min(self.cost.cost(shape, head, tail + 1));
                            (tail, tail)
                        } else {
                            (tail, self.settled.skip(tail))
                        }
                    }
                };
                if best.is_none_or(|(furthest, _)| position > furthest) {
                    best = Some((
                        position,
                        Entry {
                            from: edge.from,
                            shape: edge.shape,
                            tail,
                        },
                    ));
                }
            }
            let Some((furthest, entry)) = best else {
                continue;
            };
            self.reached[state] = furthest;
            self.entered[state] = entry;
            if furthest == ranks {
                return Swept::Feasible(state);
            }
        }
        Swept::Blocked(blocked)
    }

    fn groups(&self, mut state: usize) -> Vec<Group> {
        let mut groups = Vec::new();
        while state > 0 {
            let entry = self.entered[state];
            let head = self.reached[entry.from as usize];
            if let Some(shape) = entry.shape
                && entry.tail > head
            {
                groups.push(Group {
                    shape: shape as usize,
                    head,
                    tail: entry.tail,
                });
            }
            state = entry.from as usize;
        }
        groups.reverse();
        groups
    }

    /// The groups within `bound`, if there are.
    pub(super) fn within(&mut self, bound: f64) -> Option<Vec<Group>> {
        match self.sweep(bound) {
            Swept::Feasible(state) => Some(self.groups(state)),
            Swept::Blocked(_) => None,
        }
    }

    /// Groups of the least makespan, in rank order. `known`: a plan of this problem to start from.
    /// `None`: every plan is infinite.
    pub(super) fn optimum(&mut self, known: Option<Vec<Group>>) -> Option<Vec<Group>> {
        let start = self.start();
        if start == self.cost.ranks() {
            return Some(Vec::new());
        }
        let mut groups = match known {
            Some(groups) => groups,
            None => self.within(f64::MAX)?,
        };
        let mut high = makespan(self.cost, &groups);
        let alone = |shape| self.cost.cost(shape, start, start + 1);
        let mut low = (0..self.cost.shapes())
            .map(alone)
            .fold(f64::INFINITY, f64::min)
            .min(high);
        // The longest alone on the fastest worker is the optimum so often that it is tried first.
        let mut bound = low;
        while low < high {
            match self.sweep(bound) {
                Swept::Feasible(state) => {
                    groups = self.groups(state);
                    high = makespan(self.cost, &groups);
                }
                Swept::Blocked(blocked) => low = blocked.min(high),
            }
            bound = between(low, high);
        }
        Some(groups)
    }
}

/// A bound in `low..high` to try next: halves the interval on a logarithmic scale while it is wide,
/// then on a linear one, and tries `low` itself once few candidates can be left.
fn between(low: f64, high: f64) -> f64 {
    if low > 0.0 && high > 4.0 * low {
        return (low * high).sqrt();
    }
    let middle = low + (high - low) / 2.0;
    if high - low <= 1e-9 * high || middle >= high {
        low
    } else {
        middle
    }
}

/// The optimal plan, balanced; groups in rank order. `None`: some trajectory fits no worker.
pub(super) fn solve<C: GroupCost>(cost: &C, stock: Stock) -> Option<Placed> {
    let first = Search::new(cost, &stock, &Settled::default()).optimum(None)?;
    Some(balance::lexicographic(cost, stock, first))
}
