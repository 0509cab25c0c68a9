//! The history in a body of `/v1/messages`: a system prompt, and messages of content blocks.
//!
//! Invariant: an assistant message hashes to the same number as the answer that it came from, and a message to the
//! same whatever a client does with `cache_control`, which moves on with every request.

use crate::arguments;
use crate::cursor::{Cursor, JsonError};
use crate::hash::{self, MessageParts};
use crate::message::{self, Message, PART_NOISE, Scratch};
use crate::role::Role;

/// Claude Code puts a block first that changes with every request; an engine that bills nobody reads it as text.
const BILLING: &[u8] = b"x-anthropic-billing-header:";

/// Reads `system`: a string or text blocks. `None` for a value that is neither, and for an empty one.
pub fn system(
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
) -> Result<Option<Vec<u8>>, JsonError> {
    let mut text = Vec::new();
    match cursor.peek()? {
        b'"' => cursor.string_into(&mut text)?,
        b'[' => cursor.elements(|cursor| {
            let mut block = Vec::new();
            cursor.members(|cursor, key| {
                if key.decode(&mut scratch.escapes) != b"text" {
                    return cursor.skip();
                }
                if let Some(found) = cursor.string_or_skip()? {
                    found.decode_into(&mut block);
                }
                Ok(())
            })?;
            if !block.starts_with(BILLING) {
                text.append(&mut block);
            }
            Ok(())
        })?,
        _ => cursor.skip()?,
    }
    Ok((!text.is_empty()).then_some(text))
}

/// Reads one element of `messages`. Hashes of the call ids it names are appended to `call_ids`.
pub fn message(
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
    call_ids: &mut Vec<u64>,
) -> Result<Message, JsonError> {
    if cursor.peek()? != b'{' {
        return message::read(cursor, scratch, call_ids);
    }
    let mut parts = MessageParts::default();
    let mut role = Role::Other;
    let mut other_bytes = 0;
    scratch.text.clear();
    cursor.members(|cursor, key| {
        match key.decode(&mut scratch.escapes) {
            b"role" => {
                if let Some(name) = cursor.string_or_skip()? {
                    role = message::read_role(name, &mut parts, scratch);
                }
            }
            b"content" => {
                scratch.text.clear();
                (parts.media, parts.calls, other_bytes) = (0, 0, 0);
                if cursor.peek()? == b'[' {
                    cursor.elements(|cursor| {
                        other_bytes += block(cursor, &mut parts, scratch, call_ids)?;
                        Ok(())
                    })?;
                } else {
                    parts.media = message::content(cursor, scratch)?;
                }
            }
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    Ok(Message::of(role, parts, scratch, other_bytes))
}

/// Where the members of one block stand.
#[derive(Default)]
struct Block<'a> {
    kind: Vec<u8>,
    text: Option<Cursor<'a>>,
    id: Option<u64>,
    name: Option<u64>,
    input: Option<Cursor<'a>>,
    content: Option<Cursor<'a>>,
}

impl<'a> Block<'a> {
    fn read(cursor: &mut Cursor<'a>, escapes: &mut Vec<u8>) -> Result<Self, JsonError> {
        let mut found = Self::default();
        let mut name = Vec::new();
        cursor.members(|cursor, key| {
            cursor.peek()?;
            let here = *cursor;
            match key.decode(&mut name) {
                b"type" => {
                    if let Some(kind) = cursor.string_or_skip()? {
                        found.kind.clear();
                        kind.decode_into(&mut found.kind);
                    }
                    return Ok(());
                }
                b"id" | b"tool_use_id" => {
                    let id = cursor.string_or_skip()?;
                    found.id = id.map(|id| hash::bytes(id.decode(escapes))).or(found.id);
                    return Ok(());
                }
                b"name" => {
                    let name = cursor.string_or_skip()?;
                    found.name = name.map(|name| hash::bytes(name.decode(escapes)));
                    return Ok(());
                }
                b"text" => found.text = Some(here),
                b"input" => found.input = Some(here),
                b"content" => found.content = Some(here),
                _ => {}
            }
            cursor.skip()
        })?;
        Ok(found)
    }
}

/// Reads one block: text goes to `scratch.text`, the rest to `parts`. Answers the bytes a model reads besides.
fn block(
    cursor: &mut Cursor<'_>,
    parts: &mut MessageParts,
    scratch: &mut Scratch,
    call_ids: &mut Vec<u64>,
) -> Result<usize, JsonError> {
    let before = cursor.position();
    let mut bookmark = *cursor;
    if cursor.peek()? != b'{' {
        let other = hash::canonical(cursor, PART_NOISE, &mut scratch.escapes)?;
        parts.media = hash::link(parts.media, other);
        return Ok(0);
    }
    let found = Block::read(cursor, &mut scratch.escapes)?;
    match found.kind.as_slice() {
        // Clients drop what was thought, or an engine that signs nothing makes them.
        b"thinking" | b"redacted_thinking" => {}
        b"text" => {
            if let Some(text) = found.text.map(|mut at| at.string_or_skip()).transpose()? {
                text.inspect(|text| text.decode_into(&mut scratch.text));
            }
        }
        b"tool_use" => {
            let name = found.name.unwrap_or_else(|| hash::bytes(b""));
            let input = match found.input {
                Some(mut at) => arguments::hash_value(&mut at, &mut scratch.arguments)?,
                None => arguments::hash_text(b"", &mut scratch.escapes),
            };
            parts.calls = hash::link(parts.calls, hash::call(name, input, found.id));
            call_ids.extend(found.id);
            return Ok(cursor.position() - before);
        }
        b"tool_result" => {
            let mut said = Scratch::default();
            let media = match found.content {
                Some(mut at) => message::content(&mut at, &mut said)?,
                None => 0,
            };
            let result = hash::fold([found.id.unwrap_or(0), hash::bytes(said.text()), media]);
            parts.media = hash::link(parts.media, result);
            call_ids.extend(found.id);
            return Ok(said.text().len());
        }
        _ => {
            let other = hash::canonical(&mut bookmark, PART_NOISE, &mut scratch.escapes)?;
            parts.media = hash::link(parts.media, other);
        }
    }
    Ok(0)
}
