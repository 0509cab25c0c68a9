//! What happens to the turns of one conversation, in it and in the index.

use heddle_wire::{Answer, Unit, hash};

use crate::claim::Request;
use crate::conversation::{Conversation, Id, Kind, RECENT_TURNS, Turn, TurnState};
use crate::history::History;
use crate::index::{Index, MAX_ANSWERS, MAX_EVIDENCE};

/// Hashes kept of a turn's answers and call ids, those of repeats included.
const MAX_SHOWN: usize = 2 * MAX_ANSWERS;

/// What a request is to the trajectory it names.
pub(crate) fn place(known: &Conversation, request: &Request<'_>, history: &History) -> Kind {
    let mut seen_before = false;
    for turn in known
        .turns
        .iter()
        .rev()
        .filter(|turn| turn.history == *history)
    {
        seen_before = true;
        if request.attempt.is_repeat() || turn.state == TurnState::Broken {
            return Kind::Repeat(turn.step);
        }
    }
    if seen_before || history.unit == Unit::Opaque {
        // The same request once more, on purpose: parallel calls, or another sample.
        return Kind::Next;
    }
    if let Some(stored) = request.scan.stored() {
        // It says which answer it goes on from; a trajectory's last one is where it stands.
        let mut turns = known.turns.iter().rev();
        let place = turns.position(|turn| turn.shows.contains(&stored));
        return match place {
            Some(0) | None => Kind::Next,
            Some(_) => Kind::Rewritten,
        };
    }
    let mut beside = true;
    for before in known.turns.iter().map(|turn| turn.history) {
        if before.unit != history.unit {
            continue;
        }
        if before.length < history.length
            && request.scan.prefix_hash(before.length) == Some(before.hash)
        {
            return Kind::Next;
        }
        beside &= before.head != history.head;
    }
    // Another system prompt: a side call of the same agent (a title, a check), not a new history.
    if beside { Kind::Next } else { Kind::Rewritten }
}

/// The conversation's next step begins.
pub(crate) fn begin_turn(index: &mut Index, id: Id, conversation: &mut Conversation, turn: Turn) {
    conversation.steps += 1;
    if conversation.known {
        index.turn_left(id, conversation);
    }
    if conversation.turns.len() >= RECENT_TURNS {
        conversation.turns.remove(0);
    }
    conversation.turns.push(turn);
    if conversation.known {
        index.turn_begun(id, conversation);
    } else {
        index.add(id, conversation);
    }
}

/// The turn of this step stands so from now on.
pub(crate) fn move_turn(
    index: &mut Index,
    id: Id,
    conversation: &mut Conversation,
    step: u64,
    state: TurnState,
    now: f64,
) {
    let known = conversation.known;
    let is_last = conversation.turn().is_some_and(|turn| turn.step == step);
    let Some(turn) = conversation.turn_of(step) else {
        return;
    };
    let before = turn.state;
    turn.state = state;
    turn.changed_at = now;
    if known && is_last && state != before {
        index.turn_moved(id, conversation, before);
    }
}

/// Attempts at one turn may answer differently, and the client may go on with either: all are kept.
pub(crate) fn learn(
    index: &mut Index,
    id: Id,
    conversation: &mut Conversation,
    step: u64,
    unit: Unit,
    answer: &Answer,
) {
    if !conversation.known {
        return;
    }
    let is_last = conversation.turn().is_some_and(|turn| turn.step == step);
    if unit != Unit::Messages {
        let spans = match unit {
            Unit::Tokens => &answer.token_spans,
            _ => &answer.text_spans,
        };
        for &(length, hash) in spans.iter().filter(|(length, _)| is_last && *length > 0) {
            index.answered(id, conversation, length, hash);
        }
        return;
    }
    let hashes = &answer.answer_hashes;
    let stored = answer
        .response_id
        .as_ref()
        .map(|response| hash::bytes(response.as_bytes()));
    let shows = || {
        let named = hashes.iter().chain(&answer.call_ids).copied();
        named.chain(stored).take(MAX_ANSWERS)
    };
    if let Some(turn) = conversation.turn_of(step) {
        for shown in shows() {
            if turn.shows.len() < MAX_SHOWN && !turn.shows.contains(&shown) {
                turn.shows.push(shown);
            }
        }
    }
    index.showed(id, conversation, shows().take(MAX_EVIDENCE));
    if is_last {
        for &hash in hashes {
            index.answered(id, conversation, 0, hash);
        }
        if let Some(stored) = stored {
            index.stored(id, conversation, stored);
        }
        index.anchored(id, conversation, &answer.anchors);
    }
}
