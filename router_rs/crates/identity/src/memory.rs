//! What is remembered of one conversation, as text: another process recognises its next request by it.
//!
//! Only the last turn is in it, as the index holds it. The numbers are hashes that another release may compute
//! otherwise: its text is not taken, and the trajectory is known by its name alone.

use heddle_wire::Unit;
use serde::{Deserialize, Serialize};

use crate::attempt::Attempt;
use crate::book::{Book, name_of};
use crate::conversation::{Conversation, Turn, TurnState};
use crate::history::History;
use crate::index::{MAX_ANSWERS, MAX_EVIDENCE};

/// Lists of a text are cut to this: it comes from outside of the process.
const MAX_LIST: usize = MAX_ANSWERS + MAX_EVIDENCE;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Memory {
    release: String,
    opening: Option<u64>,
    unit: u8,
    length: usize,
    hash: u64,
    head: u64,
    block: u64,
    step: u64,
    /// The turn is answered; else its attempt ended with the process.
    done: bool,
    shows: Vec<u64>,
    answers: Vec<u64>,
    lengths: Vec<usize>,
    evidence: Vec<u64>,
    anchors: Vec<u64>,
}

impl Memory {
    /// Of a text of this release; none for any other.
    pub fn read(text: &str) -> Option<Self> {
        let found: Self = serde_json::from_str(text).ok()?;
        let lists = [
            &found.shows,
            &found.answers,
            &found.evidence,
            &found.anchors,
        ];
        let fits = lists.iter().all(|list| list.len() <= MAX_LIST)
            && found.lengths.len() <= MAX_LIST
            && unit_of(found.unit).is_some();
        (fits && found.release == release()).then_some(found)
    }

    /// Puts it into a conversation that is not filed yet.
    pub fn fill(self, conversation: &mut Conversation) {
        let Some(unit) = unit_of(self.unit) else {
            return;
        };
        let history = History {
            unit,
            length: self.length,
            hash: self.hash,
            head: self.head,
            block: self.block,
        };
        let mut turn = Turn::new(history, self.step, Attempt::Unmarked);
        turn.state = if self.done {
            TurnState::Done
        } else {
            TurnState::Broken
        };
        turn.changed_at = conversation.last_seen;
        turn.shows = self.shows;
        turn.filed = self.answers;
        turn.lengths = self.lengths;
        conversation.opening = self.opening;
        // The step that was under way keeps its number: its repeat is the same step.
        conversation.steps = conversation.steps.max(self.step.saturating_add(1));
        conversation.turns.push(turn);
        conversation.evidence = self.evidence;
        conversation.anchors = self.anchors;
    }
}

impl Book {
    /// What [`Past::memory`](crate::Past::memory) takes; none for a trajectory that is not kept or that nothing is
    /// recognised by.
    pub fn memory(&self, tenant: &str, trajectory_id: &str) -> Option<String> {
        let id = self.by_name.get(&name_of(tenant, trajectory_id))?;
        let conversation = self.conversations.get(id)?;
        let turn = conversation.turn()?;
        let memory = Memory {
            release: release().to_owned(),
            opening: conversation.opening,
            unit: number_of(turn.history.unit)?,
            length: turn.history.length,
            hash: turn.history.hash,
            head: turn.history.head,
            block: turn.history.block,
            step: turn.step,
            done: turn.state == TurnState::Done,
            shows: turn.shows.clone(),
            answers: turn.filed.clone(),
            lengths: turn.lengths.clone(),
            evidence: conversation.evidence.clone(),
            anchors: conversation.anchors.clone(),
        };
        serde_json::to_string(&memory).ok()
    }
}

fn release() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn number_of(unit: Unit) -> Option<u8> {
    match unit {
        Unit::Messages => Some(0),
        Unit::Bytes => Some(1),
        Unit::Tokens => Some(2),
        Unit::Opaque => None,
    }
}

fn unit_of(number: u8) -> Option<Unit> {
    [Unit::Messages, Unit::Bytes, Unit::Tokens]
        .into_iter()
        .nth(number.into())
}
