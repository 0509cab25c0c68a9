//! All runs together: how a worker's hold on the tree grows and shrinks.

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
    /// Where a message is.
    pub(super) fn find(&self, hash: u64) -> Option<Spot> {
        self.table.get(hash)
    }

    /// Workers that hold a message, ascending.
    pub(super) fn holders_of(&self, spot: Spot) -> impl Iterator<Item = WorkerId> + '_ {
        self.runs.at(spot.run).holders_of(spot.at)
    }

    /// Messages over all workers.
    pub(super) fn messages(&self) -> usize {
        self.table.len()
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

    /// The last message of the chain that the worker holds: how many messages it covers, and where it is.
    pub(super) fn tip(&self, worker: WorkerId, chain: &[u64]) -> (usize, Option<Spot>) {
        let known = chain
            .iter()
            .enumerate()
            .rev()
            .find_map(|(i, &hash)| self.table.get(hash).map(|spot| (i + 1, spot)));
        let Some((mut covered, mut spot)) = known else {
            return (0, None);
        };
        // From the last message that anybody holds upwards, a run at a time. Where the runs are not those of the chain, it
        // is no chain of chained hashes: it is looked through message by message.
        loop {
            let run = self.runs.at(spot.run);
            let before = covered.checked_sub(spot.at as usize + 1);
            let Some(before) =
                before.filter(|_| run.hashes[spot.at as usize] == chain[covered - 1])
            else {
                return self.tip_of_any(worker, chain);
            };
            if let Some(hold) = run.hold(worker) {
                let at = spot.at.min(hold.held - 1);
                return (before + at as usize + 1, Some(Spot { at, ..spot }));
            }
            match run.parent {
                Some(parent) if before > 0 => (covered, spot) = (before, parent),
                None if before == 0 => return (0, None),
                _ => return self.tip_of_any(worker, chain),
            }
        }
    }

    fn tip_of_any(&self, worker: WorkerId, chain: &[u64]) -> (usize, Option<Spot>) {
        let held = |hash: u64| {
            let spot = self.table.get(hash)?;
            let hold = self.runs.at(spot.run).hold(worker)?;
            (hold.held > spot.at).then_some(spot)
        };
        let mut found = chain.iter().enumerate().rev();
        found
            .find_map(|(i, &hash)| held(hash).map(|spot| (i + 1, Some(spot))))
            .unwrap_or((0, None))
    }

    /// Gives the worker the messages of `rest`, which follow on `tip`: how many it gets, and the last one.
    ///
    /// A hash that stands elsewhere in the tree is no chained hash of this prefix: a collision, or a caller's fault. The rest
    /// of the chain is not taken in.
    pub(super) fn extend(
        &mut self,
        worker: WorkerId,
        mut tip: Option<Spot>,
        rest: &[u64],
        now: u64,
    ) -> (usize, Option<Spot>) {
        let mut added = 0;
        while let Some(&next) = rest.get(added) {
            let rest = &rest[added..];
            let taken = if let Some(tip) = tip.filter(|&tip| self.runs.goes_on(tip, next)) {
                self.go_on(worker, tip, rest, now)
            } else if let Some(spot) = self.table.get(next) {
                self.enter(worker, tip, spot, rest, now)
            } else {
                self.grow(worker, tip, rest, now)
            };
            let Some((number, last)) = taken else { break };
            added += number;
            tip = Some(last);
        }
        (added, tip)
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

    /// A run that others hold begins at `spot`.
    fn enter(
        &mut self,
        worker: WorkerId,
        tip: Option<Spot>,
        spot: Spot,
        rest: &[u64],
        now: u64,
    ) -> Option<(usize, Spot)> {
        let run = self.runs.at_mut(spot.run);
        if spot.at > 0 || run.parent != tip || run.hold(worker).is_some() {
            return None;
        }
        let number = run.agrees(0, rest);
        run.add(Hold::new(worker, number as u32, now));
        self.fork(worker, tip);
        let at = number as u32 - 1;
        Some((number, Spot { at, ..spot }))
    }

    /// Nobody holds the first message of `rest`: it is put at the end of the tip's run, or begins one.
    fn grow(
        &mut self,
        worker: WorkerId,
        tip: Option<Spot>,
        rest: &[u64],
        now: u64,
    ) -> Option<(usize, Spot)> {
        let end = tip.filter(|&tip| self.runs.ends_at(tip));
        let first = match end {
            Some(end) => Spot {
                at: end.at + 1,
                ..end
            },
            None => Spot {
                run: self.runs.next(),
                at: 0,
            },
        };
        let mut number = 0;
        while let Some(&hash) = rest.get(number)
            && self.table.get(hash).is_none()
        {
            let at = first.at + number as u32;
            self.table.insert(hash, Spot { at, ..first });
            number += 1;
        }
        let new = &rest[..number];
        if end.is_some() {
            let run = self.runs.at_mut(first.run);
            run.hashes.extend_from_slice(new);
            run.hold_mut(worker)?.extend(number as u32, now);
        } else {
            let hold = Hold::new(worker, number as u32, now);
            self.runs.put(Run::new(tip, new, hold));
            self.fork(worker, tip);
        }
        let at = first.at + number as u32 - 1;
        Some((number, Spot { at, ..first }))
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
        for hash in self.runs.trim(leaf.run) {
            self.table.remove(hash);
        }
        let since = bare.and_then(|bare| self.leaf_since(worker, bare).map(|since| (since, bare)));
        (taken, since)
    }
}
