use super::*;
use proptest::prelude::*;

fn any_worker(_: WorkerId, _: u64) -> bool {
    true
}

#[test]
fn the_deepest_prefix_names_all_its_holders() {
    let mut index = PrefixIndex::default();
    index.insert(2, 1, &[10, 11, 12], 100);
    index.insert(1, 1, &[10, 11, 13], 100);
    let found = index.deepest(&[10, 11, 14, 15], any_worker).unwrap();
    assert_eq!(
        found,
        Deepest {
            matched: 2,
            holders: vec![1, 2]
        }
    );
    assert_eq!(
        index.deepest(&[10, 11, 12], any_worker).unwrap().holders,
        [2]
    );
    assert_eq!(index.deepest(&[99], any_worker), None);
    assert_eq!(index.nodes(), 4);
}

#[test]
fn a_new_life_of_a_worker_has_seen_nothing() {
    let mut index = PrefixIndex::default();
    index.insert(1, 1, &[10, 11], 100);
    index.insert(1, 2, &[20], 100);
    assert_eq!((index.size(1, 1), index.size(1, 2)), (0, 1));
    assert_eq!(index.deepest(&[10, 11], any_worker), None);
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
    fn any_sequence_of_prompts_keeps_the_bound_and_the_tree(
        prompts in prop::collection::vec((0..3u64, 1..3u64, prop::collection::vec(0..3u8, 0..8)), 0..120),
    ) {
        let mut index = PrefixIndex::default();
        for (worker, life, messages) in prompts {
            let chain = chain(&messages);
            index.insert(worker, life, &chain, 10);
            prop_assert!(index.size(worker, life) <= 10);
            prop_assert_eq!(index.audit(), Vec::<String>::new());
            if let Some(found) = index.deepest(&chain, any_worker) {
                prop_assert_eq!(found.matched, chain.len());
                prop_assert!(found.holders.contains(&worker));
            } else {
                prop_assert!(chain.is_empty());
            }
        }
    }

    #[test]
    fn chains_that_are_no_chains_do_no_harm(
        prompts in prop::collection::vec((0..2u64, prop::collection::vec(0..6u64, 0..8)), 0..80),
    ) {
        let mut index = PrefixIndex::default();
        for (worker, chain) in prompts {
            index.insert(worker, 1, &chain, 4);
            prop_assert!(index.size(worker, 1) <= 4);
            prop_assert_eq!(index.audit(), Vec::<String>::new());
        }
    }
}
