//! A worker's side of a KV transfer. The KV that is sent stays locked until the transfer is over, and known after it, as
//! old as its last step, until its room is needed: so it is in SGLang. Room for what is received is set aside before
//! anything is sent.

use super::Engine;
use crate::kv::{Hold, Path};

impl Engine {
    /// Locks what is known of the first `tokens` of a path.
    pub fn begin_sending(&mut self, now: f64, path: &Path, tokens: u64) -> Hold {
        self.advance(now);
        let hold = self.pool.open_to_send(path, tokens);
        self.disturb();
        hold
    }

    /// Unlocks it.
    pub fn end_sending(&mut self, now: f64, path: &Path, hold: Hold) {
        self.advance(now);
        self.pool.close(path, hold, None);
        self.disturb();
    }

    /// Sets room aside for the first `tokens` of a path; none without room.
    pub fn begin_receiving(&mut self, now: f64, path: &Path, tokens: u64) -> Option<Hold> {
        self.advance(now);
        let hold = self.pool.reserve(path, tokens);
        self.disturb();
        hold
    }

    /// Takes in the first `landed` tokens of a path, or gives the room back.
    pub fn end_receiving(&mut self, now: f64, path: &Path, hold: Hold, landed: Option<u64>) {
        self.advance(now);
        self.pool.close(path, hold, landed);
        self.disturb();
    }
}
