//! The rules for chat histories that were changed: whose are these answers and tool calls?

use heddle_wire::{Role, Unit};

use crate::conversation::{Conversation, Id, Kind, Turn};
use crate::holders::{Holders, LinkedMap};
use crate::index::{MAX_SHARED, Standing};
use crate::matching::{Match, Seen};
use crate::repeats;

/// Evidence of a request that is looked up, newest first.
const MAX_LOOKUPS: usize = 24;
/// Openings are short: a system prompt and a task, or two.
const OPENING_LENGTHS: usize = 3;

/// What a chat request shows.
struct Shown<'a> {
    seen: &'a Seen<'a>,
    /// Whose history comes right before its last answer.
    before: Option<&'a Standing>,
    /// Hashes of its answers, then of its call ids, oldest first.
    hashes: Vec<u64>,
    /// The last answer's hash.
    last: Option<u64>,
    /// Openings that this history, being longer, may have begun with.
    openings: Vec<u64>,
}

impl<'a> Shown<'a> {
    fn new(seen: &'a Seen<'a>, before: Option<&'a Standing>) -> Self {
        let scan = seen.scan;
        let roles = scan.roles.iter().enumerate();
        let answers: Vec<usize> = roles
            .filter(|(_, role)| **role == Role::Assistant)
            .map(|(place, _)| place)
            .collect();
        let mut hashes: Vec<u64> = latest(&answers)
            .iter()
            .filter(|place| **place > 0)
            .map(|place| scan.message_hashes[*place])
            .collect();
        let last = hashes.last().copied();
        hashes.extend(latest(&scan.call_ids));
        let links = scan.chain.len().saturating_sub(1).min(OPENING_LENGTHS);
        Self {
            seen,
            before,
            hashes,
            last,
            openings: scan.chain[..links]
                .iter()
                .map(|link| link ^ seen.scope)
                .collect(),
        }
    }

    fn has_head_of(&self, turn: &Turn) -> bool {
        turn.history.head == self.seen.history.head
    }

    fn has_opening_of(&self, known: &Conversation) -> bool {
        known
            .opening
            .is_some_and(|opening| self.openings.contains(&opening))
    }

    /// Whether the turn's answer stands where it belongs: after its own history, or after one of the same length
    /// with another system prompt.
    fn is_in_place(&self, turn: &Turn) -> bool {
        let at = turn.history;
        let scan = self.seen.scan;
        at.unit == Unit::Messages
            && at.length < self.seen.history.length
            && turn.shows.contains(&scan.message_hashes[at.length])
            && (!self.has_head_of(turn) || scan.prefix_hash(at.length) == Some(at.hash))
    }

    /// Whether the last answer shown stands where the turn's belongs.
    fn answers_last_at(&self, turn: &Turn) -> bool {
        let at = turn.history;
        let mut shown = self.seen.scan.roles.iter().skip(at.length);
        at.unit == Unit::Messages
            && shown.next() == Some(&Role::Assistant)
            && shown.all(|role| *role != Role::Assistant)
    }

    /// Whether it waits with the answer that the request shows last.
    fn ends(&self, known: &Conversation) -> bool {
        let turn = known.turn();
        self.last
            .zip(turn)
            .is_some_and(|(last, turn)| turn.shows.contains(&last))
            && known.waits()
    }
}

fn latest<T>(all: &[T]) -> &[T] {
    &all[all.len().saturating_sub(MAX_LOOKUPS)..]
}

pub(crate) fn find(
    seen: &Seen<'_>,
    same: Option<&Standing>,
    before: Option<&Standing>,
) -> Option<Match> {
    let shown = Shown::new(seen, before);
    let holders: Vec<&Holders> = shown
        .hashes
        .iter()
        .rev()
        .map(|hash| seen.index.with_evidence(seen.scope, *hash))
        .collect();
    if let Some(id) = drifted(&shown, &holders) {
        return Some(Match::new("history-drifted", Kind::Next, id));
    }
    if let Some((id, step)) = passed(&shown) {
        return Some(Match::new("history-retry", Kind::Repeat(step), id));
    }
    let sole = sole(&shown, &holders);
    if let (Some((id, known)), Some(before)) = (sole, before) {
        if let Some(waiting) = before.done.first()
            && gave_another_too(known, &shown)
        {
            return Some(Match::new("history-edited", Kind::Next, waiting));
        }
        if let Some(turn) = known.turn()
            && before.of(turn.state).contains(id)
        {
            return Some(Match::new("history-edited", Kind::Next, id));
        }
    }
    if let Some((id, known)) = sole
        && known
            .turn()
            .is_some_and(|turn| turn.is_shown_in(&shown.hashes))
    {
        return Some(Match::new("history-rewritten", Kind::Rewritten, id));
    }
    if let Some((id, turn)) = summed_up(&shown) {
        return Some(if !shown.has_head_of(turn) {
            Match::new("history-drifted", Kind::Next, id)
        } else if before.is_some_and(|before| before.of(turn.state).contains(id)) {
            Match::new("history-edited", Kind::Next, id)
        } else {
            Match::new("history-summary", Kind::Rewritten, id)
        });
    }
    if let Some(id) = repeats::sampled_before(seen, same) {
        return seen.repeat_of(id);
    }
    if let Some((id, _)) = sole {
        return Some(Match::new("history-rewritten", Kind::Rewritten, id));
    }
    if let Some(id) = shown.before.and_then(edited) {
        return Some(Match::new("history-edited", Kind::Next, id));
    }
    single_waiting(&shown).map(|id| Match::new("history-opening", Kind::Rewritten, id))
}

