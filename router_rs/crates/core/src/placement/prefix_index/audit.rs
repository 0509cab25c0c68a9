//! The index, computed again from its holds.

use std::collections::BTreeMap;

use super::run::{Run, Spot};
use super::{Part, PrefixIndex};
use crate::WorkerId;

impl PrefixIndex {
    /// What does not hold of the index; empty when all is well.
    pub fn audit(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut forks: BTreeMap<(u32, WorkerId), BTreeMap<u32, u32>> = BTreeMap::new();
        let mut runs = 0;
        for (number, run) in self.tree.runs.iter() {
            runs += 1;
            self.audit_run(number, run, &mut faults);
            for hold in run.holds() {
                if let Some(parent) = run.parent {
                    let at = forks.entry((parent.run, hold.worker)).or_default();
                    *at.entry(parent.at).or_default() += 1;
                }
            }
        }
        if runs != self.tree.table.len() {
            faults.push(format!(
                "{} runs in tables, {runs} are there",
                self.tree.table.len()
            ));
        }
        for (number, run) in self.tree.runs.iter() {
            for hold in run.holds() {
                let found = forks.remove(&(number, hold.worker)).unwrap_or_default();
                if !hold.forks().iter().copied().eq(found) {
                    let worker = hold.worker;
                    faults.push(format!("worker {worker}: forks of run {number} differ"));
                }
            }
        }
        for (&id, part) in &self.parts {
            faults.extend(self.faults_of_part(id, part));
        }
        faults
    }

    fn audit_run(&self, number: u32, run: &Run, faults: &mut Vec<String>) {
        if run.longest_hold() != run.hashes.len() {
            faults.push(format!("run {number}: not as long as what is held of it"));
        }
        if run
            .hashes
            .first()
            .and_then(|&first| self.tree.table.get(first))
            != Some(number)
        {
            faults.push(format!("run {number}: not where it is looked for"));
        }
        if !run.holds().is_sorted_by(|a, b| a.worker < b.worker) {
            faults.push(format!("run {number}: holders out of order"));
        }
        for hold in run.holds() {
            let worker = hold.worker;
            if !hold.is_consistent() {
                faults.push(format!("worker {worker}: uses of run {number} do not fit"));
            }
            if !self.parts.contains_key(&worker) {
                faults.push(format!(
                    "worker {worker} holds run {number} and is not known"
                ));
            }
            if let Some(parent) = run.parent
                && !self.holds(worker, parent)
            {
                faults.push(format!(
                    "worker {worker} holds run {number} without its parent"
                ));
            }
        }
    }

    fn holds(&self, worker: WorkerId, spot: Spot) -> bool {
        let hold = self.tree.runs.at(spot.run).hold(worker);
        hold.is_some_and(|hold| hold.held > spot.at)
    }

    fn faults_of_part(&self, id: WorkerId, part: &Part) -> Vec<String> {
        let mut faults = Vec::new();
        let mut leaves = BTreeMap::new();
        let mut messages = 0;
        for (run, held) in self.tree.runs.iter() {
            let Some(hold) = held.hold(id) else {
                continue;
            };
            messages += hold.held as usize;
            let at = hold.held - 1;
            if hold.is_leaf(at) {
                leaves.insert(hold.used(at), Spot { run, at });
            }
        }
        if messages != part.messages {
            faults.push(format!(
                "worker {id}: {} prefixes counted, {messages} held",
                part.messages
            ));
        }
        if leaves != part.leaves {
            faults.push(format!(
                "worker {id}: leaves differ from those that are held"
            ));
        }
        faults
    }
}
