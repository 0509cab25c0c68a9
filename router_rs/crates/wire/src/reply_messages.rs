//! Answers of `/v1/messages`: a whole message, or one event of its stream.
//!
//! Source: Anthropic's Messages streaming (`message_start`, `content_block_*`, `message_delta`, `message_stop`, `error`),
//! as `SGLang` 0.5.23 writes it (`entrypoints/anthropic/serving.py`).

use crate::answer::{Builder, Usage};
use crate::cursor::{Cursor, JsonError};
use crate::reply::error;

/// What one block, or a piece of one, carries.
#[derive(Default)]
struct Piece {
    kind: Vec<u8>,
    text: Vec<u8>,
    id: Vec<u8>,
    name: Vec<u8>,
    /// `input` of a whole call as it stands, `partial_json` of a piece.
    input: Vec<u8>,
    thought: bool,
}

/// Reads a document into `builder`.
pub fn read(cursor: &mut Cursor<'_>, builder: &mut Builder) -> Result<(), JsonError> {
    let mut kind = Vec::new();
    let mut key_text = Vec::new();
    let mut index = 0;
    // Which block it is may stand behind what is in it.
    let mut begun = None;
    let mut piece = None;
    cursor.members(|cursor, key| {
        match key.decode(&mut key_text) {
            b"type" => {
                if let Some(name) = cursor.string_or_skip()? {
                    kind.clear();
                    name.decode_into(&mut kind);
                }
            }
            b"message" => cursor.members(|cursor, key| match key.decode(&mut key_text) {
                b"usage" => {
                    let mut begun = usage(cursor)?;
                    // A beginning counts no output, whatever it says: 0 (SGLang) or the first token.
                    begun.output = None;
                    builder.set_usage(begun);
                    Ok(())
                }
                name => envelope(cursor, name, builder),
            })?,
            b"index" => index = cursor.count_or_skip()?.unwrap_or(0),
            b"content_block" => begun = Some(read_piece(cursor, builder)?),
            b"delta" => piece = Some(read_piece(cursor, builder)?),
            b"error" => {
                if let Some(message) = error(cursor)? {
                    builder.set_error(message);
                }
            }
            name => envelope(cursor, name, builder)?,
        }
        Ok(())
    })?;
    if let Some(mut begun) = begun {
        if is_empty_object(&begun.input) {
            // The pieces that follow are the whole of it.
            begun.input.clear();
        }
        put(&begun, index, builder);
    }
    if let Some(piece) = piece {
        put(&piece, index, builder);
    }
    if kind == b"message_stop" {
        builder.set_done();
    }
    Ok(())
}

/// A member of a message, or of what an event says about it.
fn envelope(cursor: &mut Cursor<'_>, name: &[u8], builder: &mut Builder) -> Result<(), JsonError> {
    match name {
        b"content" if cursor.peek()? == b'[' => {
            builder.see_choice(0);
            let mut position = 0;
            cursor.elements(|cursor| {
                let block = read_piece(cursor, builder)?;
                put(&block, position, builder);
                position += 1;
                Ok(())
            })
        }
        b"stop_reason" => stop_reason(cursor, builder),
        b"usage" if cursor.peek()? == b'{' => {
            let usage = usage(cursor)?;
            builder.set_usage(usage);
            Ok(())
        }
        _ => cursor.skip(),
    }
}

/// In chat's words, so that history and predictions know one set.
fn stop_reason(cursor: &mut Cursor<'_>, builder: &mut Builder) -> Result<(), JsonError> {
    if let Some(reason) = cursor.string_or_skip()? {
        let reason = reason.to_text();
        let word = match reason.as_str() {
            "end_turn" | "stop_sequence" => "stop",
            "max_tokens" | "model_context_window_exceeded" => "length",
            "tool_use" => "tool_calls",
            "refusal" => "content_filter",
            other => other,
        };
        builder.finish_choice(0, word.to_owned());
    }
    Ok(())
}

/// A block, or a delta. A `message_delta` has its `stop_reason` in one.
fn read_piece(cursor: &mut Cursor<'_>, builder: &mut Builder) -> Result<Piece, JsonError> {
    let mut piece = Piece::default();
    let mut name = Vec::new();
    cursor.members(|cursor, key| {
        let target = match key.decode(&mut name) {
            b"type" => &mut piece.kind,
            b"text" => &mut piece.text,
            b"id" => &mut piece.id,
            b"name" => &mut piece.name,
            b"partial_json" => &mut piece.input,
            b"input" => {
                cursor.peek()?;
                let start = cursor.position();
                cursor.skip()?;
                piece.input.clear();
                piece.input.extend_from_slice(cursor.since(start));
                return Ok(());
            }
            b"thinking" => {
                piece.thought = cursor
                    .string_or_skip()?
                    .is_some_and(|text| !text.decode(&mut Vec::new()).is_empty());
                return Ok(());
            }
            b"stop_reason" => return stop_reason(cursor, builder),
            _ => return cursor.skip(),
        };
        if let Some(text) = cursor.string_or_skip()? {
            target.clear();
            text.decode_into(target);
        }
        Ok(())
    })?;
    Ok(piece)
}

fn put(piece: &Piece, index: u64, builder: &mut Builder) {
    builder.see_choice(0);
    match piece.kind.as_slice() {
        b"text" | b"text_delta" => builder.push_content(0, &piece.text),
        b"tool_use" | b"input_json_delta" => {
            builder.push_call(0, index, &piece.id, &piece.name, &piece.input);
        }
        _ => {}
    }
    if piece.thought || !(piece.text.is_empty() && piece.name.is_empty() && piece.input.is_empty())
    {
        builder.count_chunk();
    }
}

fn is_empty_object(json: &[u8]) -> bool {
    json.strip_prefix(b"{")
        .and_then(|rest| rest.strip_suffix(b"}"))
        .is_some_and(|inside| inside.trim_ascii().is_empty())
}

/// `input_tokens` leaves out what was cached; a prompt is all of it.
fn usage(cursor: &mut Cursor<'_>) -> Result<Usage, JsonError> {
    let mut usage = Usage::default();
    let mut written = 0;
    let mut name = Vec::new();
    cursor.members(|cursor, key| {
        match key.decode(&mut name) {
            b"input_tokens" => usage.prompt = cursor.count_or_skip()?,
            b"output_tokens" => usage.output = cursor.count_or_skip()?,
            b"cache_read_input_tokens" => usage.cached = cursor.count_or_skip()?,
            b"cache_creation_input_tokens" => written = cursor.count_or_skip()?.unwrap_or(0),
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    let cached = usage.cached.unwrap_or(0);
    usage.prompt = usage
        .prompt
        .map(|fresh| fresh.saturating_add(cached).saturating_add(written));
    Ok(usage)
}
