use super::*;
use proptest::prelude::*;

mod model;

use model::Model;

fn any_worker(_: WorkerId, _: u64) -> bool {
    true
}

/// Messages and holders of the deepest prefix.
fn deepest(
    index: &PrefixIndex,
    chain: &[u64],
    usable: impl Fn(WorkerId, u64) -> bool,
) -> Option<(usize, Vec<WorkerId>)> {
    let found = index.deepest(index.known(chain), &usable)?;
    Some((found.matched, index.holders(found, usable).collect()))
}

fn put(index: &mut PrefixIndex, worker: WorkerId, life: u64, chain: &[u64], most: usize) {
    let known = index.known(chain);
    index.insert(worker, life, chain, known, most);
}

fn size(index: &PrefixIndex, worker: WorkerId, life: u64) -> usize {
    index.sizes([(worker, life)].into_iter()).sum()
}

#[test]
fn the_deepest_prefix_names_all_its_holders() {
    let mut index = PrefixIndex::default();
    put(&mut index, 2, 1, &[10, 11, 12], 100);
    put(&mut index, 1, 1, &[10, 11, 13], 100);
    assert_eq!(
        deepest(&index, &[10, 11, 14, 15], any_worker),
        Some((2, vec![1, 2]))
    );
    assert_eq!(
        deepest(&index, &[10, 11, 12], any_worker),
        Some((3, vec![2]))
    );
    assert_eq!(deepest(&index, &[99], any_worker), None);
    assert_eq!(index.messages(), 4);
}

#[test]
fn a_new_life_of_a_worker_has_seen_nothing() {
    let mut index = PrefixIndex::default();
    put(&mut index, 1, 1, &[10, 11], 100);
    put(&mut index, 1, 2, &[20], 100);
    assert_eq!((size(&index, 1, 1), size(&index, 1, 2)), (0, 1));
    assert_eq!(deepest(&index, &[10, 11], any_worker), None);
}

#[test]
fn sizes_of_many_workers_are_told_in_one_walk() {
    let mut index = PrefixIndex::default();
    put(&mut index, 2, 1, &[10, 11], 100);
    put(&mut index, 5, 3, &[10, 12, 13], 100);
    let lives = [(1, 1), (2, 1), (4, 1), (5, 3), (6, 1)];
    let sizes: Vec<usize> = index.sizes(lives.into_iter()).collect();
    assert_eq!(sizes, [0, 2, 0, 3, 0]);
}

/// Chains as chained hashes make them: the hash of a position stands for all before it.
fn chain(messages: &[u8]) -> Vec<u64> {
    let mut hash = 7u64;
    messages
        .iter()
        .map(|&message| {
            hash = hash
                .wrapping_mul(0x0100_0000_01B3)
                .wrapping_add(u64::from(message) + 1);
            hash
        })
        .collect()
}

proptest! {
    #[test]
    fn any_sequence_of_prompts_leaves_what_a_tree_of_nodes_would_hold(
        most in 1..24usize,
        prompts in prop::collection::vec((0..3u64, 1..30u64, prop::collection::vec(0..3u8, 0..9)), 0..160),
    ) {
        let mut index = PrefixIndex::default();
        let mut model = Model::default();
        for (worker, life, messages) in prompts {
            // A new life now and then.
            let life = 1 + life / 29;
            let chain = chain(&messages);
            put(&mut index, worker, life, &chain, most);
            model.insert(worker, life, &chain, most);
            prop_assert_eq!(index.audit(), Vec::<String>::new());
            prop_assert_eq!(index.messages(), model.messages());
            for worker in 0..3 {
                prop_assert_eq!(size(&index, worker, life), model.size(worker, life));
            }
            for known in 0..=chain.len() {
                let prefix = &chain[..known];
                prop_assert_eq!(
                    deepest(&index, prefix, any_worker),
                    model.deepest(prefix, any_worker)
                );
                let usable = |id, known| id != worker && known == life;
                prop_assert_eq!(
                    deepest(&index, prefix, usable),
                    model.deepest(prefix, usable)
                );
            }
        }
    }

    #[test]
    fn chains_that_are_no_chains_do_no_harm(
        prompts in prop::collection::vec((0..2u64, prop::collection::vec(0..6u64, 0..8)), 0..80),
    ) {
        let mut index = PrefixIndex::default();
        for (worker, chain) in prompts {
            put(&mut index, worker, 1, &chain, 4);
            prop_assert!(size(&index, worker, 1) <= 4);
            prop_assert_eq!(index.audit(), Vec::<String>::new());
        }
    }
}
