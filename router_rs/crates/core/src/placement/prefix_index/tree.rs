//! All runs together: how a worker's hold on the tree grows and shrinks.

use super::Known;
use super::run::{Hold, Run, Runs, Spot};
use super::table::Table;
use crate::WorkerId;

/// The messages of all workers.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) table: Table,
    pub(super) runs: Runs,
}

impl Tree {
    /// What anybody holds of a chain. From its first message on a run at a time: only the first message of each run is looked
    /// for in the table, and of its others few are read.
    pub(super) fn known(&self, chain: &[u64]) -> Known {
        let mut known = Known::default();
        while let Some(&next) = chain.get(known.covered)
            && let Some(number) = self.table.get(next)
        {
            let run = self.runs.at(number);
            if run.parent != known.tip {
                break;
            }
            let agreeing = run.agrees(0, &chain[known.covered..]);
            known.covered += agreeing;
            let at = agreeing as u32 - 1;
            known.tip = Some(Spot { run: number, at });
            if agreeing == run.hashes.len() && !run.is_followed() {
                break;
            }
        }
        known
    }

    /// Messages over all workers.
    pub(super) fn messages(&self) -> usize {
        self.runs.iter().map(|(_, run)| run.hashes.len()).sum()
    }

    /// When a message was last used that is a leaf of the worker's.
    pub(super) fn leaf_since(&self, worker: WorkerId, spot: Spot) -> Option<u64> {
        let hold = self.runs.at(spot.run).hold(worker)?;
        hold.is_leaf(spot.at).then(|| hold.used(spot.at))
    }

    /// The worker uses a message at `now`; when it did before, if that is a leaf.
    pub(super) fn touch(&mut self, worker: WorkerId, spot: Spot, now: u64) -> Option<u64> {
        let hold = self.runs.hold_mut(spot.run, worker)?;
        let since = hold.is_leaf(spot.at).then(|| hold.used(spot.at));
        hold.touch(spot.at, now);
        since
    }

    /// What the worker holds of a chain of which this much is known.
    pub(super) fn held(&self, worker: WorkerId, mut known: Known) -> Known {
        while let Some(spot) = known.tip {
            let run = self.runs.at(spot.run);
            if let Some(hold) = run.hold(worker) {
                return known.up_to(hold.held);
            }
            known = known.before(spot, run.parent);
        }
        known
    }

    /// Gives the worker the rest of the chain, of which it holds `held` and somebody `known`; says what it holds then.
    ///
    /// A hash that a run elsewhere in the tree begins with is no chained hash of this prefix: a collision, or a caller's fault.
    /// The rest of the chain is not taken in.
    pub(super) fn extend(
        &mut self,
        worker: WorkerId,
        mut held: Known,
        known: usize,
        chain: &[u64],
        now: u64,
    ) -> Known {
        while let Some(&next) = chain.get(held.covered) {
            let rest = &chain[held.covered..];
            let taken = if held.covered >= known {
                self.grow(worker, held.tip, rest, now)
            } else if let Some(tip) = held.tip.filter(|&tip| self.runs.goes_on(tip, next)) {
                self.go_on(worker, tip, rest, now)
            } else if let Some(run) = self.table.get(next) {
                self.enter(worker, held.tip, run, rest, now)
            } else {
                None
            };
            let Some((number, last)) = taken else { break };
            held.covered += number;
            held.tip = Some(last);
        }
        held
    }

    /// The run of `tip`, of which the worker holds no more, goes on like `rest`.
    fn go_on(
        &mut self,
        worker: WorkerId,
        tip: Spot,
        rest: &[u64],
        now: u64,
    ) -> Option<(usize, Spot)> {
        let number = self.runs.at(tip.run).agrees(tip.at as usize + 1, rest);
        let hold = self.runs.hold_mut(tip.run, worker)?;
        if hold.held != tip.at + 1 {
            return None;
        }
        hold.extend(number as u32, now);
        let at = tip.at + number as u32;
        Some((number, Spot { at, ..tip }))
    }

    /// A run that others hold goes on after `tip`.
    fn enter(
        &mut self,
        worker: WorkerId,
        tip: Option<Spot>,
        number: u32,
        rest: &[u64],
        now: u64,
    ) -> Option<(usize, Spot)> {
        let run = self.runs.at_mut(number);
        if run.parent != tip || run.hold(worker).is_some() {
            return None;
        }
        let agreeing = run.agrees(0, rest);
        run.add(Hold::new(worker, agreeing as u32, now));
        self.fork(worker, tip);
        let at = agreeing as u32 - 1;
        Some((agreeing, Spot { run: number, at }))
    }

    /// Nobody holds anything of `rest`: it is put at the end of the tip's run, or begins one.
    fn grow(
        &mut self,
        worker: WorkerId,
        tip: Option<Spot>,
        rest: &[u64],
        now: u64,
    ) -> Option<(usize, Spot)> {
        let number = rest.len();
        let spot = if let Some(end) = tip.filter(|&tip| self.runs.ends_at(tip)) {
            let run = self.runs.at_mut(end.run);
            run.hashes.extend_from_slice(rest);
            run.hold_mut(worker)?.extend(number as u32, now);
            let at = end.at + number as u32;
            Spot { at, ..end }
        } else {
            let first = *rest.first()?;
            if self.table.get(first).is_some() {
                return None;
            }
            let run = self.runs.next();
            self.table.insert(first, run);
            let hold = Hold::new(worker, number as u32, now);
            self.runs.put(Run::new(tip, rest, hold));
            self.fork(worker, tip);
            let at = number as u32 - 1;
            Spot { run, at }
        };
        Some((number, spot))
    }

    /// The worker holds one more run that follows on `tip`.
    fn fork(&mut self, worker: WorkerId, tip: Option<Spot>) {
        if let Some(tip) = tip
            && let Some(hold) = self.runs.hold_mut(tip.run, worker)
        {
            hold.fork(tip.at);
        }
    }

    /// Takes `leaf` and what was used with it from the worker, as far as it becomes a leaf by it, at most `most` messages.
    /// Says how many, and which message is a leaf now, with its last use.
    pub(super) fn evict(
        &mut self,
        worker: WorkerId,
        leaf: Spot,
        most: usize,
    ) -> (usize, Option<(u64, Spot)>) {
        let run = self.runs.at_mut(leaf.run);
        let Some(hold) = run.hold_mut(worker) else {
            return (0, None);
        };
        let taken = hold.shrink(most);
        let bare = if let Some(at) = hold.held.checked_sub(1) {
            Some(Spot { at, ..leaf })
        } else {
            let parent = run.parent;
            run.release(worker);
            if let Some(parent) = parent
                && let Some(hold) = self.runs.hold_mut(parent.run, worker)
            {
                hold.unfork(parent.at);
            }
            parent
        };
        if let Some(first) = self.runs.trim(leaf.run) {
            self.table.remove(first);
        }
        let since = bare.and_then(|bare| self.leaf_since(worker, bare).map(|since| (since, bare)));
        (taken, since)
    }
}
