//! Known conversations, filed by what their next request will show.
//!
//! Invariants: of each known conversation the index holds its last turn, its opening and a bounded number of
//! evidence keys, and nothing else; what was put in is taken out again by [`Index::remove`]. Keys are 64-bit
//! hashes mixed with the scope (tenant and model): a collision is accepted, it misplaces one step.

use std::collections::{BTreeMap, HashMap};

use heddle_wire::{AFTER_STORED, Unit};

use crate::conversation::{Conversation, Id, Turn, TurnState};
use crate::history::{History, prefix_key};
use crate::holders::{BuildKeyHasher, Holders, LinkedMap};

/// Evidence kept of one conversation: about the last four steps.
pub(crate) const MAX_EVIDENCE: usize = 8;
/// Answers kept of one turn: its choices, and those of repeats.
pub(crate) const MAX_ANSWERS: usize = 32;
/// Conversations kept under one piece of evidence. More share it only when it is none at all ("OK.").
pub(crate) const MAX_SHARED: usize = 64;

type Table = HashMap<u64, Holders, BuildKeyHasher>;

/// The conversations whose last turn has one history, by how that turn stands. In each the one that has stood so
/// longest comes first.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub running: Holders,
    pub done: Holders,
    pub broken: Holders,
    /// Lengths of their answers, with how many have each; text dialects.
    pub lengths: LinkedMap<usize, usize>,
}

impl Standing {
    pub fn of(&self, state: TurnState) -> &Holders {
        match state {
            TurnState::Running => &self.running,
            TurnState::Done => &self.done,
            TurnState::Broken => &self.broken,
        }
    }

    fn of_mut(&mut self, state: TurnState) -> &mut Holders {
        match state {
            TurnState::Running => &mut self.running,
            TurnState::Done => &mut self.done,
            TurnState::Broken => &mut self.broken,
        }
    }

    /// Running, done and broken ones.
    pub fn all(&self) -> impl Iterator<Item = Id> + '_ {
        self.running
            .iter()
            .chain(self.done.iter())
            .chain(self.broken.iter())
    }

    fn is_empty(&self) -> bool {
        self.running.is_empty() && self.done.is_empty() && self.broken.is_empty()
    }
}

/// Look-ups take what a request shows, and its scope.
#[derive(Debug, Default)]
pub(crate) struct Index {
    by_history: HashMap<u64, Standing, BuildKeyHasher>,
    by_answer: Table,
    by_evidence: Table,
    by_anchor: Table,
    by_opening: Table,
    /// Text dialects: which lengths of known prompts end in a block, by the hash of all blocks before it.
    lengths: HashMap<u64, BTreeMap<usize, usize>, BuildKeyHasher>,
}

// ------------------------------------------------------------------------------------------- keeping it

impl Index {
    /// Takes in a conversation with its turn.
    pub fn add(&mut self, id: Id, conversation: &mut Conversation) {
        if let Some(opening) = conversation.opening {
            self.by_opening.entry(opening).or_default().add(id);
        }
        conversation.known = true;
        self.turn_begun(id, conversation);
    }

    /// Takes in a conversation of an earlier process with the keys it was filed under there.
    pub fn take_up(&mut self, id: Id, conversation: &mut Conversation) {
        self.add(id, conversation);
        let scope = conversation.scope;
        if let Some(turn) = conversation.turns.last() {
            for key in &turn.filed {
                self.by_answer.entry(*key).or_default().add(id);
            }
            if let Some(standing) = self.by_history.get_mut(&turn.history.key(scope)) {
                for length in &turn.lengths {
                    *standing.lengths.entry(*length).or_insert(0) += 1;
                }
            }
        }
        let (evidence, anchors) = (&mut self.by_evidence, &mut self.by_anchor);
        conversation
            .evidence
            .retain(|key| put_in(evidence, *key, id));
        conversation.anchors.retain(|key| put_in(anchors, *key, id));
    }

