//! Reads `LightGBM`'s text format (version 4; `src/boosting/gbdt_model_text.cpp` and `src/io/tree.cpp` there).

use std::collections::HashMap;
use std::str::FromStr;

use crate::forest::{Forest, Node, Tree};

/// A model's text that cannot be read, or a model of another kind.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {field}: {problem}")]
pub struct ModelError {
    /// `model`, or `tree` and its number.
    place: String,
    /// As the text names it.
    field: &'static str,
    problem: String,
}

// Bits of `decision_type`.
const CATEGORICAL: u8 = 1;
const DEFAULT_LEFT: u8 = 2;
const MISSING_BITS: u8 = 2;
const MISSING_IS_ZERO: u8 = 1;
const MISSING_IS_NAN: u8 = 2;

impl FromStr for Forest {
    type Err = ModelError;

    /// From what `LightGBM`'s `save_model` or `model_to_string` wrote.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        let (body, ended) = match text.split_once("\nend of trees") {
            Some((body, _)) => (body, true),
            None => (text, false),
        };
        let mut sections = body.split("\nTree=");
        let model = Section::read("model".to_owned(), sections.next().unwrap_or_default());
        for (field, wanted) in [
            ("version", "v4"),
            ("num_class", "1"),
            ("num_tree_per_iteration", "1"),
            ("objective", "regression"),
        ] {
            model.must_be(field, wanted)?;
        }
        if model.has("average_output") {
            return Err(model.wrong("average_output", "averaged trees are not read"));
        }
        let mut forest = Self {
            features: model.one::<u16>("max_feature_idx")? as usize + 1,
            trees: Vec::new(),
            nodes: Vec::new(),
            values: Vec::new(),
        };
        for (number, section) in sections.enumerate() {
            forest.plant(&Section::read(format!("tree {number}"), section))?;
        }
        let announced = model.text("tree_sizes")?.split_ascii_whitespace().count();
        let found = forest.trees.len();
        if found == 0 || found != announced {
            return Err(model.wrong(
                "tree_sizes",
                format!("{found} of {announced} trees are there"),
            ));
        }
        if !ended {
            return Err(model.wrong("end of trees", "is missing"));
        }
        Ok(forest)
    }
}

impl Forest {
    /// Adds a tree, its nodes from the root down, siblings side by side.
    fn plant(&mut self, tree: &Section<'_>) -> Result<(), ModelError> {
        tree.must_be("num_cat", "0")?;
        tree.must_be("is_linear", "0")?;
        let leaves: usize = tree.one("num_leaves")?;
        let values: Vec<f64> = tree.list("leaf_value", leaves)?;
        let splits = Splits::read(tree, leaves, self.features)?;

        let root = self.nodes.len();
        let most = root + (2 * leaves).saturating_sub(1);
        // Child 0 is the root; a tree of one leaf has no split, and its leaf is ~0.
        let mut waiting = vec![(root, if leaves > 1 { 0 } else { !0 }, 0)];
        let mut depth = 0;
        self.grow_to(root + 1);
        while let Some((place, child, level)) = waiting.pop() {
            depth = depth.max(level);
            if child < 0 {
                let leaf = usize::try_from(!child).unwrap_or(usize::MAX);
                let value = values.get(leaf).filter(|value| value.is_finite());
                self.values[place] = *value.ok_or_else(|| {
                    tree.wrong(
                        "leaf_value",
                        format!("there is no finite one of leaf {leaf}"),
                    )
                })?;
                self.nodes[place] = Node::leaf(index(place));
                continue;
            }
            let split = usize::try_from(child).unwrap_or(usize::MAX);
            let first_child = self.nodes.len();
            // More nodes than a tree of so many leaves has: some are reached twice.
            if first_child + 2 > most {
                return Err(tree.wrong("left_child", "nodes form no tree"));
            }
            self.grow_to(first_child + 2);
            self.nodes[place] = splits.node(split, index(first_child));
            for (place, child) in [
                (first_child, splits.left[split]),
                (first_child + 1, splits.right[split]),
            ] {
                waiting.push((place, child, level + 1));
            }
        }
        self.trees.push(Tree {
            root: index(root),
            depth,
        });
        Ok(())
    }

    fn grow_to(&mut self, nodes: usize) {
        self.nodes.resize(nodes, Node::leaf(0));
        self.values.resize(nodes, 0.0);
    }
}

