//! KV that leaves for another worker, and KV that comes from one.

use super::{Hold, Path, Pool};

impl Pool {
    /// Sets room aside for the first `tokens` of a path beyond what is known of it; none, and nothing changed, without
    /// room. What requests need is never touched.
    pub fn reserve(&mut self, path: &Path, tokens: u64) -> Option<Hold> {
        let mut hold = self.open(path, tokens);
        if self.grow(&mut hold, tokens) {
            return Some(hold);
        }
        self.close(path, hold, None);
        None
    }

    /// Locks what is known of the first `length` tokens of a path for one who reads it, and makes it no younger.
    pub fn open_to_send(&mut self, path: &Path, length: u64) -> Hold {
        let known = self.known_of(path, length);
        self.tell_apart(path, length);
        self.lock(path, 0, known);
        Hold {
            known,
            private: 0,
            locked: known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(trajectory: u64) -> Path {
        Path {
            group: 0,
            shared: 100,
            trajectory,
        }
    }

    #[test]
    fn what_is_moved_is_known_at_the_target_and_stays_at_the_source_until_its_room_is_needed() {
        let (mut source, mut target) = (Pool::new(1000), Pool::new(1000));
        let mut hold = source.open(&path(1), 149);
        assert!(source.grow(&mut hold, 150));
        source.close(&path(1), hold, Some(150));
        let sent = source.open_to_send(&path(1), 150);
        assert_eq!((sent.known, source.obtainable()), (150, 850));
        let received = target.reserve(&path(1), 150).unwrap();
        assert_eq!((received.known, target.free()), (0, 850));
        target.close(&path(1), received, Some(150));
        source.close(&path(1), sent, None);
        assert_eq!(target.matched(&path(1), 200), 150);
        assert_eq!(source.matched(&path(1), 200), 150);
        assert_eq!((source.free(), source.obtainable()), (850, 1000));
        assert_eq!((source.audit(), target.audit()), (vec![], vec![]));
    }

    #[test]
    fn what_was_sent_is_as_old_as_its_last_step() {
        let mut pool = Pool::new(400);
        for trajectory in [1, 2] {
            let mut hold = pool.open(&path(trajectory), 149);
            assert!(pool.grow(&mut hold, 150));
            pool.close(&path(trajectory), hold, Some(150));
        }
        let sent = pool.open_to_send(&path(1), 150);
        pool.close(&path(1), sent, None);
        let mut used = pool.open(&path(3), 330);
        assert_eq!(used.known, 100);
        assert!(pool.grow(&mut used, 350));
        pool.close(&path(3), used, None);
        let left = [1, 2].map(|trajectory| pool.matched(&path(trajectory), 150));
        assert_eq!((left, pool.audit()), ([100, 150], vec![]));
    }

    #[test]
    fn room_is_made_of_what_nobody_uses_and_of_nothing_else() {
        let mut pool = Pool::new(200);
        let mut used = pool.open(&path(1), 149);
        assert!(pool.grow(&mut used, 150));
        assert_eq!(pool.reserve(&path(2), 60), None);
        assert_eq!(pool.free(), 50);
        pool.close(&path(1), used, Some(150));
        let held = pool.reserve(&path(2), 160).unwrap();
        assert_eq!(held.known, 100, "the prompt was there");
        pool.close(&path(2), held, None);
        assert_eq!(pool.audit(), Vec::<String>::new());
    }
}