    /// Its last turn is another one now. Call [`turn_left`](Self::turn_left) before.
    pub fn turn_begun(&mut self, id: Id, conversation: &Conversation) {
        let Some(turn) = conversation.turn() else {
            return;
        };
        let (history, scope) = (turn.history, conversation.scope);
        if history.unit == Unit::Opaque {
            return;
        }
        let standing = self.by_history.entry(history.key(scope)).or_default();
        standing.of_mut(turn.state).add(id);
        if history.unit != Unit::Messages {
            let key = history.block_key(scope, history.block);
            *self
                .lengths
                .entry(key)
                .or_default()
                .entry(history.length)
                .or_default() += 1;
        }
    }

    /// Its last turn stood at `before` until now.
    pub fn turn_moved(&mut self, id: Id, conversation: &Conversation, before: TurnState) {
        let Some(turn) = conversation.turn() else {
            return;
        };
        if let Some(standing) = self
            .by_history
            .get_mut(&turn.history.key(conversation.scope))
            && turn.history.unit != Unit::Opaque
        {
            standing.of_mut(before).remove(id);
            standing.of_mut(turn.state).add(id);
        }
    }

    /// Its last turn is about to be replaced.
    pub fn turn_left(&mut self, id: Id, conversation: &mut Conversation) {
        let scope = conversation.scope;
        let Some(turn) = conversation.turns.last_mut() else {
            return;
        };
        let history = turn.history;
        if history.unit == Unit::Opaque {
            return;
        }
        let key = history.key(scope);
        if let Some(standing) = self.by_history.get_mut(&key) {
            standing.of_mut(turn.state).remove(id);
            for length in &turn.lengths {
                if let Some(count) = standing.lengths.get_mut(length) {
                    *count -= 1;
                    if *count == 0 {
                        standing.lengths.remove(length);
                    }
                }
            }
            if standing.is_empty() {
                self.by_history.remove(&key);
            }
        }
        for filed in &turn.filed {
            take_out(&mut self.by_answer, *filed, id);
        }
        turn.filed.clear();
        turn.lengths.clear();
        if history.unit != Unit::Messages {
            let block = history.block_key(scope, history.block);
            if let Some(lengths) = self.lengths.get_mut(&block) {
                if let Some(count) = lengths.get_mut(&history.length) {
                    *count -= 1;
                    if *count == 0 {
                        lengths.remove(&history.length);
                    }
                }
                if lengths.is_empty() {
                    self.lengths.remove(&block);
                }
            }
        }
    }

    /// Its last turn has this answer too: its length, which counts in the text dialects, and its hash.
    pub fn answered(&mut self, id: Id, conversation: &mut Conversation, length: usize, hash: u64) {
        let scope = conversation.scope;
        let Some(turn) = conversation.turns.last_mut() else {
            return;
        };
        if turn.history.unit == Unit::Opaque {
            return;
        }
        let history_key = turn.history.key(scope);
        if !file_answer(&mut self.by_answer, turn, history_key ^ hash, id) {
            return;
        }
        if turn.history.unit != Unit::Messages {
            turn.lengths.push(length);
            if let Some(standing) = self.by_history.get_mut(&history_key) {
                *standing.lengths.entry(length).or_insert(0) += 1;
            }
        }
    }

    /// The answer of its last turn is kept by its worker under an id with this hash: a request may name it.
    pub fn stored(&mut self, id: Id, conversation: &mut Conversation, hash: u64) {
        let key = prefix_key(conversation.scope, Unit::Messages, AFTER_STORED) ^ hash;
        if let Some(turn) = conversation.turns.last_mut() {
            file_answer(&mut self.by_answer, turn, key, id);
        }
    }

    /// It is known by these messages and call ids too.
    pub fn showed(
        &mut self,
        id: Id,
        conversation: &mut Conversation,
        hashes: impl Iterator<Item = u64>,
    ) {
        for key in hashes.map(|hash| hash ^ conversation.scope) {
            if !conversation.evidence.contains(&key) && put_in(&mut self.by_evidence, key, id) {
                conversation.evidence.push(key);
            }
        }
        let excess = conversation.evidence.len().saturating_sub(MAX_EVIDENCE);
        for key in conversation.evidence.drain(..excess) {
            take_out(&mut self.by_evidence, key, id);
        }
    }

