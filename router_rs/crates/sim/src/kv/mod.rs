//! The KV pool of one worker: tokens of known prefixes, tokens of requests in a batch, and the rest.
//!
//! A prefix tree in which only two things are ever shared: the common prompt of a group, and what a trajectory has said
//! so far. So it is a forest of [`Run`]s: a group's prompt with its trajectories' continuations behind it. After SGLang's
//! radix cache (and `heddle_shim.emulator.radix`): a locked run is never evicted, eviction takes the last segment that
//! was inserted whole, least recently used first. Pages are single tokens.
//!
//! Invariants ([`Pool::audit`]): known + private + free = total; a run has a continuation only while it is whole; only
//! unlocked tokens without a continuation are evicted.

mod moving;
mod path;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use path::Owner;
pub use path::Path;

/// A stretch of known tokens, in the pieces in which it was inserted.
#[derive(Debug, Default)]
struct Run {
    segments: Vec<u64>,
    tokens: u64,
    last_used: u64,
    /// Requests that use it.
    locks: u32,
    /// The run that it continues.
    behind: Option<Owner>,
    /// Runs with tokens behind it.
    continuations: u32,
    /// The one of them that was inserted in one piece with this run's end, and that no other path has been told from
    /// since: one node of the prefix tree, which is evicted whole.
    joined: Option<Owner>,
    offered: bool,
}

/// What one request holds: the first `known` tokens of its path, locked, and `private` ones behind them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hold {
    /// Tokens in the tree.
    pub known: u64,
    /// Tokens of its own.
    pub private: u64,
    /// Tokens up to which the runs of its path are locked.
    locked: u64,
}

/// The pool.
#[derive(Debug)]
pub struct Pool {
    /// Capacity in tokens.
    pub total: u64,
    private: u64,
    known: u64,
    evictable: u64,
    evicted: u64,
    runs: BTreeMap<Owner, Run>,
    /// Runs that may be evicted, by last use; entries are checked when they are taken out.
    offers: BinaryHeap<Reverse<(u64, u64, Owner)>>,
    offers_made: u64,
    clock: u64,
}

impl Pool {
    /// An empty pool.
    pub fn new(total: u64) -> Self {
        Self {
            total,
            private: 0,
            known: 0,
            evictable: 0,
            evicted: 0,
            runs: BTreeMap::new(),
            offers: BinaryHeap::new(),
            offers_made: 0,
            clock: 0,
        }
    }

    /// Tokens held by nobody.
    pub fn free(&self) -> u64 {
        self.total - self.known - self.private
    }

    /// Free tokens and those that eviction could free.
    pub fn obtainable(&self) -> u64 {
        self.free() + self.evictable
    }

    /// Tokens that requests in a batch need (SGLang's `num_used_tokens`).
    pub fn used(&self) -> u64 {
        self.private + self.known - self.evictable
    }

    /// Tokens evicted since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Tokens of the path that are known, at most `length`. Marks them as used now.
    pub fn matched(&mut self, path: &Path, length: u64) -> u64 {
        self.clock += 1;
        let mut found = 0;
        for part in path.parts_within(length) {
            let Some(run) = self.runs.get_mut(&part.owner) else {
                break;
            };
            run.last_used = self.clock;
            found = part.start + run.tokens;
            if run.tokens < part.size {
                break;
            }
        }
        self.tell_apart(path, length);
        found.min(length)
    }

    /// As [`Pool::matched`], and nothing is marked.
    fn known_of(&self, path: &Path, length: u64) -> u64 {
        let mut found = 0;
        for part in path.parts_within(length) {
            let Some(run) = self.runs.get(&part.owner) else {
                break;
            };
            found = part.start + run.tokens;
            if run.tokens < part.size {
                break;
            }
        }
        found.min(length)
    }

    /// Splits nodes of the tree where a path of `length` tokens leaves them.
    fn tell_apart(&mut self, path: &Path, length: u64) {
        let mut parts = path.parts_within(length).peekable();
        while let Some(part) = parts.next() {
            let next = parts.peek().map(|next| next.owner);
            if let Some(run) = self.runs.get_mut(&part.owner)
                && run.joined != next
            {
                run.joined = None;
            }
        }
    }

    /// Locks what is known of a path for a request that will compute the rest of `length` tokens.
    pub fn open(&mut self, path: &Path, length: u64) -> Hold {
        let known = self.matched(path, length);
        self.lock(path, 0, known);
        Hold {
            known,
            private: 0,
            locked: known,
        }
    }

    /// Locks the runs that tokens `from` to `to` reach into and that are not locked up to `from` already.
    fn lock(&mut self, path: &Path, from: u64, to: u64) {
        let mut behind = None;
        for part in path.parts_within(to) {
            if from <= part.start {
                let run = self.runs.entry(part.owner).or_default();
                if run.locks == 0 {
                    self.evictable -= run.tokens;
                }
                run.locks += 1;
                run.behind = behind;
            }
            behind = Some(part.owner);
        }
    }

    /// Makes room for `length` tokens of a request; false, and nothing changed, without room.
    pub fn grow(&mut self, hold: &mut Hold, length: u64) -> bool {
        let wanted = length.saturating_sub(hold.known + hold.private);
        if wanted > self.obtainable() {
            return false;
        }
        let lacking = wanted.saturating_sub(self.free());
        if lacking > 0 {
            self.evict(lacking);
        }
        hold.private += wanted;
        self.private += wanted;
        true
    }

