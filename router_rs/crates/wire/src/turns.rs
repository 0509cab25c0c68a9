//! The history of a request whose system prompt stands apart from its messages.

use crate::hash::{self, MessageParts};
use crate::role::Role;
use crate::scan::{MAX_HISTORY, Scan};

/// Starts the chain of a history that begins with a stored answer.
pub const AFTER_STORED: u64 = 0x7374_6F72;
/// Hash of each prefix of a history, which may begin with a stored answer.
pub fn chain(messages: &[u64], stored: Option<u64>) -> Vec<u64> {
    let seed = stored.map_or(0, |stored| hash::link(AFTER_STORED, stored));
    let links = messages.iter().scan(seed, |chain, message| {
        *chain = hash::link(*chain, *message);
        Some(*chain)
    });
    links.collect()
}

/// The role and its markers cost a template a few tokens.
const MARKERS: usize = 16;

/// What `messages` or `input` came to.
#[derive(Default)]
pub struct Turns {
    hashes: Vec<u64>,
    roles: Vec<Role>,
    pub call_ids: Vec<u64>,
    text_bytes: usize,
    too_long: bool,
    /// The system prompt, as a message that comes first: its hash, and its bytes.
    pub system: Option<(u64, usize)>,
}

impl Turns {
    /// Forgets the messages: the member came a second time.
    pub fn clear(&mut self) {
        self.hashes.clear();
        self.roles.clear();
        self.call_ids.clear();
        self.text_bytes = 0;
        self.too_long = false;
    }

    pub fn push(&mut self, role: Role, hash: u64, text_bytes: usize) {
        self.text_bytes += text_bytes + MARKERS;
        self.too_long |= self.roles.len() == MAX_HISTORY || self.call_ids.len() > MAX_HISTORY;
        if self.too_long {
            self.hashes.clear();
            self.roles.clear();
            self.call_ids.clear();
            return;
        }
        self.hashes.push(hash);
        self.roles.push(role);
    }

    /// A text that stands for the system prompt.
    pub fn set_system(&mut self, text: &[u8]) {
        let message = MessageParts {
            role: hash::bytes(b"system"),
            text: hash::bytes(text),
            ..MessageParts::default()
        };
        self.system = Some((message.digest(), text.len()));
    }

    /// Puts the history into `scan`; answers the bytes of text in it. `stored` is the hash of the id of the answer
    /// that it goes on from.
    pub fn move_to(self, scan: &mut Scan) -> usize {
        let mut text_bytes = self.text_bytes;
        if let Some((hash, length)) = self.system {
            if !self.too_long {
                scan.message_hashes.push(hash);
                scan.roles.push(Role::System);
            }
            text_bytes += length + MARKERS;
        }
        scan.message_hashes.extend(self.hashes);
        scan.roles.extend(self.roles);
        scan.call_ids = self.call_ids;
        // So that a request that goes on from an earlier answer is still recognised.
        scan.call_ids.extend(scan.stored());
        scan.chain = chain(&scan.message_hashes, scan.stored());
        text_bytes
    }
}