    /// Its last answer has lines that start so; those of earlier answers no longer count.
    pub fn anchored(&mut self, id: Id, conversation: &mut Conversation, anchors: &[u64]) {
        for key in conversation.anchors.drain(..) {
            take_out(&mut self.by_anchor, key, id);
        }
        for anchor in anchors {
            let key = anchor ^ conversation.scope;
            if !conversation.anchors.contains(&key) && put_in(&mut self.by_anchor, key, id) {
                conversation.anchors.push(key);
            }
        }
    }

    /// Forgets all of it.
    pub fn remove(&mut self, id: Id, conversation: &mut Conversation) {
        self.turn_left(id, conversation);
        for key in conversation.evidence.drain(..) {
            take_out(&mut self.by_evidence, key, id);
        }
        for key in conversation.anchors.drain(..) {
            take_out(&mut self.by_anchor, key, id);
        }
        if let Some(opening) = conversation.opening {
            take_out(&mut self.by_opening, opening, id);
        }
        conversation.known = false;
    }

    /// Keys held.
    pub fn size(&self) -> usize {
        let tables = [
            &self.by_answer,
            &self.by_evidence,
            &self.by_anchor,
            &self.by_opening,
        ];
        let keys: usize = tables.iter().map(|table| table.len()).sum();
        keys + self.by_history.len() + self.lengths.len()
    }
}

// ------------------------------------------------------------------------------------------- looking up

impl Index {
    /// Whose last turn has this very history.
    pub fn at(&self, scope: u64, history: &History) -> Option<&Standing> {
        self.by_history.get(&history.key(scope))
    }

    /// Whose last turn has a history of this unit and hash.
    pub fn at_prefix(&self, scope: u64, unit: Unit, prefix: u64) -> Option<&Standing> {
        self.by_history.get(&prefix_key(scope, unit, prefix))
    }

    /// Whose last turn has that history and this answer, the one that has waited longest first.
    pub fn after(&self, scope: u64, unit: Unit, prefix: u64, answer: u64) -> &Holders {
        held(&self.by_answer, prefix_key(scope, unit, prefix) ^ answer)
    }

    /// Lengths of known prompts that begin with these whole blocks (their hash) and end in the next, the
    /// longest first.
    pub fn lengths_after(
        &self,
        scope: u64,
        history: &History,
        blocks: u64,
    ) -> impl Iterator<Item = usize> + '_ {
        let lengths = self.lengths.get(&history.block_key(scope, blocks));
        lengths
            .into_iter()
            .flat_map(|lengths| lengths.keys().rev().copied())
    }

    /// Who is known by this message or call id.
    pub fn with_evidence(&self, scope: u64, hash: u64) -> &Holders {
        held(&self.by_evidence, hash ^ scope)
    }

    /// Whether anybody's last answer has anchors.
    pub fn has_anchors(&self) -> bool {
        !self.by_anchor.is_empty()
    }

    /// Whose last answer has a line that starts so.
    pub fn with_anchor(&self, scope: u64, anchor: u64) -> &Holders {
        held(&self.by_anchor, anchor ^ scope)
    }

    /// Whether anybody began with this very history.
    pub fn is_opening(&self, scope: u64, history: &History) -> bool {
        self.by_opening.contains_key(&history.key(scope))
    }

    /// Who began with this opening.
    pub fn with_opening(&self, opening: u64) -> &Holders {
        held(&self.by_opening, opening)
    }
}

fn held(table: &Table, key: u64) -> &Holders {
    static NOBODY: Holders = Holders::None;
    table.get(&key).unwrap_or(&NOBODY)
}

/// False where the turn has this answer, or as many as are kept.
fn file_answer(table: &mut Table, turn: &mut Turn, key: u64, id: Id) -> bool {
    if turn.filed.len() >= MAX_ANSWERS || turn.filed.contains(&key) {
        return false;
    }
    turn.filed.push(key);
    table.entry(key).or_default().add(id);
    true
}

fn put_in(table: &mut Table, key: u64, id: Id) -> bool {
    let holders = table.entry(key).or_default();
    if holders.len() >= MAX_SHARED || holders.contains(id) {
        return false;
    }
    holders.add(id);
    true
}

fn take_out(table: &mut Table, key: u64, id: Id) {
    if let Some(holders) = table.get_mut(&key) {
        holders.remove(id);
        if holders.is_empty() {
            table.remove(&key);
        }
    }
}