    /// Puts a request's first `length` tokens into the tree and keeps them locked. What another request published
    /// meanwhile is a duplicate and is freed.
    pub fn publish(&mut self, path: &Path, hold: &mut Hold, length: u64) {
        self.clock += 1;
        self.lock(path, hold.locked, length);
        self.tell_apart(path, length);
        let mut before: Option<Owner> = None;
        for part in path.parts_within(length) {
            let added = self.extend(part.owner, (length - part.start).min(part.size));
            if let Some(run) = before.and_then(|before| self.runs.get_mut(&before)) {
                run.joined = added.then_some(part.owner);
            }
            before = added.then_some(part.owner);
        }
        self.private -= hold.private;
        *hold = Hold {
            known: length,
            private: 0,
            locked: hold.locked.max(length),
        };
    }

    /// Ends a request's hold. With `keep`, that many tokens of its path go into the tree first; without, what is
    /// private is lost.
    pub fn close(&mut self, path: &Path, mut hold: Hold, keep: Option<u64>) {
        if let Some(length) = keep {
            self.publish(path, &mut hold, length);
        }
        self.private -= hold.private;
        for part in path
            .parts_within(hold.locked)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            if let Some(run) = self.runs.get_mut(&part.owner) {
                run.locks -= 1;
                if run.locks == 0 {
                    self.evictable += run.tokens;
                    self.offer(part.owner);
                }
            }
        }
    }

    /// Lengthens a locked run to `tokens`; false when it has as many already.
    fn extend(&mut self, owner: Owner, tokens: u64) -> bool {
        let run = self.runs.entry(owner).or_default();
        run.last_used = self.clock;
        let added = tokens.saturating_sub(run.tokens);
        if added == 0 {
            return false;
        }
        let first = run.tokens == 0;
        run.segments.push(added);
        run.tokens += added;
        self.known += added;
        if let Some(before) = run.behind.filter(|_| first)
            && let Some(run) = self.runs.get_mut(&before)
        {
            run.continuations += 1;
        }
        true
    }

    /// Puts an unlocked run without a continuation up for eviction, or forgets it if it is empty.
    fn offer(&mut self, owner: Owner) {
        let Some(run) = self.runs.get_mut(&owner) else {
            return;
        };
        if run.locks > 0 || run.continuations > 0 || run.offered {
            return;
        }
        if run.tokens == 0 {
            self.runs.remove(&owner);
            return;
        }
        run.offered = true;
        self.offers_made += 1;
        let offer = (run.last_used, self.offers_made, owner);
        self.offers.push(Reverse(offer));
    }

    /// Frees at least `wanted` tokens; that many are known to be evictable.
    fn evict(&mut self, wanted: u64) {
        let mut freed = 0;
        while freed < wanted {
            let Some(Reverse((used, _, owner))) = self.offers.pop() else {
                return;
            };
            let Some(run) = self.runs.get_mut(&owner) else {
                continue;
            };
            run.offered = false;
            if run.locks > 0 || run.continuations > 0 {
                // It is offered again when it becomes free.
                continue;
            }
            if run.last_used != used || run.tokens == 0 {
                // Used since, or emptied since by other ways: offered anew, or forgotten.
                self.offer(owner);
                continue;
            }
            freed += self.evict_node(owner);
        }
    }

    /// Evicts the last segment of a run, and what is one node with it.
    fn evict_node(&mut self, owner: Owner) -> u64 {
        let Some(run) = self.runs.get_mut(&owner) else {
            return 0;
        };
        let mut freed = run.segments.pop().unwrap_or(0);
        run.tokens -= freed;
        self.known -= freed;
        self.evictable -= freed;
        self.evicted += freed;
        let behind = run.behind.filter(|_| run.tokens == 0);
        self.offer(owner);
        if let Some(before) = behind
            && let Some(run) = self.runs.get_mut(&before)
        {
            run.continuations -= 1;
            if run.joined == Some(owner) {
                run.joined = None;
                freed += self.evict_node(before);
            } else {
                self.offer(before);
            }
        }
        freed
    }

    /// Broken invariants, empty when all is well.
    pub fn audit(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let (mut known, mut evictable) = (0, 0);
        let mut continuations: BTreeMap<Owner, u32> = BTreeMap::new();
        for (owner, run) in &self.runs {
            known += run.tokens;
            evictable += if run.locks == 0 { run.tokens } else { 0 };
            if run.segments.iter().sum::<u64>() != run.tokens {
                faults.push(format!("{owner:?}: segments do not add up to its tokens"));
            }
            if run.locks == 0 && run.continuations == 0 && !run.offered {
                faults.push(format!("{owner:?}: free, but not up for eviction"));
            }
            if let Some(before) = run.behind.filter(|_| run.tokens > 0) {
                *continuations.entry(before).or_default() += 1;
            }
        }
        for (owner, run) in &self.runs {
            if continuations.get(owner).copied().unwrap_or(0) != run.continuations {
                faults.push(format!("{owner:?}: continuations miscounted"));
            }
        }
        if continuations
            .keys()
            .any(|owner| !self.runs.contains_key(owner))
        {
            faults.push("a continuation stands behind nothing".into());
        }
        if (known, evictable) != (self.known, self.evictable) {
            let (kept, free) = (self.known, self.evictable);
            faults.push(format!(
                "counted {known}/{evictable} tokens, kept {kept}/{free}"
            ));
        }
        if self.known + self.private > self.total {
            faults.push("more tokens than the pool holds".into());
        }
        faults
    }
}

#[cfg(test)]
mod tests;
