use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Op {
    Insert(u64, u64),
    RemoveNth(usize),
    Reweigh(usize, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..2000u64, 1..50u64).prop_map(|(id, w)| Op::Insert(id, w)),
        3 => any::<usize>().prop_map(Op::RemoveNth),
        3 => (any::<usize>(), 1..50u64).prop_map(|(n, w)| Op::Reweigh(n, w)),
    ]
}

fn check(ranking: &Ranking, model: &[Entry]) {
    assert_eq!(ranking.iter().collect::<Vec<_>>(), model);
    assert_eq!(ranking.len(), model.len());
    assert_eq!(
        ranking.total_weight(),
        model.iter().map(|e| e.weight).sum::<u64>()
    );
    assert!(
        ranking
            .blocks
            .iter()
            .all(|b| !b.is_empty() && b.len() <= BLOCK)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn agrees_with_a_sorted_vec(ops in prop::collection::vec(op(), 0..1500)) {
        let mut ranking = Ranking::new();
        let mut model: Vec<Entry> = Vec::new();
        for op in ops {
            match op {
                Op::Insert(id, weight) => {
                    let entry = Entry { weight, id };
                    let found = model.binary_search(&entry);
                    prop_assert_eq!(ranking.insert(id, weight), found.is_err());
                    if let Err(at) = found {
                        model.insert(at, entry);
                    }
                }
                Op::RemoveNth(n) if !model.is_empty() => {
                    let entry = model.remove(n % model.len());
                    prop_assert!(ranking.remove(entry.id, entry.weight));
                    prop_assert!(!ranking.remove(entry.id, entry.weight));
                }
                Op::Reweigh(n, weight) if !model.is_empty() => {
                    let entry = model.remove(n % model.len());
                    let new = Entry { weight, id: entry.id };
                    if let Err(at) = model.binary_search(&new) {
                        model.insert(at, new);
                        prop_assert!(ranking.update(entry.id, entry.weight, weight));
                    } else {
                        prop_assert!(ranking.remove(entry.id, entry.weight));
                    }
                }
                _ => {}
            }
        }
        check(&ranking, &model);
        for (rank, entry) in model.iter().enumerate() {
            prop_assert_eq!(ranking.select(rank), Some(*entry));
            let weight = model[..rank].iter().map(|e| e.weight).sum();
            prop_assert_eq!(ranking.before(entry.id, entry.weight), Span { count: rank, weight });
            prop_assert!(ranking.contains(entry.id, entry.weight));
        }
        prop_assert_eq!(ranking.select(model.len()), None);
    }
}

#[test]
fn blocks_split_and_merge_as_entries_come_and_go() {
    let mut ranking = Ranking::new();
    for id in 0..5000u64 {
        assert!(ranking.insert(id, id % 7 + 1));
    }
    assert!(ranking.blocks.len() > 10);
    for id in 0..4990u64 {
        assert!(ranking.remove(id, id % 7 + 1));
    }
    assert!(
        ranking.blocks.len() <= 4,
        "{} blocks for 10 entries",
        ranking.blocks.len()
    );
    assert_eq!(ranking.len(), 10);
    assert_eq!(
        ranking.first_except(ranking.first().unwrap().id),
        ranking.select(1)
    );
}
