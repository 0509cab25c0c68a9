//! What remains after the bottleneck. The min-max optimum is not unique: a greedy plan fills the
//! first workers to the bound, which leaves no slack for mispredictions, and leaves workers empty.

use super::cost::{Group, GroupCost, Placed, makespan};
use super::exact::{Search, Settled};
use super::lattice::Stock;

/// Makes an optimal plan lexicographically small: settles its most expensive group, solves the rest
/// again with the workers that are left, and so on. With costs that rise strictly with the size and
/// lengths that differ, the sorted costs of the result are the lexicographic minimum over all plans
/// (held against brute force in the tests).
///
/// `groups`: an optimal plan of the whole `stock`. The result is in rank order.
pub(super) fn lexicographic<C: GroupCost>(
    cost: &C,
    mut stock: Stock,
    mut groups: Vec<Group>,
) -> Placed {
    let mut done: Vec<Group> = Vec::new();
    let mut settled = Settled::default();
    while let Some(at) = most_expensive(cost, &groups) {
        let bottleneck = groups.remove(at);
        stock.take(bottleneck.shape);
        let mut around = settled.clone();
        around.insert(bottleneck.head, bottleneck.tail);
        let rest = Search::new(cost, &stock, &around)
            .optimum(Some(groups))
            .unwrap_or_default();
        let (bottleneck, rest) = with_fewest_members(cost, &stock, &settled, bottleneck, rest);
        settled.insert(bottleneck.head, bottleneck.tail);
        done.push(bottleneck);
        groups = rest;
    }
    done.sort_unstable_by_key(|group| group.head);
    Placed {
        groups: done,
        idle: stock,
    }
}

/// The group that costs most, the one with the longest member at a tie.
fn most_expensive<C: GroupCost>(cost: &C, groups: &[Group]) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (at, group) in groups.iter().enumerate() {
        let seconds = group.cost(cost);
        if best.is_none_or(|(_, most)| seconds > most) {
            best = Some((at, seconds));
        }
    }
    best.map(|(at, _)| at)
}

/// Where the cost is flat in the size, the bottleneck keeps only as many members as the bound of
/// the others asks for: a long trajectory in less company has more slack.
fn with_fewest_members<C: GroupCost>(
    cost: &C,
    stock: &Stock,
    settled: &Settled,
    bottleneck: Group,
    rest: Vec<Group>,
) -> (Group, Vec<Group>) {
    let Group { shape, head, tail } = bottleneck;
    let bound = bottleneck.cost(cost);
    if tail - head < 2 || cost.cost(shape, head, tail - 1) < bound {
        return (bottleneck, rest);
    }
    let rest_bound = makespan(cost, &rest);
    let mut best = (bottleneck, rest);
    // Fewest members at which the cost is still the bound.
    let (mut below, mut keeps) = (head, tail);
    while keeps - below > 1 {
        let middle = below + (keeps - below) / 2;
        if cost.cost(shape, head, middle) < bound {
            below = middle;
        } else {
            keeps = middle;
        }
    }
    // Of those sizes, the fewest that leave the others within their bound.
    let (mut fails, mut holds) = (keeps - 1, tail);
    while holds - fails > 1 {
        let middle = fails + (holds - fails) / 2;
        let mut around = settled.clone();
        around.insert(head, middle);
        match Search::new(cost, stock, &around).within(rest_bound) {
            Some(groups) => {
                holds = middle;
                best = (
                    Group {
                        shape,
                        head,
                        tail: middle,
                    },
                    groups,
                );
            }
            None => fails = middle,
        }
    }
    best
}

/// The plan of workers in a fixed order within the optimal `groups`' makespan, lexicographically
/// balanced in that order.
pub(super) fn in_order<C: GroupCost>(cost: &C, order: &[usize], groups: &[Group]) -> Placed {
    let mut done = Vec::new();
    let mut open = vec![(order.to_vec(), 0, cost.ranks(), groups.to_vec())];
    while let Some((order, start, end, groups)) = open.pop() {
        let Some(at) = most_expensive(cost, &groups) else {
            continue;
        };
        let bottleneck = groups[at];
        done.push(bottleneck);
        // The worker's place in the order: groups skip empty workers but never overtake.
        let mut place = 0;
        for group in &groups[..=at] {
            place += order[place..]
                .iter()
                .position(|&shape| shape == group.shape)
                .unwrap_or(0)
                + 1;
        }
        let sides = [
            (
                order[..place - 1].to_vec(),
                start,
                bottleneck.head,
                groups[..at].to_vec(),
            ),
            (
                order[place..].to_vec(),
                bottleneck.tail,
                end,
                groups[at + 1..].to_vec(),
            ),
        ];
        for (order, start, end, known) in sides {
            let mut outside = Settled::default();
            outside.insert(0, start);
            outside.insert(end, cost.ranks());
            let stock = Stock::Sequence(order.clone());
            let best = Search::new(cost, &stock, &outside)
                .optimum(Some(known))
                .unwrap_or_default();
            open.push((order, start, end, best));
        }
    }
    done.sort_unstable_by_key(|group| group.head);
    let mut idle = Stock::Sequence(order.to_vec());
    for group in &done {
        idle.take(group.shape);
    }
    Placed { groups: done, idle }
}

/// Puts idle workers to use without raising the makespan: each, fastest first, takes the short end
/// of a group, where that leaves the dearer of the two parts cheapest. So every fixed worker gets
/// at least one trajectory if there are enough, unless even the shortest one alone would take it
/// beyond the makespan. GPUs left idle become workers only where no part costs more than the group
/// did.
pub(super) fn occupy_idle<C: GroupCost>(cost: &C, placed: &mut Placed) {
    let Placed { groups, idle } = placed;
    let bound = makespan(cost, groups);
    let must_gain = matches!(idle, Stock::Gpus { .. });
    for shape in 0..cost.shapes() {
        while idle.has(shape) {
            let Some(split) = best_split(cost, groups, shape, bound) else {
                break;
            };
            if must_gain && split.saved < 0.0 {
                break;
            }
            idle.take(shape);
            let tail = std::mem::replace(&mut groups[split.group].tail, split.cut);
            groups.insert(
                split.group + 1,
                Group {
                    shape,
                    head: split.cut,
                    tail,
                },
            );
        }
    }
}

/// A group cut in two.
struct Split {
    /// Cost of the group less the dearer of its parts, seconds.
    saved: f64,
    group: usize,
    cut: usize,
}

/// The group and rank to cut it at such that a worker of `shape` saves most by taking the short end
/// within `bound`.
fn best_split<C: GroupCost>(cost: &C, groups: &[Group], shape: usize, bound: f64) -> Option<Split> {
    let mut best: Option<Split> = None;
    for (at, group) in groups.iter().enumerate() {
        if group.tail - group.head < 2 {
            continue;
        }
        let kept = |cut| cost.cost(group.shape, group.head, cut);
        let taken = |cut| cost.cost(shape, cut, group.tail);
        // What is kept grows as the cut moves right, what is taken shrinks: the crossing is the
        // best place.
        let (mut left, mut right) = (group.head, group.tail - 1);
        while right - left > 1 {
            let middle = left + (right - left) / 2;
            if kept(middle) >= taken(middle) {
                right = middle;
            } else {
                left = middle;
            }
        }
        for cut in [left.max(group.head + 1), right] {
            if taken(cut) > bound {
                continue;
            }
            let saved = group.cost(cost) - kept(cut).max(taken(cut));
            if best.as_ref().is_none_or(|split| saved > split.saved) {
                best = Some(Split {
                    saved,
                    group: at,
                    cut,
                });
            }
        }
    }
    best
}
