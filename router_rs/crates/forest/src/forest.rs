//! Trees as flat arrays. Siblings lie side by side and a leaf leads to itself, so that every row of a tree
//! takes the same number of steps and none of them is a branch to be guessed.

/// Rows whose values stay in the nearest cache while all trees look at them.
const BLOCK: usize = 32;
/// Rows that go down a tree together: their loads do not wait for each other.
const LANES: usize = 8;

/// A split: to `first_child` where the value is at most `threshold`, else to the node after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) threshold: f64,
    pub(crate) feature: u32,
    pub(crate) first_child: u32,
    /// Where a value that is not known goes.
    pub(crate) unknown_left: bool,
}

impl Node {
    /// Leads to itself, whatever the value.
    pub(crate) fn leaf(place: u32) -> Self {
        Self {
            threshold: f64::INFINITY,
            feature: 0,
            first_child: place,
            unknown_left: true,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    pub(crate) root: u32,
    /// Steps from the root to its farthest leaf.
    pub(crate) depth: u32,
}

/// A sum of regression trees.
#[derive(Clone, Debug)]
pub struct Forest {
    pub(crate) features: usize,
    pub(crate) trees: Vec<Tree>,
    pub(crate) nodes: Vec<Node>,
    /// What each node adds when a row ends there; 0 for splits.
    pub(crate) values: Vec<f64>,
}

/// Numbers that are not whole rows of a forest.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("rows: {numbers} numbers are not rows of {features} features")]
pub struct RowsError {
    numbers: usize,
    features: usize,
}

impl Forest {
    /// Numbers in a row.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Trees that are summed.
    pub fn trees(&self) -> usize {
        self.trees.len()
    }

    /// The forest's value for each row. `rows` lie one after another; NaN is a value that is not known.
    pub fn predict(&self, rows: &[f64]) -> Result<Vec<f64>, RowsError> {
        if !rows.len().is_multiple_of(self.features) {
            return Err(RowsError {
                numbers: rows.len(),
                features: self.features,
            });
        }
        let mut sums = vec![0.0; rows.len() / self.features];
        let blocks = rows.chunks(BLOCK * self.features);
        for (block, sums) in blocks.zip(sums.chunks_mut(BLOCK)) {
            for tree in &self.trees {
                let lanes = block.chunks(LANES * self.features);
                for (lanes, sums) in lanes.zip(sums.chunks_mut(LANES)) {
                    self.add(*tree, lanes, sums);
                }
            }
        }
        Ok(sums)
    }

    fn add(&self, tree: Tree, rows: &[f64], sums: &mut [f64]) {
        let mut at = [tree.root; LANES];
        for _ in 0..tree.depth {
            for (row, at) in rows.chunks_exact(self.features).zip(&mut at) {
                let node = &self.nodes[*at as usize];
                let value = row[node.feature as usize];
                let left = (value <= node.threshold) | (value.is_nan() & node.unknown_left);
                *at = node.first_child + u32::from(!left);
            }
        }
        for (sum, at) in sums.iter_mut().zip(at) {
            *sum += self.values[at as usize];
        }
    }
}
