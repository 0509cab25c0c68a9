//! Finds the conversation that an untagged request continues, from the hashes of its history.
//!
//! The rules, in order, within one tenant and model. The first that fires decides; it names the source.
//!
//! * history-retry: the same history as a turn that failed, and the SDK says it tries again
//! * history: the history of a known last turn, then its answer, then more; or the id of that answer, where the
//!   worker keeps it (`previous_response_id`). Of several conversations with that
//!   history (samples of one prompt) it is the one that gave this answer
//! * history-rewritten, history-edited: the history that a sibling has come to from where this one waits
//! * history-retry: the same history as a turn that runs or is done, and the SDK says it tries again; or as one
//!   that failed
//! * history-drifted: a last answer in its place, after another system prompt (some change with every call)
//! * history-retry: the same history as a turn that siblings who answer alike have left behind
//! * history-rewritten: the same system prompt, and the last answer or a tool call of one conversation: compacted
//! * history-summary: a line that starts as a last answer did: compacted by the model's own summary. Where that line is the
//!   answer in its place the client only added to it: history-edited, or after another system prompt history-drifted
//! * history-retry: the same history as a turn that is done, past the opening: sampled once more
//! * history-rewritten: an earlier answer of one conversation: rolled back, or compacted further
//! * history-edited: a history that someone waits at, then an answer that nobody gave: the client changed it
//! * history-opening: the opening of a single conversation that waits, then something else: compacted without a
//!   trace
//! * history-new: none of these. A known opening alone is a new sample of the prompt, never the old conversation

use heddle_wire::{Scan, Unit};

use crate::attempt::Attempt;
use crate::conversation::{Conversation, Id, Kind};
use crate::evidence;
use crate::history::History;
use crate::holders::LinkedMap;
use crate::index::{Index, MAX_SHARED, Standing};
use crate::prompts;
use crate::repeats;

/// Of those that have come to one history, how many are asked where they came from.
const MAX_AHEAD: usize = 4;

/// All that the book holds, in the order last seen.
pub(crate) type Conversations = LinkedMap<Id, Conversation>;

/// The rule that fired, and what it says.
pub(crate) struct Match {
    pub source: &'static str,
    pub kind: Kind,
    pub id: Id,
}

impl Match {
    pub fn new(source: &'static str, kind: Kind, id: Id) -> Self {
        Self { source, kind, id }
    }
}

/// An untagged request, and what is known.
pub(crate) struct Seen<'a> {
    pub index: &'a Index,
    pub conversations: &'a Conversations,
    pub scan: &'a Scan,
    pub body: &'a [u8],
    pub scope: u64,
    pub history: History,
    pub attempt: Attempt,
    /// Monotonic seconds.
    pub received_at: f64,
}

impl<'a> Seen<'a> {
    /// The conversation; the index names none that is not kept.
    pub fn get(&self, id: Id) -> Option<&'a Conversation> {
        self.conversations.get(&id)
    }

    /// Whether it waits for its next request.
    pub fn waits(&self, id: Id) -> bool {
        self.get(id).is_some_and(Conversation::waits)
    }

    /// A repeat of its last turn.
    pub fn repeat_of(&self, id: Id) -> Option<Match> {
        let step = self.get(id)?.turn()?.step;
        Some(Match::new("history-retry", Kind::Repeat(step), id))
    }
}

/// `None` for a new conversation.
pub(crate) fn find(seen: &Seen<'_>) -> Option<Match> {
    if seen.history.unit == Unit::Opaque {
        return None;
    }
    let same = seen.index.at(seen.scope, &seen.history);
    if seen.attempt.is_repeat()
        && let Some(failed) = same.and_then(|same| repeats::marked_failure(seen, same))
    {
        return seen.repeat_of(failed);
    }
    if seen.history.unit != Unit::Messages {
        return prompts::find(seen, same);
    }
    let mut before = None;
    if let Some((prefix, answer)) = seen.scan.last_answer() {
        // Nearly every request ends here: one that goes on where its conversation stands.
        let holders = seen.index.after(seen.scope, Unit::Messages, prefix, answer);
        if let Some(exact) = holders.first() {
            return Some(Match::new("history", Kind::Next, exact));
        }
        before = seen.index.at_prefix(seen.scope, Unit::Messages, prefix);
    }
    if let Some(same) = same {
        let found = beside(seen, same)
            .or_else(|| repeats::repeated(seen, same).and_then(|id| seen.repeat_of(id)));
        if found.is_some() {
            return found;
        }
    }
    if seen.index.is_opening(seen.scope, &seen.history) {
        // A new sample, whatever a sibling's answer quotes of its prompt.
        return None;
    }
    evidence::find(seen, same, before)
}

/// One of `same` came to this history from where a sibling that answers alike still waits: it is that one's next
/// step, whoever repeats it. As where the history shows the answer, it comes before any repeat; for once all
/// siblings have come here, those that are too many can only be repeats, but one that is left behind stays so.
fn beside(seen: &Seen<'_>, same: &Standing) -> Option<Match> {
    for ahead in same.all().take(MAX_AHEAD).filter_map(|id| seen.get(id)) {
        let Some(before) = ahead.turns.len().checked_sub(2).map(|at| &ahead.turns[at]) else {
            continue;
        };
        let history = before.history;
        for &shown in &before.shows {
            let holders = seen
                .index
                .after(ahead.scope, history.unit, history.hash, shown);
            let Some(id) = holders.iter().take(MAX_SHARED).find(|id| seen.waits(*id)) else {
                continue;
            };
            let rewritten = seen
                .get(id)
                .is_some_and(|known| known.segment < ahead.segment);
            return Some(if rewritten {
                Match::new("history-rewritten", Kind::Rewritten, id)
            } else {
                Match::new("history-edited", Kind::Next, id)
            });
        }
    }
    None
}
