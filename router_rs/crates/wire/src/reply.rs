//! Reading one JSON document of an answer: a chunk of a stream, or a whole body.

use crate::answer::{Answer, Builder, Usage};
use crate::cursor::{Cursor, JsonError, RawStr, Reason};
use crate::dialect::Dialect;
use crate::scan::check_encoding;
use crate::{reply_messages, reply_responses, usage};

/// Members that every chunk may have and that say nothing of the answer itself.
const ENVELOPE: &[&[u8]] = &[
    b"id",
    b"object",
    b"created",
    b"model",
    b"system_fingerprint",
    b"service_tier",
    b"metadata",
    b"obfuscation",
    // llama.cpp puts these beside the usage.
    b"timings",
];

/// What a document is, as far as hiding goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Document {
    no_choices: bool,
    usage: bool,
    other: bool,
}

impl Document {
    /// A chunk that only reports usage: `choices` is there and empty, and nothing but the envelope is with it.
    /// (`SGLang` sends `routed_experts` in a chunk without choices too: that one is the caller's.)
    pub fn usage_only(self) -> bool {
        self.no_choices && self.usage && !self.other
    }
}

/// Reads an answer that is not streamed.
///
/// # Errors
/// The body is no JSON.
pub fn read_answer(body: &[u8], dialect: Dialect) -> Result<Answer, JsonError> {
    check_encoding(body)?;
    let mut builder = Builder::new(dialect);
    read_document(body, &mut builder)?;
    let mut answer = builder.answer();
    answer.done = answer.error.is_none() && !answer.answer_hashes.is_empty();
    Ok(answer)
}

/// Reads one document into `builder`. What was read before an error stays.
pub fn read_document(data: &[u8], builder: &mut Builder) -> Result<Document, JsonError> {
    let mut cursor = Cursor::new(data);
    let mut document = Document::default();
    if let Dialect::Messages | Dialect::Responses = builder.dialect() {
        document.other = true;
        match builder.dialect() {
            Dialect::Messages => reply_messages::read(&mut cursor, builder)?,
            _ => reply_responses::read(&mut cursor, builder)?,
        }
    } else if builder.dialect() == Dialect::Generate {
        document.other = true;
        let mut position = 0;
        if cursor.peek()? == b'[' {
            cursor.elements(|cursor| {
                generated(cursor, position, builder)?;
                position += 1;
                Ok(())
            })?;
        } else {
            generated(&mut cursor, 0, builder)?;
        }
    } else {
        completion(&mut cursor, &mut document, builder)?;
    }
    cursor.finish()?;
    Ok(document)
}

/// A chat or text completion, or a chunk of one.
fn completion(
    cursor: &mut Cursor<'_>,
    document: &mut Document,
    builder: &mut Builder,
) -> Result<(), JsonError> {
    let mut scratch = Vec::new();
    let mut flat = FlatError::default();
    cursor.members(|cursor, key| {
        match key.decode(&mut scratch) {
            b"choices" => {
                let mut count = 0;
                if cursor.peek()? == b'[' {
                    cursor.elements(|cursor| {
                        choice(cursor, count, builder)?;
                        count += 1;
                        Ok(())
                    })?;
                    document.no_choices = count == 0;
                } else {
                    cursor.skip()?;
                }
            }
            b"usage" => {
                if cursor.peek()? == b'{' {
                    document.usage = true;
                    builder.set_usage(usage::read(cursor, &usage::COMPLETIONS)?);
                } else {
                    cursor.skip()?;
                }
            }
            b"error" => {
                if let Some(message) = error(cursor)? {
                    document.other = true;
                    builder.set_error(message);
                }
            }
            b"object" => {
                flat.marked = cursor
                    .string_or_skip()?
                    .is_some_and(|kind| kind.to_text() == "error");
            }
            b"message" => flat.message = cursor.string_or_skip()?.map(RawStr::to_text),
            name if ENVELOPE.contains(&name) => cursor.skip()?,
            _ => {
                document.other |= cursor.peek()? != b'n';
                cursor.skip()?;
            }
        }
        Ok(())
    })?;
    document.other |= flat.report(builder);
    Ok(())
}

/// `SGLang`'s own errors: `{"object": "error", "message": ...}` without nesting.
#[derive(Default)]
struct FlatError {
    marked: bool,
    message: Option<String>,
}

impl FlatError {
    fn report(self, builder: &mut Builder) -> bool {
        if self.marked {
            builder.set_error(self.message.unwrap_or_default());
        }
        self.marked
    }
}

