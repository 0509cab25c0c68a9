//! Any tree that grows by splitting leaves, as text, answers as its own description does.

use heddle_forest::Forest;
use proptest::prelude::*;

const FEATURES: usize = 5;

/// A tree as it grew: each split takes the place of a leaf, as in `LightGBM`.
#[derive(Clone, Debug)]
struct Grown {
    splits: Vec<(usize, f64, u8)>,
    left: Vec<i32>,
    right: Vec<i32>,
    leaves: Vec<f64>,
}

impl Grown {
    fn new(splits: &[(usize, usize, f64, u8)], leaves: &[f64]) -> Self {
        let mut grown = Self {
            splits: Vec::new(),
            left: Vec::new(),
            right: Vec::new(),
            leaves: leaves[..=splits.len()].to_vec(),
        };
        for (split, &(leaf, feature, threshold, kind)) in splits.iter().enumerate() {
            let leaf = !i32::try_from(leaf % (split + 1)).unwrap();
            for child in grown.left.iter_mut().chain(&mut grown.right) {
                if *child == leaf {
                    *child = i32::try_from(split).unwrap();
                }
            }
            grown.splits.push((feature, threshold, kind));
            grown.left.push(leaf);
            grown.right.push(!i32::try_from(split + 1).unwrap());
        }
        grown
    }

    fn value(&self, row: &[f64]) -> f64 {
        let mut at = if self.splits.is_empty() { !0 } else { 0 };
        while let Ok(split) = usize::try_from(at) {
            let (feature, threshold, kind) = self.splits[split];
            let value = row[feature];
            let left = if value.is_nan() && kind >> 2 == 2 {
                kind & 2 != 0
            } else if value.is_nan() {
                0.0 <= threshold
            } else {
                value <= threshold
            };
            at = if left {
                self.left[split]
            } else {
                self.right[split]
            };
        }
        self.leaves[usize::try_from(!at).unwrap()]
    }

    fn text(&self, number: usize) -> String {
        let splits = &self.splits;
        format!(
            "Tree={number}\nnum_leaves={}\nnum_cat=0\nsplit_feature={}\nthreshold={}\ndecision_type={}\n\
             left_child={}\nright_child={}\nleaf_value={}\nis_linear=0\nshrinkage=1\n\n\n",
            self.leaves.len(),
            words(splits.iter().map(|split| split.0)),
            words(splits.iter().map(|split| split.1)),
            words(splits.iter().map(|split| split.2)),
            words(&self.left),
            words(&self.right),
            words(&self.leaves),
        )
    }
}

fn words<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    words.join(" ")
}

fn model(trees: &[Grown]) -> String {
    format!(
        "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx={}\nobjective=regression\n\
         tree_sizes={}\n\n{}end of trees\n",
        FEATURES - 1,
        words(trees.iter().map(|_| 1)),
        trees
            .iter()
            .enumerate()
            .map(|(number, tree)| tree.text(number))
            .collect::<String>(),
    )
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => -3.0..3.0,
        1 => Just(0.0),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NEG_INFINITY),
    ]
}

fn tree() -> impl Strategy<Value = Grown> {
    // No value missing in training, or NaN to the right, or to the left.
    let kind = prop_oneof![Just(0_u8), Just(2), Just(8), Just(10)];
    let split = (0..64_usize, 0..FEATURES, -2.0..2.0, kind);
    (
        prop::collection::vec(split, 0..20),
        prop::collection::vec(-5.0..5.0, 20),
    )
        .prop_map(|(splits, leaves)| Grown::new(&splits, &leaves))
}

