//! Answers of `/v1/responses`: a whole response, or one event of its stream.
//!
//! In a stream an answer is what its `response.output_item.done` events say: clients keep nothing else of it (Codex,
//! the Agents SDK), so of a broken one the items that were complete count. The deltas are counted.
//!
//! Source: `SGLang` 0.5.23, `entrypoints/openai/serving_responses.py` and `protocol.py: ResponsesResponse`.

use crate::answer::Builder;
use crate::cursor::{Cursor, JsonError, RawStr};
use crate::reply::error;
use crate::usage;

/// Reads a document into `builder`.
pub fn read(cursor: &mut Cursor<'_>, builder: &mut Builder) -> Result<(), JsonError> {
    let mut kind = Vec::new();
    let mut name = Vec::new();
    let mut item = None;
    let mut message = None;
    let mut whole = Response::default();
    cursor.members(|cursor, key| {
        match key.decode(&mut name) {
            b"type" => {
                if let Some(text) = cursor.string_or_skip()? {
                    kind.clear();
                    text.decode_into(&mut kind);
                }
            }
            b"sequence_number" => {
                if let Some(number) = cursor.count_or_skip()? {
                    builder.set_sequence(number);
                }
            }
            b"delta" => {
                let text = cursor.string_or_skip()?;
                if text.is_some_and(|text| !text.decode(&mut Vec::new()).is_empty()) {
                    builder.count_chunk();
                }
            }
            b"item" => {
                cursor.peek()?;
                item = Some(*cursor);
                cursor.skip()?;
            }
            b"response" => {
                let mut inner = Response::default();
                let mut name = Vec::new();
                cursor.members(|cursor, key| match key.decode(&mut name) {
                    // Its items came one by one before.
                    b"output" => {
                        inner.answered = true;
                        cursor.skip()
                    }
                    name => inner.member(cursor, name, builder),
                })?;
                whole = inner;
            }
            b"message" => message = cursor.string_or_skip()?.map(RawStr::to_text),
            b"output" if cursor.peek()? == b'[' => {
                whole.answered = true;
                cursor.elements(|cursor| output_item(cursor, builder))?;
            }
            name => whole.member(cursor, name, builder)?,
        }
        Ok(())
    })?;
    match kind.as_slice() {
        b"response.output_item.done" => {
            if let Some(mut item) = item {
                output_item(&mut item, builder)?;
            }
        }
        // The event `error` has its message beside its type.
        b"error" => builder.set_error(message.unwrap_or_default()),
        _ => {}
    }
    whole.end(builder);
    Ok(())
}

/// What a response says of itself besides its items.
#[derive(Default)]
struct Response {
    status: Vec<u8>,
    /// Why it is incomplete.
    reason: Vec<u8>,
    error: Option<String>,
    answered: bool,
}

impl Response {
    fn member(
        &mut self,
        cursor: &mut Cursor<'_>,
        name: &[u8],
        builder: &mut Builder,
    ) -> Result<(), JsonError> {
        let mut inner = Vec::new();
        match name {
            b"id" => {
                if let Some(id) = cursor.string_or_skip()? {
                    builder.set_response_id(id.to_text());
                }
                Ok(())
            }
            b"status" => {
                if let Some(status) = cursor.string_or_skip()? {
                    self.status.clear();
                    status.decode_into(&mut self.status);
                }
                Ok(())
            }
            b"incomplete_details" => cursor.members(|cursor, key| {
                if key.decode(&mut inner) != b"reason" {
                    return cursor.skip();
                }
                if let Some(reason) = cursor.string_or_skip()? {
                    reason.decode_into(&mut self.reason);
                }
                Ok(())
            }),
            b"error" => {
                self.error = error(cursor)?;
                Ok(())
            }
            b"usage" if cursor.peek()? == b'{' => {
                builder.set_usage(usage::read(cursor, &usage::RESPONSES)?);
                Ok(())
            }
            _ => cursor.skip(),
        }
    }

    /// The end that it tells of, in chat's words.
    fn end(self, builder: &mut Builder) {
        if self.answered {
            builder.see_choice(0);
        }
        let word = match self.status.as_slice() {
            b"completed" if builder.calls() > 0 => Some("tool_calls"),
            b"completed" => Some("stop"),
            b"incomplete" if self.reason == b"content_filter" => Some("content_filter"),
            b"incomplete" => Some("length"),
            b"cancelled" => Some("abort"),
            _ => None,
        };
        if let Some(word) = word {
            builder.finish_choice(0, word.to_owned());
        }
        let failed = self.status == b"failed";
        if let Some(message) = self.error.or_else(|| failed.then(String::new)) {
            builder.set_error(message);
        }
        if word.is_some() || failed {
            builder.set_done();
        }
    }
}

/// One item of an answer, whole.
fn output_item(cursor: &mut Cursor<'_>, builder: &mut Builder) -> Result<(), JsonError> {
    let mut kind = Vec::new();
    let mut call_id = Vec::new();
    let mut called = Vec::new();
    let mut arguments = Vec::new();
    let mut content = None;
    let mut name = Vec::new();
    cursor.members(|cursor, key| {
        let target = match key.decode(&mut name) {
            b"type" => &mut kind,
            b"call_id" => &mut call_id,
            b"name" => &mut called,
            b"arguments" | b"input" => &mut arguments,
            b"content" => {
                cursor.peek()?;
                content = Some(*cursor);
                return cursor.skip();
            }
            _ => return cursor.skip(),
        };
        if let Some(text) = cursor.string_or_skip()? {
            target.clear();
            text.decode_into(target);
        }
        Ok(())
    })?;
    builder.see_choice(0);
    match kind.as_slice() {
        b"message" => {
            if let Some(mut content) = content {
                content.elements(|cursor| text_part(cursor, builder))?;
            }
        }
        b"function_call" | b"custom_tool_call" => {
            let position = builder.calls();
            builder.push_call(0, position, &call_id, &called, &arguments);
        }
        _ => {}
    }
    Ok(())
}

fn text_part(cursor: &mut Cursor<'_>, builder: &mut Builder) -> Result<(), JsonError> {
    let mut name = Vec::new();
    cursor.members(|cursor, key| {
        if key.decode(&mut name) != b"text" {
            return cursor.skip();
        }
        if let Some(text) = cursor.string_or_skip()? {
            builder.push_content(0, text.decode(&mut Vec::new()));
        }
        Ok(())
    })
}