/// The value of `error`: an object with a message, or a text. `None` for `null`.
pub(crate) fn error(cursor: &mut Cursor<'_>) -> Result<Option<String>, JsonError> {
    match cursor.peek()? {
        b'n' => cursor.null().map(|()| None),
        b'"' => cursor.string().map(|text| Some(text.to_text())),
        _ => {
            let mut message = String::new();
            cursor.members(|cursor, key| {
                if key.to_text() == "message" {
                    message = cursor
                        .string_or_skip()?
                        .map(RawStr::to_text)
                        .unwrap_or_default();
                    return Ok(());
                }
                cursor.skip()
            })?;
            Ok(Some(message))
        }
    }
}

/// One element of `choices`. `position` stands in for a missing index.
fn choice(cursor: &mut Cursor<'_>, position: u64, builder: &mut Builder) -> Result<(), JsonError> {
    let mut index = position;
    // What belongs to the choice may stand before its index.
    let mut said = None;
    let mut text = None;
    let mut ids = Vec::new();
    let mut finish = None;
    let mut scratch = Vec::new();
    cursor.members(|cursor, key| {
        match key.decode(&mut scratch) {
            b"index" => index = cursor.count_or_skip()?.unwrap_or(position),
            b"delta" | b"message" => {
                cursor.peek()?;
                said = Some(*cursor);
                cursor.skip()?;
            }
            b"text" => text = cursor.string_or_skip()?,
            b"token_ids" => ids = token_ids(cursor)?,
            b"finish_reason" => finish = cursor.string_or_skip()?.map(RawStr::to_text),
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    builder.see_choice(index);
    let mut output = false;
    if let Some(mut said) = said {
        output = message(&mut said, index, builder, &mut scratch)?;
    }
    if builder.dialect() == Dialect::Completions
        && let Some(text) = text
    {
        let piece = text.decode(&mut scratch);
        output |= !piece.is_empty();
        builder.push_text(index, piece);
    }
    if !builder.dialect().has_messages() {
        output |= builder.dialect() == Dialect::Tokens && !ids.is_empty();
        builder.push_ids(index, &ids);
    }
    if output {
        builder.count_chunk();
    }
    if let Some(finish) = finish {
        builder.finish_choice(index, finish);
    }
    Ok(())
}

/// A `delta` or a `message`. Answers whether it carried output.
fn message(
    cursor: &mut Cursor<'_>,
    index: u64,
    builder: &mut Builder,
    scratch: &mut Vec<u8>,
) -> Result<bool, JsonError> {
    let mut output = false;
    let mut calls = 0;
    cursor.members(|cursor, key| {
        match key.decode(scratch) {
            b"content" => match cursor.peek()? {
                b'[' => cursor.elements(|cursor| {
                    cursor.members(|cursor, key| {
                        if key.decode(scratch) != b"text" {
                            return cursor.skip();
                        }
                        if let Some(text) = cursor.string_or_skip()? {
                            builder.push_content(index, text.decode(scratch));
                            output = true;
                        }
                        Ok(())
                    })
                })?,
                _ => {
                    if let Some(text) = cursor.string_or_skip()? {
                        let piece = text.decode(scratch);
                        output |= !piece.is_empty();
                        builder.push_content(index, piece);
                    }
                }
            },
            b"reasoning_content" | b"reasoning" => {
                if let Some(text) = cursor.string_or_skip()? {
                    output |= !text.decode(scratch).is_empty();
                }
            }
            b"tool_calls" => cursor.elements(|cursor| {
                output |= tool_call(cursor, index, calls, builder, scratch)?;
                calls += 1;
                Ok(())
            })?,
            b"function_call" => {
                let (name, arguments) = function(cursor, scratch)?;
                output |= !name.is_empty() || !arguments.is_empty();
                if output {
                    builder.push_call(index, 0, b"", &name, &arguments);
                }
            }
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    Ok(output)
}

/// One tool call, or a piece of one.
fn tool_call(
    cursor: &mut Cursor<'_>,
    index: u64,
    position: u64,
    builder: &mut Builder,
    scratch: &mut Vec<u8>,
) -> Result<bool, JsonError> {
    let mut call = position;
    let mut id = Vec::new();
    let mut called = (Vec::new(), Vec::new());
    cursor.members(|cursor, key| {
        match key.decode(scratch) {
            b"index" => call = cursor.count_or_skip()?.unwrap_or(position),
            b"id" => {
                if let Some(text) = cursor.string_or_skip()? {
                    text.decode_into(&mut id);
                }
            }
            b"function" | b"custom" => called = function(cursor, scratch)?,
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    builder.push_call(index, call, &id, &called.0, &called.1);
    Ok(!called.0.is_empty() || !called.1.is_empty())
}

/// Name and arguments of a function, both as text.
fn function(
    cursor: &mut Cursor<'_>,
    scratch: &mut Vec<u8>,
) -> Result<(Vec<u8>, Vec<u8>), JsonError> {
    let mut name = Vec::new();
    let mut arguments = Vec::new();
    cursor.members(|cursor, key| {
        match key.decode(scratch) {
            b"name" => {
                if let Some(text) = cursor.string_or_skip()? {
                    text.decode_into(&mut name);
                }
            }
            b"arguments" | b"input" => {
                if let Some(text) = cursor.string_or_skip()? {
                    text.decode_into(&mut arguments);
                }
            }
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    Ok((name, arguments))
}

/// One answer of `/generate`, or one event of its stream.
fn generated(
    cursor: &mut Cursor<'_>,
    position: u64,
    builder: &mut Builder,
) -> Result<(), JsonError> {
    let mut index = position;
    let mut text = Vec::new();
    let mut ids = Vec::new();
    let mut meta = Meta::default();
    let mut answered = false;
    let mut flat = FlatError::default();
    let mut scratch = Vec::new();
    cursor.members(|cursor, key| {
        match key.decode(&mut scratch) {
            b"index" => index = cursor.count_or_skip()?.unwrap_or(position),
            b"text" => {
                if let Some(value) = cursor.string_or_skip()? {
                    answered = true;
                    value.decode_into(&mut text);
                }
            }
            b"output_ids" => {
                answered = true;
                ids = token_ids(cursor)?;
            }
            b"meta_info" => meta = meta_info(cursor)?,
            b"error" => {
                if let Some(message) = error(cursor)? {
                    builder.set_error(message);
                }
            }
            b"object" => {
                flat.marked = cursor
                    .string_or_skip()?
                    .is_some_and(|kind| kind.to_text() == "error");
            }
            b"message" => flat.message = cursor.string_or_skip()?.map(RawStr::to_text),
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    flat.report(builder);
    if answered {
        builder.push_generated(index, &text, &ids, meta.usage.output);
        builder.set_choice_usage(index, meta.usage);
        builder.count_chunk();
        if let Some(reason) = meta.finish {
            builder.finish_choice(index, reason);
        }
    }
    Ok(())
}

#[derive(Default)]
struct Meta {
    usage: Usage,
    finish: Option<String>,
}

fn meta_info(cursor: &mut Cursor<'_>) -> Result<Meta, JsonError> {
    let mut meta = Meta::default();
    let mut scratch = Vec::new();
    cursor.members(|cursor, key| {
        match key.decode(&mut scratch) {
            b"prompt_tokens" => meta.usage.prompt = cursor.count_or_skip()?,
            b"completion_tokens" => meta.usage.output = cursor.count_or_skip()?,
            b"cached_tokens" => meta.usage.cached = cursor.count_or_skip()?,
            b"finish_reason" => {
                if cursor.peek()? == b'"' {
                    meta.finish = Some(cursor.string()?.to_text());
                } else {
                    cursor.members(|cursor, key| {
                        if key.decode(&mut scratch) == b"type" {
                            meta.finish = cursor.string_or_skip()?.map(RawStr::to_text);
                            return Ok(());
                        }
                        cursor.skip()
                    })?;
                }
            }
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    Ok(meta)
}

/// A flat list of token ids; empty if the value is anything else.
fn token_ids(cursor: &mut Cursor<'_>) -> Result<Vec<u32>, JsonError> {
    let mut ids = Vec::new();
    let mut plain = true;
    cursor.elements(|cursor| {
        match cursor.count_or_skip()?.map(u32::try_from) {
            Some(Ok(id)) => ids.push(id),
            _ => plain = false,
        }
        Ok(())
    })?;
    if !plain {
        ids.clear();
    }
    Ok(ids)
}

/// Whether a document that starts with `prefix` may still be a usage-only chunk.
pub fn may_be_usage_only(prefix: &[u8]) -> bool {
    let mut document = Document::default();
    match probe(&mut Cursor::new(prefix), &mut document) {
        Ok(()) => document.usage_only(),
        Err(error) => error.reason == Reason::Incomplete && !document.other,
    }
}

fn probe(cursor: &mut Cursor<'_>, document: &mut Document) -> Result<(), JsonError> {
    if cursor.peek()? != b'{' {
        document.other = true;
    }
    let mut scratch = Vec::new();
    cursor.members(|cursor, key| match key.decode(&mut scratch) {
        b"choices" => {
            document.no_choices = true;
            if cursor.peek()? != b'[' {
                document.other = true;
            }
            cursor.elements(|cursor| {
                document.other = true;
                cursor.skip()
            })
        }
        b"usage" => {
            document.usage = cursor.peek()? == b'{';
            cursor.skip()
        }
        name if ENVELOPE.contains(&name) => cursor.skip(),
        _ => {
            document.other |= cursor.peek()? != b'n';
            cursor.skip()
        }
    })
}
