//! A request's history in a few numbers.

use heddle_wire::{Scan, Unit};

/// Two requests with equal histories show the same conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// What `length` counts.
    pub unit: Unit,
    /// Messages, bytes or tokens.
    pub length: usize,
    /// Of all of it.
    pub hash: u64,
    /// [`Scan::head`].
    pub head: u64,
    /// Hash of the whole blocks of a prompt, 0 in chat.
    pub block: u64,
}

impl History {
    /// The history that `scan` read.
    pub fn of(scan: &Scan) -> Self {
        let unit = scan.unit();
        let length = scan.history_length();
        let whole = scan.prefix_hash(length);
        // The last link covers all whole blocks; of a batch, everything.
        let block = match unit {
            Unit::Messages => 0,
            _ => scan.chain.last().copied().unwrap_or_default(),
        };
        Self {
            unit,
            length,
            hash: whole.unwrap_or(block),
            head: scan.head(),
            block,
        }
    }

    /// Its key within a tenant and model.
    pub(crate) fn key(&self, scope: u64) -> u64 {
        prefix_key(scope, self.unit, self.hash)
    }

    /// The key of the whole blocks with the hash `blocks`, apart from whole-prompt keys.
    pub(crate) fn block_key(&self, scope: u64, blocks: u64) -> u64 {
        prefix_key(scope, self.unit, blocks) ^ 0x27D4_EB2F_1656_67C5
    }
}

/// The key of a history of this unit and hash.
pub(crate) fn prefix_key(scope: u64, unit: Unit, hash: u64) -> u64 {
    let salt = match unit {
        Unit::Messages | Unit::Opaque => 0,
        Unit::Bytes => 0x9E37_79B9_7F4A_7C15,
        Unit::Tokens => 0xC2B2_AE3D_27D4_EB4F,
    };
    scope ^ salt ^ hash
}