/// Places of nodes: a forest whose text fits into memory has fewer than 2^32.
fn index(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// The splits of one tree, each list of the same length. A child below 0 is the leaf of that complement.
struct Splits {
    features: Vec<u32>,
    thresholds: Vec<f64>,
    unknown_left: Vec<bool>,
    left: Vec<i32>,
    right: Vec<i32>,
}

impl Splits {
    fn read(tree: &Section<'_>, leaves: usize, features: usize) -> Result<Self, ModelError> {
        let count = leaves.saturating_sub(1);
        let splits = Self {
            features: tree.list("split_feature", count)?,
            thresholds: tree.list("threshold", count)?,
            unknown_left: Vec::new(),
            left: tree.list("left_child", count)?,
            right: tree.list("right_child", count)?,
        };
        if splits
            .features
            .iter()
            .any(|feature| *feature as usize >= features)
        {
            return Err(tree.wrong("split_feature", format!("not all are below {features}")));
        }
        if splits.thresholds.iter().any(|threshold| threshold.is_nan()) {
            return Err(tree.wrong("threshold", "is not a number"));
        }
        for (field, children) in [("left_child", &splits.left), ("right_child", &splits.right)] {
            // A split is numbered after the one it hangs on: following children comes to an end.
            let fits = |(split, child): (usize, &i32)| {
                usize::try_from(*child).map_or_else(
                    |_| usize::try_from(!child).is_ok_and(|leaf| leaf < leaves),
                    |child| split < child && child < count,
                )
            };
            if !children.iter().enumerate().all(fits) {
                return Err(tree.wrong(field, "leads to no later split and to no leaf"));
            }
        }
        let kinds: Vec<u8> = tree.list("decision_type", count)?;
        let unknown_left = kinds
            .iter()
            .zip(&splits.thresholds)
            .map(|(kind, threshold)| {
                match (kind & CATEGORICAL, kind >> MISSING_BITS) {
                    (0, MISSING_IS_NAN) => Ok(kind & DEFAULT_LEFT != 0),
                    (0, 0) => Ok(0.0 <= *threshold), // no value was missing in training: NaN is taken as 0
                    (0, MISSING_IS_ZERO) => Err("zero as a missing value is not read"),
                    _ => Err("categories are not read"),
                }
            });
        let unknown_left: Result<Vec<bool>, &str> = unknown_left.collect();
        let unknown_left = unknown_left.map_err(|problem| tree.wrong("decision_type", problem))?;
        Ok(Self {
            unknown_left,
            ..splits
        })
    }

    fn node(&self, split: usize, first_child: u32) -> Node {
        Node {
            threshold: self.thresholds[split],
            feature: self.features[split],
            first_child,
            unknown_left: self.unknown_left[split],
        }
    }
}

/// `name=value` lines of the model or of a tree.
struct Section<'a> {
    place: String,
    fields: HashMap<&'a str, &'a str>,
}

impl<'a> Section<'a> {
    fn read(place: String, text: &'a str) -> Self {
        let fields = text
            .lines()
            .map(|line| line.split_once('=').unwrap_or((line, "")))
            .collect();
        Self { place, fields }
    }

    fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    fn text(&self, field: &'static str) -> Result<&'a str, ModelError> {
        let text = self.fields.get(field).copied();
        text.ok_or_else(|| self.wrong(field, "is missing"))
    }

    fn must_be(&self, field: &'static str, wanted: &str) -> Result<(), ModelError> {
        match self.text(field)? {
            found if found == wanted => Ok(()),
            found => Err(self.wrong(field, format!("must be {wanted}, not {found:?}"))),
        }
    }

    fn one<T: FromStr>(&self, field: &'static str) -> Result<T, ModelError> {
        let text = self.text(field)?;
        text.parse()
            .map_err(|_| self.wrong(field, format!("cannot be {text:?}")))
    }

    /// Exactly `count` values; a field without any may be left out.
    fn list<T: FromStr>(&self, field: &'static str, count: usize) -> Result<Vec<T>, ModelError> {
        let words = self.fields.get(field).copied().unwrap_or_default();
        let found: Result<Vec<T>, _> = words.split_ascii_whitespace().map(str::parse).collect();
        match found {
            Ok(found) if found.len() == count => Ok(found),
            Ok(found) => {
                let found = found.len();
                Err(self.wrong(field, format!("has {found} values, not {count}")))
            }
            Err(_) => Err(self.wrong(field, "holds what is not a number of its kind")),
        }
    }

    fn wrong(&self, field: &'static str, problem: impl Into<String>) -> ModelError {
        ModelError {
            place: self.place.clone(),
            field,
            problem: problem.into(),
        }
    }
}
