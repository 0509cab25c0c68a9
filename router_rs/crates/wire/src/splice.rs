//! Setting the request id, `priority` and `include_usage` in a body, and leaving every other byte where it is.

use std::borrow::Cow;
use std::fmt::Write;

use crate::cursor::{Cursor, JsonError};
use crate::scan::{Member, Scan};

/// What to change.
#[derive(Clone, Debug, Default)]
pub struct Edits<'a> {
    /// The worker-side request id ([`crate::Dialect::rid_member`]): plain ASCII without quotes (32 hex digits in practice).
    pub rid: Option<&'a str>,
    /// The engine's priority number.
    pub priority: Option<i64>,
    /// Ask for usage in a stream. Without effect on an answer that is not streamed, and in the dialects that always
    /// report it.
    pub ask_usage: bool,
    /// Top-level members to take out.
    pub drop: &'a [&'a str],
}

/// A replacement of `start..end`.
struct Patch {
    start: usize,
    end: usize,
    text: Cow<'static, str>,
}

/// What happens to one top-level member.
enum Fate {
    Keep,
    Drop,
    Replace(String),
}

/// Applies `edits` to the body that `scan` was made from.
///
/// A member that is set takes the place of the client's own; repeats of it go. One that was absent is written
/// right after the opening brace. `None` if `body` is not the scanned one (another length).
pub fn splice(body: &[u8], scan: &Scan, edits: &Edits<'_>) -> Option<Vec<u8>> {
    if body.len() != scan.length {
        return None;
    }
    let mut rid = edits.rid.map(|rid| format!("\"{rid}\""));
    let mut priority = edits.priority.map(|priority| priority.to_string());
    let ask_usage = edits.ask_usage && scan.stream && scan.dialect.asks_usage();
    let rid_member = scan.dialect.rid_member();
    let (set_rid, set_priority) = (rid.is_some(), priority.is_some());
    let mut inner = Vec::new();
    let mut scratch = Vec::new();
    let mut fates = Vec::with_capacity(scan.members.len());
    for member in &scan.members {
        let name = name_of(body, *member, &mut scratch);
        fates.push(match name {
            name if set_rid && name == rid_member.as_bytes() => {
                rid.take().map_or(Fate::Drop, Fate::Replace)
            }
            b"priority" if set_priority => priority.take().map_or(Fate::Drop, Fate::Replace),
            b"stream_options" if ask_usage => usage_fate(body, scan, *member, &mut inner),
            name if edits.drop.iter().any(|dropped| dropped.as_bytes() == name) => Fate::Drop,
            _ => Fate::Keep,
        });
    }
    let mut inserted = String::new();
    if let Some(rid) = rid {
        let _ = write!(inserted, "\"{rid_member}\":{rid},");
    }
    if let Some(priority) = priority {
        let _ = write!(inserted, "\"priority\":{priority},");
    }
    if ask_usage && scan.stream_options.is_none() {
        inserted.push_str("\"stream_options\":{\"include_usage\":true},");
    }
    if fates.iter().all(|fate| matches!(fate, Fate::Drop)) {
        inserted.pop();
    }
    let mut patches = Vec::new();
    if !inserted.is_empty() {
        patches.push(Patch {
            start: scan.brace + 1,
            end: scan.brace + 1,
            text: inserted.into(),
        });
    }
    member_patches(body, &scan.members, fates, &mut patches);
    patches.append(&mut inner);
    patches.sort_by_key(|patch| patch.start);
    Some(apply(body, &patches))
}

fn name_of<'s>(body: &'s [u8], member: Member, scratch: &'s mut Vec<u8>) -> &'s [u8] {
    let mut cursor = Cursor::new(&body[member.key..member.value]);
    cursor.string().map_or(&[], |name| name.decode(scratch))
}

/// What to do with a `stream_options` so that it asks for usage. Patches inside its value go to `inner`.
fn usage_fate(body: &[u8], scan: &Scan, member: Member, inner: &mut Vec<Patch>) -> Fate {
    if scan
        .stream_options
        .is_some_and(|last| last.key != member.key)
    {
        return Fate::Drop;
    }
    match body[member.value] {
        b'n' => Fate::Replace("{\"include_usage\":true}".to_owned()),
        b'{' => {
            // The scan has read this value before, so reading it again cannot fail.
            let _ = ask_inside(body, member, inner);
            Fate::Keep
        }
        // Not what the worker expects: its business.
        _ => Fate::Keep,
    }
}

fn ask_inside(body: &[u8], member: Member, inner: &mut Vec<Patch>) -> Result<(), JsonError> {
    let mut cursor = Cursor::new(&body[..member.end]).at(member.value);
    let mut empty = true;
    let mut present = false;
    let mut scratch = Vec::new();
    cursor.members(|cursor, key| {
        empty = false;
        let is_usage = key.decode(&mut scratch) == b"include_usage";
        cursor.peek()?;
        let start = cursor.position();
        cursor.skip()?;
        if is_usage {
            present = true;
            if &body[start..cursor.position()] != b"true" {
                inner.push(Patch {
                    start,
                    end: cursor.position(),
                    text: "true".into(),
                });
            }
        }
        Ok(())
    })?;
    if !present {
        let text = if empty {
            "\"include_usage\":true"
        } else {
            "\"include_usage\":true,"
        };
        inner.push(Patch {
            start: member.value + 1,
            end: member.value + 1,
            text: text.into(),
        });
    }
    Ok(())
}

/// Patches for members replaced or dropped; a dropped run takes exactly one of its neighbouring commas along.
fn member_patches(body: &[u8], members: &[Member], fates: Vec<Fate>, patches: &mut Vec<Patch>) {
    let mut last_kept: Option<Member> = None;
    let mut run: Option<(Member, Member)> = None;
    for (member, fate) in members.iter().zip(fates) {
        match fate {
            Fate::Drop => {
                run = Some((run.map_or(*member, |(first, _)| first), *member));
                continue;
            }
            Fate::Replace(text) => {
                patches.push(Patch {
                    start: member.value,
                    end: member.end,
                    text: text.into(),
                });
            }
            Fate::Keep => {}
        }
        if let Some((first, last)) = run.take() {
            let (start, end) = match last_kept {
                Some(kept) => (comma_after(body, kept.end), last.end),
                None => (first.key, member.key),
            };
            patches.push(Patch {
                start,
                end,
                text: Cow::Borrowed(""),
            });
        }
        last_kept = Some(*member);
    }
    if let Some((first, last)) = run {
        let start = last_kept.map_or(first.key, |kept| comma_after(body, kept.end));
        patches.push(Patch {
            start,
            end: last.end,
            text: Cow::Borrowed(""),
        });
    }
}

/// The comma that follows a value ending at `end`.
fn comma_after(body: &[u8], end: usize) -> usize {
    memchr::memchr(b',', &body[end..]).map_or(end, |offset| end + offset)
}

fn apply(body: &[u8], patches: &[Patch]) -> Vec<u8> {
    let grown: usize = patches.iter().map(|patch| patch.text.len()).sum();
    let mut out = Vec::with_capacity(body.len() + grown);
    let mut from = 0;
    for patch in patches {
        out.extend_from_slice(&body[from..patch.start]);
        out.extend_from_slice(patch.text.as_bytes());
        from = patch.end;
    }
    out.extend_from_slice(&body[from..]);
    out
}
