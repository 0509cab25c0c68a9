//! KV that leaves for another worker, and KV that comes from one.

use super::path::Owner;
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

    /// Forgets what a trajectory alone has of its path, unless a request uses it.
    pub fn give_up(&mut self, path: &Path) {
        let owner = Owner::Trajectory(path.trajectory);
        let Some(run) = self.runs.get(&owner).filter(|run| run.locks == 0) else {
            return;
        };
        // The prompt stays: siblings use it.
        if let Some(before) = run.behind
            && let Some(before) = self.runs.get_mut(&before)
        {
            before.joined = None;
        }
        let evicted = self.evicted;
        while self.runs.get(&owner).is_some_and(|run| run.tokens > 0) {
            self.evict_node(owner);
        }
        self.evicted = evicted;
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
    fn what_is_moved_is_known_at_the_target_and_gone_from_the_source() {
        let (mut source, mut target) = (Pool::new(1000), Pool::new(1000));
        let mut hold = source.open(&path(1), 149);
        assert!(source.grow(&mut hold, 150));
        source.close(&path(1), hold, Some(150));
        let sent = source.open(&path(1), 150);
        assert_eq!(sent.known, 150);
        let received = target.reserve(&path(1), 150).unwrap();
        assert_eq!((received.known, target.free()), (0, 850));
        target.close(&path(1), received, Some(150));
        source.close(&path(1), sent, None);
        source.give_up(&path(1));
        assert_eq!(target.matched(&path(1), 200), 150);
        assert_eq!(
            source.matched(&path(1), 200),
            100,
            "the prompt is the group's"
        );
        assert_eq!((source.evicted(), source.free()), (0, 900));
        assert_eq!((source.audit(), target.audit()), (vec![], vec![]));
    }

    #[test]
    fn what_was_given_up_while_up_for_eviction_is_evicted_once() {
        let mut pool = Pool::new(400);
        for trajectory in [1, 2] {
            let mut hold = pool.open(&path(trajectory), 149);
            assert!(pool.grow(&mut hold, 150));
            pool.close(&path(trajectory), hold, Some(150));
        }
        pool.give_up(&path(1));
        let used = pool.open(&path(3), 350);
        assert_eq!(used.known, 100);
        let mut used = used;
        assert!(
            pool.grow(&mut used, 400),
            "of both, all but the prompt goes"
        );
        assert_eq!((pool.free(), pool.audit()), (0, vec![]));
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
