//! Runs by the hash of their first message.
//!
//! There may be a run for every message, and nobody waits while they are all put into a larger table: they lie in many small
//! ones, each of which grows by itself.

use crate::id_map::IdMap;

/// Tables that the runs are divided among; with four million, each has a few thousand.
const TABLES: usize = 1 << TABLES_LOG2;
const TABLES_LOG2: u32 = 10;

/// The number of each run; no table is made before the first one.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<IdMap<u64, u32>>);

impl Table {
    /// Another multiplier than the tables' own, so that what lies in one table differs in all bits there.
    fn table_of(hash: u64) -> usize {
        (hash.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> (u64::BITS - TABLES_LOG2)) as usize
    }

    pub(super) fn get(&self, hash: u64) -> Option<u32> {
        self.0.get(Self::table_of(hash))?.get(hash).copied()
    }

    pub(super) fn insert(&mut self, hash: u64, run: u32) {
        if self.0.is_empty() {
            self.0.resize_with(TABLES, IdMap::default);
        }
        self.0[Self::table_of(hash)].insert(hash, run);
    }

    pub(super) fn remove(&mut self, hash: u64) {
        if let Some(table) = self.0.get_mut(Self::table_of(hash)) {
            table.remove(hash);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(IdMap::len).sum()
    }
}
