//! Conversations under one key, in the order in which they came.

use std::hash::{BuildHasherDefault, Hasher};

use hashlink::{LinkedHashMap, LinkedHashSet};

use crate::conversation::Id;

/// For keys that are hashes already, or numbers handed out by a counter.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
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

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

pub(crate) type BuildKeyHasher = BuildHasherDefault<KeyHasher>;
pub(crate) type LinkedMap<K, V> = LinkedHashMap<K, V, BuildKeyHasher>;
type LinkedSet<K> = LinkedHashSet<K, BuildKeyHasher>;

/// Nearly always one conversation, but thousands may share a key (a load test sends one prompt for ever), so
/// that nothing here is searched through.
#[derive(Debug, Default)]
pub(crate) enum Holders {
    #[default]
    None,
    One(Id),
    Many(Box<LinkedSet<Id>>),
}

impl Holders {
    /// Puts it last, unless it is in already.
    pub fn add(&mut self, id: Id) {
        match self {
            Self::None => *self = Self::One(id),
            Self::One(only) if *only == id => {}
            Self::One(only) => *self = Self::Many(Box::new([*only, id].into_iter().collect())),
            Self::Many(ids) => {
                // An insert of one that is in moves it to the end.
                if !ids.contains(&id) {
                    ids.insert(id);
                }
            }
        }
    }

    pub fn remove(&mut self, id: Id) {
        match self {
            Self::One(only) if *only == id => *self = Self::None,
            Self::Many(ids) => {
                ids.remove(&id);
                if ids.is_empty() {
                    *self = Self::None;
                }
            }
            _ => {}
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(ids) => ids.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub fn contains(&self, id: Id) -> bool {
        match self {
            Self::None => false,
            Self::One(only) => *only == id,
            Self::Many(ids) => ids.contains(&id),
        }
    }

    /// The one that came first.
    pub fn first(&self) -> Option<Id> {
        self.iter().next()
    }

    /// In the order in which they came.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Id> + '_ {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(only) => (Some(*only), None),
            Self::Many(ids) => (None, Some(ids.iter().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}
