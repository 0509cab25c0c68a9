//! What may still be built: the workers' side of the search as a small acyclic graph.
//!
//! A state says what was used so far, an edge builds one more worker of some shape (or leaves a GPU
//! idle). Three kinds of stock give three graphs: GPUs to be shared out, a fixed multiset of
//! workers in any order, a fixed sequence of workers.

use super::SolveError;

/// A multiset of workers is searched in every order while states x workers is at most this (about a
/// quarter of a second); beyond it, in the paper's order, highest degree first.
const ANY_ORDER_LIMIT: u64 = 1 << 18;

/// Workers that may still be built.
#[derive(Debug, Clone)]
pub(super) enum Stock {
    /// GPUs, shared out among shapes of these degrees.
    Gpus {
        /// GPUs left.
        free: usize,
        /// GPUs a worker of each shape takes.
        degrees: Vec<usize>,
    },
    /// So many workers of each shape, in any order.
    Workers(Vec<usize>),
    /// Workers of these shapes, in this order.
    Sequence(Vec<usize>),
}

impl Stock {
    /// `workers` empty: `gpus` to share out among `degrees`; else those workers. `degrees` descends
    /// and holds every worker's.
    pub(super) fn new(gpus: u32, degrees: &[u32], workers: &[u32]) -> Result<Self, SolveError> {
        if workers.is_empty() {
            return Ok(Self::Gpus {
                free: gpus as usize,
                degrees: degrees.iter().map(|&degree| degree as usize).collect(),
            });
        }
        let sum = workers.iter().map(|&degree| u64::from(degree)).sum();
        if sum > u64::from(gpus) {
            return Err(SolveError::WorkersExceedGpus { sum, gpus });
        }
        let counts: Vec<usize> = degrees
            .iter()
            .map(|degree| workers.iter().filter(|worker| *worker == degree).count())
            .collect();
        let states = counts.iter().fold(1u64, |states, &count| {
            states.saturating_mul(count as u64 + 1)
        });
        Ok(
            if states.saturating_mul(workers.len() as u64) <= ANY_ORDER_LIMIT {
                Self::Workers(counts)
            } else {
                let in_order = |(shape, &count): (usize, &usize)| std::iter::repeat_n(shape, count);
                Self::Sequence(counts.iter().enumerate().flat_map(in_order).collect())
            },
        )
    }

    /// Whether a worker of this shape can be built.
    pub(super) fn has(&self, shape: usize) -> bool {
        match self {
            Self::Gpus { free, degrees } => degrees[shape] <= *free,
            Self::Workers(counts) => counts[shape] > 0,
            Self::Sequence(shapes) => shapes.contains(&shape),
        }
    }

    /// Takes one worker of this shape out; it must be there.
    pub(super) fn take(&mut self, shape: usize) {
        match self {
            Self::Gpus { free, degrees } => *free -= degrees[shape],
            Self::Workers(counts) => counts[shape] -= 1,
            Self::Sequence(shapes) => {
                let at = shapes.iter().position(|&other| other == shape);
                debug_assert!(at.is_some(), "shape {shape} is not in the sequence");
                if let Some(at) = at {
                    shapes.remove(at);
                }
            }
        }
    }

    /// The degrees of the workers still there, highest first. GPUs that build no worker are none.
    pub(super) fn left_over(&self, degrees: &[u32]) -> Vec<u32> {
        let mut left: Vec<u32> = match self {
            Self::Gpus { .. } => Vec::new(),
            Self::Workers(counts) => counts
                .iter()
                .zip(degrees)
                .flat_map(|(&count, &degree)| std::iter::repeat_n(degree, count))
                .collect(),
            Self::Sequence(shapes) => shapes.iter().map(|&shape| degrees[shape]).collect(),
        };
        left.sort_unstable_by(|a, b| b.cmp(a));
        left
    }
}

/// How one state is entered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge {
    /// State it comes from; smaller than the state it leads to.
    pub from: u32,
    /// Shape of the worker built, or `None` for a GPU left idle.
    pub shape: Option<u32>,
}

/// States 0 (nothing built) to the last (all used), edges by the state they lead to.
pub(super) struct Lattice {
    edges: Vec<Edge>,
    ends: Vec<u32>,
}

impl Lattice {
    pub(super) fn new(stock: &Stock) -> Self {
        let mut lattice = Self {
            edges: Vec::new(),
            ends: vec![0],
        };
        match stock {
            Stock::Gpus { free, degrees } => {
                for used in 1..=*free {
                    lattice.edge(used - 1, None);
                    for (shape, &degree) in degrees.iter().enumerate() {
                        if degree <= used {
                            lattice.edge(used - degree, Some(shape));
                        }
                    }
                    lattice.close_state();
                }
            }
            Stock::Workers(counts) => {
                // Mixed radix: digit s counts the workers of shape s used.
                let mut strides = Vec::with_capacity(counts.len());
                let mut states = 1;
                for &count in counts {
                    strides.push(states);
                    states *= count + 1;
                }
                for state in 1..states {
                    for (shape, &stride) in strides.iter().enumerate() {
                        if state / stride % (counts[shape] + 1) > 0 {
                            lattice.edge(state - stride, Some(shape));
                        }
                    }
                    lattice.close_state();
                }
            }
            Stock::Sequence(shapes) => {
                for (position, &shape) in shapes.iter().enumerate() {
                    lattice.edge(position, Some(shape));
                    lattice.close_state();
                }
            }
        }
        lattice
    }

    fn edge(&mut self, from: usize, shape: Option<usize>) {
        self.edges.push(Edge {
            from: from as u32,
            shape: shape.map(|shape| shape as u32),
        });
    }

    fn close_state(&mut self) {
        self.ends.push(self.edges.len() as u32);
    }

    /// Number of states.
    pub(super) fn states(&self) -> usize {
        self.ends.len()
    }

    /// Edges into `state` (>= 1).
    pub(super) fn edges_into(&self, state: usize) -> &[Edge] {
        &self.edges[self.ends[state - 1] as usize..self.ends[state] as usize]
    }
}