proptest! {
    #[test]
    fn a_forest_says_what_its_trees_say(
        trees in prop::collection::vec(tree(), 1..6),
        rows in prop::collection::vec(prop::collection::vec(number(), FEATURES), 0..70),
    ) {
        let forest: Forest = model(&trees).parse().unwrap();
        prop_assert_eq!((forest.features(), forest.trees()), (FEATURES, trees.len()));
        let said = forest.predict(&rows.concat()).unwrap();
        let wanted: Vec<f64> = rows
            .iter()
            .map(|row| trees.iter().fold(0.0, |sum, tree| sum + tree.value(row)))
            .collect();
        prop_assert_eq!(said, wanted);
    }

    #[test]
    fn text_that_was_spoiled_is_refused_or_still_a_forest(
        trees in prop::collection::vec(tree(), 1..3),
        at in any::<prop::sample::Index>(),
        byte in 32_u8..127,
    ) {
        let mut text = model(&trees).into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        // What is still read must end, whatever the row.
        if let Ok(forest) = String::from_utf8(text).unwrap().parse::<Forest>() {
            let row = vec![f64::NAN; forest.features()];
            prop_assert_eq!(forest.predict(&row).unwrap().len(), 1);
        }
    }
}

fn refused(change: (&str, &str)) -> String {
    let tree = Grown::new(&[(0, 1, 0.5, 8), (0, 2, 0.25, 8)], &[1.0, 2.0, 3.0]);
    let text = model(&[tree.clone(), tree]);
    assert!(text.contains(change.0), "{}", change.0);
    let spoiled: Result<Forest, _> = text.replacen(change.0, change.1, 1).parse();
    spoiled.unwrap_err().to_string()
}

#[test]
fn what_is_not_read_is_refused_by_place_and_field() {
    for (change, message) in [
        (
            ("version=v4", "version=v3"),
            "model: version: must be v4, not \"v3\"",
        ),
        (
            ("objective=regression", "objective=binary"),
            "model: objective: must be regression",
        ),
        (
            ("num_class=1", "num_klass=1"),
            "model: num_class: is missing",
        ),
        (
            ("max_feature_idx=4", "max_feature_idx=-1"),
            "model: max_feature_idx: cannot be",
        ),
        (
            ("max_feature_idx=4", "max_feature_idx=1"),
            "tree 0: split_feature: not all are below 2",
        ),
        (
            ("tree_sizes=1 1", "tree_sizes=1 1 1"),
            "model: tree_sizes: 2 of 3 trees are there",
        ),
        (("end of trees", ""), "model: end of trees: is missing"),
        (
            ("tree_sizes", "average_output\ntree_sizes"),
            "averaged trees are not read",
        ),
        (("num_cat=0", "num_cat=1"), "tree 0: num_cat: must be 0"),
        (
            ("decision_type=8 8", "decision_type=8 9"),
            "tree 0: decision_type: categories are not read",
        ),
        (
            ("decision_type=8 8", "decision_type=4 8"),
            "tree 0: decision_type: zero as a missing value",
        ),
        (
            ("left_child=1 -1", "left_child=1 1"),
            "tree 0: left_child: leads to no later split",
        ),
        (
            ("left_child=1 -1", "left_child=0 -1"),
            "tree 0: left_child: leads to no later split",
        ),
        (
            ("left_child=1 -1", "left_child=1 -9"),
            "tree 0: left_child: leads to no later split",
        ),
        (
            ("right_child=-2 -3", "right_child=1 -3"),
            "tree 0: left_child: nodes form no tree",
        ),
        (
            ("threshold=0.5 0.25", "threshold=0.5"),
            "tree 0: threshold: has 1 values, not 2",
        ),
        (
            ("threshold=0.5 0.25", "threshold=0.5 x"),
            "tree 0: threshold: holds what is not a number",
        ),
        (
            ("threshold=0.5 0.25", "threshold=0.5 NaN"),
            "tree 0: threshold: is not a number",
        ),
        (
            ("leaf_value=1 2 3", "leaf_value=1 2 inf"),
            "tree 0: leaf_value: there is no finite one of leaf 2",
        ),
    ] {
        let found = refused(change);
        assert!(found.contains(message), "{change:?}: {found}");
    }
}

#[test]
fn rows_of_another_width_are_refused() {
    let forest: Forest = model(&[Grown::new(&[], &[1.5])]).parse().unwrap();
    assert_eq!(forest.predict(&[0.0; 10]).unwrap(), [1.5, 1.5]);
    let error = forest.predict(&[0.0; 7]).unwrap_err().to_string();
    assert_eq!(error, "rows: 7 numbers are not rows of 5 features");
}
