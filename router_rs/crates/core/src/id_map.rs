//! Map from a numeric id to a value: hashed look-up, no iteration in hash order.
//!
//! Invariant: nothing that decides may depend on the order of a hash table, so the only way to walk the map is
//! [`IdMap::sorted_ids`], which audits and rare, whole-state changes use.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Multiplies by an odd constant and folds: enough for ids that were handed out by a counter.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }
}

/// A hash map that cannot be walked in hash order.
#[derive(Debug, Clone)]
pub struct IdMap<K, V>(HashMap<K, V, BuildHasherDefault<IdHasher>>);

impl<K, V> Default for IdMap<K, V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Copy + Ord + std::hash::Hash, V> IdMap<K, V> {
    /// The value under `id`.
    pub fn get(&self, id: K) -> Option<&V> {
        self.0.get(&id)
    }

    /// The value under `id`, to change.
    pub fn get_mut(&mut self, id: K) -> Option<&mut V> {
        self.0.get_mut(&id)
    }

    /// True when `id` has a value.
    pub fn contains(&self, id: K) -> bool {
        self.0.contains_key(&id)
    }

    /// Puts `value` under `id` and gives back what was there.
    pub fn insert(&mut self, id: K, value: V) -> Option<V> {
        self.0.insert(id, value)
    }

    /// Takes the value under `id` out.
    pub fn remove(&mut self, id: K) -> Option<V> {
        self.0.remove(&id)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All ids in ascending order; costs a sort.
    pub fn sorted_ids(&self) -> Vec<K> {
        let mut ids: Vec<K> = self.0.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}
