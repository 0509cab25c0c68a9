//! Groups: what the ended members of a prompt say about those still running.
//!
//! Invariant: at most [`MEMORY`] groups without running members are remembered, the least recently used go first.

use std::collections::BTreeMap;

use crate::estimate::LogStats;
use crate::id_map::IdMap;
use crate::{GroupId, WorkerId};

/// Groups without running members that are kept: the same prompt may come again in the next epoch.
const MEMORY: usize = 65_536;

/// Members of one prompt.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// Lengths of ended members.
    pub ended: LogStats,
    /// Changes of `ended`.
    pub lessons: u64,
    /// Known members.
    pub members: u32,
    /// Where the last member without a home went.
    pub last_home: Option<WorkerId>,
    idle_since: Option<u64>,
}

/// All groups.
#[derive(Debug, Default)]
pub struct Groups {
    by_id: IdMap<GroupId, Group>,
    idle: BTreeMap<u64, GroupId>,
    clock: u64,
}

impl Groups {
    /// The group, if it is known.
    pub fn get(&self, id: GroupId) -> Option<&Group> {
        self.by_id.get(id)
    }

    /// The group, to change.
    pub fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.by_id.get_mut(id)
    }

    /// A trajectory of this group became known.
    pub fn join(&mut self, id: GroupId) {
        if !self.by_id.contains(id) {
            self.by_id.insert(id, Group::default());
        }
        if let Some(group) = self.by_id.get_mut(id) {
            group.members += 1;
            if let Some(since) = group.idle_since.take() {
                self.idle.remove(&since);
            }
        }
    }

    /// A trajectory of this group is forgotten.
    pub fn leave(&mut self, id: GroupId) {
        let Some(group) = self.by_id.get_mut(id) else {
            return;
        };
        group.members = group.members.saturating_sub(1);
        if group.members > 0 {
            return;
        }
        self.clock += 1;
        group.idle_since = Some(self.clock);
        self.idle.insert(self.clock, id);
        if self.idle.len() > MEMORY
            && let Some((_, oldest)) = self.idle.pop_first()
        {
            self.by_id.remove(oldest);
        }
    }

    /// Known groups.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Members of each group, for audits.
    pub fn members(&self) -> BTreeMap<GroupId, u32> {
        let ids = self.by_id.sorted_ids();
        ids.into_iter()
            .filter_map(|id| self.by_id.get(id).map(|g| (id, g.members)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_without_members_are_remembered_up_to_a_bound() {
        let mut groups = Groups::default();
        for id in 0..=MEMORY as u64 {
            groups.join(id);
            groups.leave(id);
        }
        assert_eq!(groups.len(), MEMORY);
        assert!(groups.get(0).is_none());
        groups.join(1);
        assert_eq!(groups.get(1).map(|g| g.members), Some(1));
        assert_eq!(groups.idle.len(), MEMORY - 1);
    }
}
