//! The history in a body of `/v1/responses`: `input`, a text or a list of items.
//!
//! Invariant: the items of one answer (messages and calls; what was reasoned does not count) are one assistant message,
//! as `SGLang` renders them (`_merge_consecutive_assistant_messages`), and hash to the same number as the answer.

use crate::arguments;
use crate::cursor::{Cursor, JsonError};
use crate::hash::{self, MessageParts};
use crate::message::{self, Scratch};
use crate::role::Role;
use crate::turns::Turns;

/// What an answer's items are kept for: an item's number and state say nothing of what it is.
const ITEM_NOISE: &[&[u8]] = &[b"id", b"status", b"cache_control", b"detail"];

/// The items of an answer that were read so far.
#[derive(Default)]
struct Pending {
    any: bool,
    text: Vec<u8>,
    calls: u64,
    other_bytes: usize,
}

/// Where the members of one item stand.
#[derive(Default)]
struct Item<'a> {
    kind: Vec<u8>,
    role: Vec<u8>,
    call_id: Option<u64>,
    name: Option<u64>,
    content: Option<Cursor<'a>>,
    /// `arguments` or `input` of a call.
    arguments: Option<Cursor<'a>>,
    output: Option<Cursor<'a>>,
}

impl<'a> Item<'a> {
    fn read(cursor: &mut Cursor<'a>, escapes: &mut Vec<u8>) -> Result<Self, JsonError> {
        let mut found = Self::default();
        let mut name = Vec::new();
        cursor.members(|cursor, key| {
            cursor.peek()?;
            let here = *cursor;
            let text = match key.decode(&mut name) {
                b"type" => &mut found.kind,
                b"role" => &mut found.role,
                b"call_id" => {
                    let id = cursor.string_or_skip()?;
                    found.call_id = id.map(|id| hash::bytes(id.decode(escapes)));
                    return Ok(());
                }
                b"name" => {
                    let name = cursor.string_or_skip()?;
                    found.name = name.map(|name| hash::bytes(name.decode(escapes)));
                    return Ok(());
                }
                other => {
                    match other {
                        b"content" => found.content = Some(here),
                        b"arguments" | b"input" => found.arguments = Some(here),
                        b"output" => found.output = Some(here),
                        _ => {}
                    }
                    return cursor.skip();
                }
            };
            if let Some(value) = cursor.string_or_skip()? {
                text.clear();
                value.decode_into(text);
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Reads the value of `input` into `turns`. `on_text` sees the text of each message.
pub fn input(
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
    turns: &mut Turns,
    mut on_text: impl FnMut(&[u8]),
) -> Result<(), JsonError> {
    match cursor.peek()? {
        b'"' => {
            scratch.text.clear();
            cursor.string_into(&mut scratch.text)?;
            let user = MessageParts {
                role: hash::bytes(b"user"),
                ..MessageParts::default()
            };
            push(turns, Role::User, user, scratch.text());
            on_text(scratch.text());
            Ok(())
        }
        b'[' => {
            let mut pending = Pending::default();
            cursor.elements(|cursor| item(cursor, scratch, turns, &mut pending, &mut on_text))?;
            flush(&mut pending, turns, &mut on_text);
            Ok(())
        }
        _ => cursor.skip(),
    }
}

fn item(
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
    turns: &mut Turns,
    pending: &mut Pending,
    on_text: &mut impl FnMut(&[u8]),
) -> Result<(), JsonError> {
    let before = cursor.position();
    let mut bookmark = *cursor;
    let found = if cursor.peek()? == b'{' {
        Item::read(cursor, &mut scratch.escapes)?
    } else {
        cursor.skip()?;
        Item::default()
    };
    turns.call_ids.extend(found.call_id);
    match found.kind.as_slice() {
        b"reasoning" => return Ok(()),
        b"function_call" | b"custom_tool_call" => {
            let name = found.name.unwrap_or_else(|| hash::bytes(b""));
            let arguments = match found.arguments {
                Some(mut at) => arguments::hash_value(&mut at, &mut scratch.arguments)?,
                None => arguments::hash_text(b"", &mut scratch.escapes),
            };
            let call = hash::call(name, arguments, found.call_id);
            pending.calls = hash::link(pending.calls, call);
            pending.other_bytes += cursor.position() - before;
            pending.any = true;
            return Ok(());
        }
        // Of the tools that a provider runs itself only the id counts.
        kind if kind.ends_with(b"_call") => {
            pending.any = true;
            return Ok(());
        }
        _ => {}
    }
    scratch.text.clear();
    if found.role == b"assistant" {
        if let Some(mut content) = found.content {
            message::content(&mut content, scratch)?;
        }
        pending.text.extend_from_slice(scratch.text());
        pending.any = true;
        return Ok(());
    }
    flush(pending, turns, on_text);
    let mut parts = MessageParts::default();
    let role = if found.kind.ends_with(b"_output") {
        if let Some(mut output) = found.output {
            parts.media = message::content(&mut output, scratch)?;
        }
        parts.role = hash::bytes(b"tool");
        parts.answers_call = found.call_id.unwrap_or(0);
        Role::Tool
    } else if found.role.is_empty() {
        // A reference, a compacted history: whatever it is, it is the same when it comes again.
        parts.media = hash::canonical(&mut bookmark, ITEM_NOISE, &mut scratch.escapes)?;
        Role::Other
    } else {
        if let Some(mut content) = found.content {
            parts.media = message::content(&mut content, scratch)?;
        }
        parts.role = hash::bytes(&found.role);
        Role::from_name(&found.role)
    };
    push(turns, role, parts, scratch.text());
    on_text(scratch.text());
    Ok(())
}

fn push(turns: &mut Turns, role: Role, parts: MessageParts, text: &[u8]) {
    let message = MessageParts {
        text: hash::bytes(text),
        ..parts
    };
    turns.push(role, message.digest(), text.len());
}

/// The answer that ends here becomes a message.
fn flush(pending: &mut Pending, turns: &mut Turns, on_text: &mut impl FnMut(&[u8])) {
    let answer = std::mem::take(pending);
    if !answer.any {
        return;
    }
    let message = MessageParts {
        role: hash::bytes(b"assistant"),
        text: hash::bytes(hash::visible(&answer.text)),
        calls: answer.calls,
        ..MessageParts::default()
    };
    let text_bytes = answer.text.len() + answer.other_bytes;
    turns.push(Role::Assistant, message.digest(), text_bytes);
    on_text(&answer.text);
}
