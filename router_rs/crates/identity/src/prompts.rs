//! The rules where the history is a prompt's text or token ids, not messages.

use heddle_wire::Unit;

use crate::conversation::{Id, Kind};
use crate::index::Standing;
use crate::matching::{Match, Seen};
use crate::repeats;

pub(crate) fn find(seen: &Seen<'_>, same: Option<&Standing>) -> Option<Match> {
    let chain = &seen.scan.chain;
    for blocks in (0..=chain.len()).rev() {
        let known = blocks.checked_sub(1).map_or(0, |last| chain[last]);
        for length in seen.index.lengths_after(seen.scope, &seen.history, known) {
            if length >= seen.history.length {
                continue;
            }
            let Some(prefix) = seen.scan.prefix_hash(length) else {
                continue;
            };
            if let Some(found) = after_prompt(seen, length, prefix) {
                return Some(Match::new("history", Kind::Next, found));
            }
        }
    }
    same.and_then(|same| repeats::repeated(seen, same))
        .or_else(|| repeats::sampled_before(seen, same))
        .and_then(|id| seen.repeat_of(id))
}

/// Who answered the first `length` units as the prompt goes on. Where the tokens of an answer are not known, one
/// that waits there for its next prompt.
fn after_prompt(seen: &Seen<'_>, length: usize, prefix: u64) -> Option<Id> {
    let unit = seen.history.unit;
    let standing = seen.index.at_prefix(seen.scope, unit, prefix)?;
    for &answered in standing.lengths.keys() {
        let found = seen
            .scan
            .span_hash(length, answered)
            .and_then(|answer| seen.index.after(seen.scope, unit, prefix, answer).first());
        if found.is_some() {
            return found;
        }
    }
    if unit == Unit::Tokens && standing.lengths.is_empty() {
        return standing.done.first();
    }
    None
}