/// Who waits where the request shows its last answer, the one that has waited longest.
fn drifted(shown: &Shown<'_>, holders: &[&Holders]) -> Option<Id> {
    let mut placed = Vec::new();
    let mut any_ends = false;
    for id in holders.iter().flat_map(|holder| holder.iter()) {
        let known = shown.seen.get(id)?;
        let ends = shown.ends(known);
        any_ends |= ends;
        if known.turn().is_some_and(|turn| shown.is_in_place(turn)) {
            placed.push((ends, known.changed_at(), id));
        }
    }
    // Siblings that answer alike: one that is behind must not take the place of one that stands here.
    placed.retain(|(ends, ..)| *ends || !any_ends);
    let longest = placed.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    longest.map(|(_, _, id)| *id)
}

/// A turn with this very history that several siblings who answer alike have left behind. Where a repeat took
/// the place of a sibling that was slower, that one finds its place taken; it may have any other's.
fn passed(shown: &Shown<'_>) -> Option<(Id, u64)> {
    let seen = shown.seen;
    let holder = seen.index.with_evidence(seen.scope, shown.last?);
    let known: Vec<(Id, &Conversation)> = holder
        .iter()
        .filter_map(|id| Some((id, seen.get(id)?)))
        .collect();
    if known.len() < 2 || known.iter().any(|(_, known)| shown.ends(known)) {
        return None;
    }
    let turns = known.iter().flat_map(|(id, known)| {
        let places = known.turns.iter().enumerate();
        let here = places.filter(|(_, turn)| turn.history == seen.history);
        here.map(move |(place, turn)| {
            let behind = (!known.waits(), known.turns.len() - place);
            (behind, known.changed_at(), *id, turn.step)
        })
    });
    turns
        .min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
        .map(|(_, _, id, step)| (id, step))
}

/// Whether it gave the answer shown last, to a repeat that was its sibling's, and went on with another: a
/// sibling waits where the other belongs.
fn gave_another_too(known: &Conversation, shown: &Shown<'_>) -> bool {
    let earlier = known.turns.len().saturating_sub(1);
    shown.last.is_some_and(|last| {
        let mut turns = known.turns[..earlier].iter();
        turns.any(|turn| turn.shows.len() > 1 && turn.shows.contains(&last))
    })
}

/// The conversation with the same system prompt that the evidence points at: the first that is alone in holding a
/// piece; else, of those that hold most pieces, the one with this task whose last answer is shown and that waits.
fn sole<'a>(shown: &Shown<'a>, holders: &[&Holders]) -> Option<(Id, &'a Conversation)> {
    let seen = shown.seen;
    let mut votes: LinkedMap<Id, u32> = LinkedMap::default();
    for holder in holders {
        let matching: Vec<(Id, &Conversation)> = holder
            .iter()
            .filter_map(|id| Some((id, seen.get(id)?)))
            .filter(|(_, known)| known.turn().is_some_and(|turn| shown.has_head_of(turn)))
            .collect();
        if let [only] = matching[..] {
            return Some(only);
        }
        for (id, _) in matching {
            *votes.entry(id).or_insert(0) += 1;
        }
    }
    let most = votes.values().copied().max()?;
    votes
        .iter()
        .filter(|(_, count)| **count == most)
        .filter_map(|(id, _)| Some((*id, seen.get(*id)?)))
        .min_by(|(_, a), (_, b)| {
            let order = |known: &Conversation| {
                let is_shown = known
                    .turn()
                    .is_some_and(|turn| turn.is_shown_in(&shown.hashes));
                (!shown.has_opening_of(known), !is_shown, !known.waits())
            };
            let changed = || a.changed_at().total_cmp(&b.changed_at());
            order(a).cmp(&order(b)).then_with(changed)
        })
}

/// Who waits with an answer that a line starts like, and the turn that gave it: a summary; or that answer in its
/// place, of which the client kept the beginning, maybe after another system prompt.
fn summed_up<'a>(shown: &Shown<'a>) -> Option<(Id, &'a Turn)> {
    let seen = shown.seen;
    if !seen.index.has_anchors() {
        return None;
    }
    let anchors = seen.scan.anchors_in(seen.body);
    let holders = anchors
        .iter()
        .map(|anchor| seen.index.with_anchor(seen.scope, *anchor));
    holders
        .flat_map(Holders::iter)
        .filter_map(|id| {
            let known = seen.get(id)?;
            Some((id, known, known.turn()?))
        })
        .filter(|(_, known, turn)| {
            known.waits() && (shown.has_head_of(turn) || shown.answers_last_at(turn))
        })
        .min_by(|(_, a, left), (_, b, right)| {
            let first = |known, turn| (!shown.has_head_of(turn), !shown.has_opening_of(known));
            let changed = || a.changed_at().total_cmp(&b.changed_at());
            first(a, left).cmp(&first(b, right)).then_with(changed)
        })
        .map(|(id, _, turn)| (id, turn))
}

/// Who may have given an answer that the client changed: one that waits, longest first. A broken turn comes next
/// (a partial answer was kept), then one that runs (its last bytes are with the client, its end is not with us).
fn edited(standing: &Standing) -> Option<Id> {
    standing
        .done
        .first()
        .or_else(|| standing.broken.first())
        .or_else(|| standing.running.first())
}

fn single_waiting(shown: &Shown<'_>) -> Option<Id> {
    // A system prompt alone is the opening of nobody.
    for opening in shown.openings.iter().skip(1) {
        let members = shown.seen.index.with_opening(*opening);
        let mut waiting = members
            .iter()
            .rev()
            .take(MAX_SHARED)
            .filter(|id| shown.seen.waits(*id));
        if let (Some(id), None) = (waiting.next(), waiting.next()) {
            return Some(id);
        }
    }
    None
}
