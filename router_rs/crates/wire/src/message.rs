//! One chat message: its hash, role, text size and the call ids in it.

use crate::arguments;
use crate::cursor::{Cursor, JsonError, RawStr};
use crate::hash::{self, MessageParts};
use crate::role::Role;

/// Part members that say how to cache or number a part, not what it is.
pub(crate) const PART_NOISE: &[&[u8]] = &[b"cache_control", b"index", b"detail"];

/// What one message came to.
pub struct Message {
    pub role: Role,
    pub hash: u64,
    /// Bytes of text a model will read: content and tool-call arguments.
    pub text_bytes: usize,
}

impl Message {
    /// Of a message that was read: its text is in `scratch`, a model reads `other_bytes` besides.
    pub(crate) fn of(
        role: Role,
        mut parts: MessageParts,
        scratch: &Scratch,
        other_bytes: usize,
    ) -> Self {
        let text = match role {
            Role::Assistant => hash::visible(&scratch.text),
            _ => &scratch.text,
        };
        parts.text = hash::bytes(text);
        Self {
            role,
            hash: parts.digest(),
            text_bytes: scratch.text.len() + other_bytes,
        }
    }
}

/// Buffers kept from message to message.
#[derive(Default)]
pub struct Scratch {
    pub(crate) text: Vec<u8>,
    pub(crate) escapes: Vec<u8>,
    pub(crate) arguments: arguments::Scratch,
}

impl Scratch {
    /// The text of the message read last.
    pub fn text(&self) -> &[u8] {
        &self.text
    }
}

/// Reads one element of `messages`. Hashes of the call ids it names are appended to `call_ids`.
pub fn read(
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
    call_ids: &mut Vec<u64>,
) -> Result<Message, JsonError> {
    if cursor.peek()? != b'{' {
        // Not a message. The worker will say so; until then it is an opaque value.
        scratch.text.clear();
        let hash = hash::canonical(cursor, &[], &mut scratch.escapes)?;
        return Ok(Message {
            role: Role::Other,
            hash,
            text_bytes: 0,
        });
    }
    let mut parts = MessageParts::default();
    let mut role = Role::Other;
    let mut text_bytes = 0;
    scratch.text.clear();
    cursor.members(|cursor, key| {
        match key.decode(&mut scratch.escapes) {
            b"role" => {
                if let Some(name) = cursor.string_or_skip()? {
                    role = read_role(name, &mut parts, scratch);
                }
            }
            b"content" => {
                scratch.text.clear();
                parts.media = content(cursor, scratch)?;
            }
            b"tool_calls" => {
                let (calls, size) = tool_calls(cursor, scratch, call_ids)?;
                parts.calls = calls;
                text_bytes += size;
            }
            b"function_call" => {
                let before = cursor.position();
                let function = function(cursor, scratch)?;
                if let Some((name, arguments)) = function {
                    parts.calls = hash::link(parts.calls, hash::call(name, arguments, None));
                    text_bytes += cursor.position() - before;
                }
            }
            b"tool_call_id" => {
                if let Some(id) = cursor.string_or_skip()? {
                    parts.answers_call = hash::bytes(id.decode(&mut scratch.escapes));
                    call_ids.push(parts.answers_call);
                }
            }
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    Ok(Message::of(role, parts, scratch, text_bytes))
}

/// The role of this name, which is part of what a message is.
pub(crate) fn read_role(name: RawStr<'_>, parts: &mut MessageParts, scratch: &mut Scratch) -> Role {
    let name = name.decode(&mut scratch.escapes);
    parts.role = hash::bytes(name);
    Role::from_name(name)
}

/// Reads `content`: a string, or parts. Text goes to `scratch.text`; the rest is the chain returned.
pub(crate) fn content(cursor: &mut Cursor<'_>, scratch: &mut Scratch) -> Result<u64, JsonError> {
    let mut media = 0;
    match cursor.peek()? {
        b'"' => cursor.string_into(&mut scratch.text)?,
        b'[' => cursor.elements(|cursor| {
            if let Some(part) = content_part(cursor, scratch)? {
                media = hash::link(media, part);
            }
            Ok(())
        })?,
        b'n' => cursor.null()?,
        _ => media = hash::canonical(cursor, PART_NOISE, &mut scratch.escapes)?,
    }
    Ok(media)
}

/// Reads one part: text is appended to `scratch.text`; of any other part the hash is returned.
fn content_part(cursor: &mut Cursor<'_>, scratch: &mut Scratch) -> Result<Option<u64>, JsonError> {
    if cursor.peek()? == b'"' {
        cursor.string_into(&mut scratch.text)?;
        return Ok(None);
    }
    let bookmark = *cursor;
    let mut text: Option<RawStr<'_>> = None;
    let mut thought = false;
    cursor.members(|cursor, key| {
        match key.decode(&mut scratch.escapes) {
            b"text" => text = cursor.string_or_skip()?,
            b"type" => {
                if let Some(kind) = cursor.string_or_skip()? {
                    thought = matches!(
                        kind.decode(&mut scratch.escapes),
                        b"thinking" | b"redacted_thinking" | b"reasoning" | b"refusal"
                    );
                }
            }
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    if thought {
        return Ok(None);
    }
    if let Some(text) = text {
        text.decode_into(&mut scratch.text);
        return Ok(None);
    }
    let mut again = bookmark;
    hash::canonical(&mut again, PART_NOISE, &mut scratch.escapes).map(Some)
}

/// Reads `tool_calls`: the chain over the calls and the bytes they take.
fn tool_calls(
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
    call_ids: &mut Vec<u64>,
) -> Result<(u64, usize), JsonError> {
    let before = cursor.position();
    let mut chain = 0;
    cursor.elements(|cursor| {
        let mut id = None;
        let mut called = None;
        cursor.members(|cursor, key| {
            match key.decode(&mut scratch.escapes) {
                b"id" => {
                    id = cursor
                        .string_or_skip()?
                        .map(|id| hash::bytes(id.decode(&mut scratch.escapes)));
                }
                b"function" | b"custom" => called = function(cursor, scratch)?,
                _ => cursor.skip()?,
            }
            Ok(())
        })?;
        call_ids.extend(id);
        let (name, arguments) = called.unwrap_or_else(|| {
            (
                hash::bytes(b""),
                arguments::hash_text(b"", &mut scratch.escapes),
            )
        });
        chain = hash::link(chain, hash::call(name, arguments, id));
        Ok(())
    })?;
    Ok((chain, cursor.position() - before))
}

/// Reads `{"name": ..., "arguments": ...}`: hashes of both; `None` for another value.
fn function(
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
) -> Result<Option<(u64, u64)>, JsonError> {
    if cursor.peek()? != b'{' {
        return cursor.skip().map(|()| None);
    }
    let mut name = hash::bytes(b"");
    let mut arguments = None;
    cursor.members(|cursor, key| {
        match key.decode(&mut scratch.escapes) {
            b"name" => {
                if let Some(text) = cursor.string_or_skip()? {
                    name = hash::bytes(text.decode(&mut scratch.escapes));
                }
            }
            b"arguments" | b"input" => {
                arguments = Some(arguments::hash_value(cursor, &mut scratch.arguments)?);
            }
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    let arguments = arguments.unwrap_or_else(|| arguments::hash_text(b"", &mut scratch.escapes));
    Ok(Some((name, arguments)))
}
