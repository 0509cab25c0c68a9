//! Which turn a request repeats, if it has the very history of one.

use crate::attempt::Attempt;
use crate::conversation::{Conversation, Id, Turn};
use crate::index::{MAX_SHARED, Standing};
use crate::matching::Seen;

/// Half a second less a quarter of jitter before the first repeat (openai-python, `_calculate_retry_timeout`),
/// less what the way to here may vary.
const SDK_WAITS_S: f64 = 0.3;

/// Whose failed turn a marked repeat means: one that an SDK repeats, the oldest.
pub(crate) fn marked_failure(seen: &Seen<'_>, same: &Standing) -> Option<Id> {
    let turn = |id| seen.get(id).and_then(Conversation::turn);
    let mut broken = same.broken.iter().take(MAX_SHARED);
    broken.find(|id| turn(*id).is_some_and(Turn::may_be_marked))
}

/// Whose last turn this is once more, by the SDK's mark or because it failed.
pub(crate) fn repeated(seen: &Seen<'_>, same: &Standing) -> Option<Id> {
    let marked = if seen.attempt.is_repeat() {
        unnoticed(seen, same)
    } else {
        None
    };
    marked.or_else(|| failed(seen, same))
}

/// Whose turn a marked repeat means where no failure is known: the one done longest that nobody goes on with (its
/// answer was lost on the way), then one that runs (the client gave up before we saw it leave).
///
/// At an opening there may be none: of samples of one prompt nobody can tell whose answer was lost, and the
/// attempt that failed may never have come here (agents that were started before the gateway listened). Two
/// agents in one trajectory are worse than a trajectory that nobody goes on with.
fn unnoticed(seen: &Seen<'_>, same: &Standing) -> Option<Id> {
    let means = |id| {
        let turn = seen.get(id).and_then(Conversation::turn);
        turn.is_some_and(|turn| may_mean(seen, turn))
    };
    let (done, running) = (same.done.first(), same.running.first());
    let id = match (done, running) {
        (Some(done), Some(running)) if !means(done) => running,
        (Some(done), _) => done,
        (None, running) => running?,
    };
    let known = seen.get(id)?;
    if known.turn()?.step > 0 {
        return Some(id);
    }
    let is_only_one = known
        .opening
        .is_some_and(|opening| seen.index.with_opening(opening).len() == 1);
    (is_only_one && means(id)).then_some(id)
}

/// Whether this attempt can follow one at `turn` that did not fail as far as we know: the SDK waits before it
/// repeats, and counts.
fn may_mean(seen: &Seen<'_>, turn: &Turn) -> bool {
    seen.received_at - turn.changed_at >= SDK_WAITS_S && turn.attempt < seen.attempt
}

/// Whose failed turn the same history repeats without a mark: one that no SDK will repeat comes first.
///
/// A first attempt at an opening is not the repeat of one that its own SDK is going to mark: it is a new sample.
fn failed(seen: &Seen<'_>, same: &Standing) -> Option<Id> {
    let mut marked = None;
    for id in same.broken.iter().take(MAX_SHARED) {
        let turn = seen.get(id)?.turn()?;
        if !turn.will_be_marked() {
            return Some(id);
        }
        if marked.is_none() && (turn.step > 0 || seen.attempt != Attempt::First) {
            marked = Some(id);
        }
    }
    marked
}

/// Who has done this very step, past its opening, and waits; the latest.
pub(crate) fn sampled_before(seen: &Seen<'_>, same: Option<&Standing>) -> Option<Id> {
    let mut latest = same?.done.iter().rev().take(MAX_SHARED);
    latest.find(|id| {
        let known = seen.get(*id);
        known.is_some_and(|known| known.waits() && known.turn().is_some_and(|turn| turn.step > 0))
    })
}
