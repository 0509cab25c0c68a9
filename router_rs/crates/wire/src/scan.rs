//! One pass over a request body.

use crate::anthropic;
use crate::cursor::{Cursor, JsonError, RawStr, Reason};
use crate::dialect::Dialect;
use crate::fields;
use crate::hash;
use crate::message;
use crate::prompt::Prompt;
use crate::responses;
use crate::role::Role;
use crate::turns::{AFTER_STORED, Turns};

/// Most messages, and most tool-call ids, of a history that is followed. No agent has a tenth of it; a body of `{},{},...`
/// would come to more bytes as hashes than it has itself. One that is longer is [`Unit::Opaque`].
pub const MAX_HISTORY: usize = 100_000;

/// What lengths of a history are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Messages of a conversation.
    Messages,
    /// Bytes of a prompt's text.
    Bytes,
    /// Token ids of a prompt.
    Tokens,
    /// Nothing that can be extended: a batch of prompts, or no prompt at all.
    Opaque,
}

/// One top-level member: offsets of its key (at the quote), its value and the value's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub key: usize,
    pub value: usize,
    pub end: usize,
}

/// What one pass over a request body found. Spans are offsets into that body.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The dialect the body was read as.
    pub dialect: Dialect,
    /// `model`.
    pub model: Option<String>,
    /// `stream` is `true`.
    pub stream: bool,
    /// `stream_options.include_usage`, where it says so.
    pub include_usage: Option<bool>,
    /// `background` is `true`: the caller does not wait for the answer (`/v1/responses`).
    pub background: bool,
    /// Answers asked for: `n` (also `sampling_params.n`), at least 1.
    pub choices: u64,
    /// Most output tokens asked for; the newer field wins over the older.
    pub max_tokens: Option<u64>,
    /// Prompt tokens: exact for token ids, estimated at four bytes each for text.
    pub prompt_tokens: u64,
    /// Strings that may name a trajectory, by dotted path.
    pub fields: Vec<(String, String)>,
    /// Hash of each message; empty in the text dialects.
    pub message_hashes: Vec<u64>,
    /// Role of each message; empty in the text dialects.
    pub roles: Vec<Role>,
    /// Hashes of the tool-call ids named in the history.
    pub call_ids: Vec<u64>,
    /// `previous_response_id`: the answer, kept by the worker that gave it, that this request goes on from.
    pub previous: Option<String>,
    /// With messages: hash of each prefix of the history, `chain[i]` over messages `0..=i`.
    /// Text dialects: hash of each prefix of whole blocks, see [`Prompt::chain`].
    pub chain: Vec<u64>,
    /// The prompt of a text dialect.
    pub prompt: Option<Prompt>,
    /// How the lines of the messages start, where that came with the scan from another process.
    pub(crate) anchors: Option<Vec<u64>>,
    pub(crate) length: usize,
    pub(crate) brace: usize,
    pub(crate) members: Vec<Member>,
    pub(crate) stream_options: Option<Member>,
}

impl Scan {
    /// What [`history_length`](Self::history_length) counts.
    pub fn unit(&self) -> Unit {
        match (&self.prompt, self.dialect) {
            (_, dialect) if dialect.has_messages() && !self.roles.is_empty() => Unit::Messages,
            (Some(Prompt::Text(_)), _) => Unit::Bytes,
            (Some(Prompt::Tokens(_)), _) => Unit::Tokens,
            _ => Unit::Opaque,
        }
    }

    /// Length of the history: messages, bytes or tokens.
    pub fn history_length(&self) -> usize {
        match self.unit() {
            Unit::Messages => self.message_hashes.len(),
            _ => self.prompt.as_ref().map_or(0, Prompt::len),
        }
    }

    /// Hash of what conversations of one agent share: a leading system or developer message, or the first block
    /// of a prompt. 0 without one.
    pub fn head(&self) -> u64 {
        match (self.unit(), self.roles.first()) {
            (Unit::Messages, Some(Role::System | Role::Developer)) => self.message_hashes[0],
            (Unit::Bytes | Unit::Tokens, _) => self.chain.first().copied().unwrap_or_default(),
            _ => 0,
        }
    }

    /// The last answer in a history of messages that has something before it: the hash of all before it, and its
    /// own. A stored answer comes after [`AFTER_STORED`].
    pub fn last_answer(&self) -> Option<(u64, u64)> {
        if let Some(stored) = self.stored() {
            return Some((AFTER_STORED, stored));
        }
        let place = self
            .roles
            .iter()
            .rposition(|role| *role == Role::Assistant)?;
        Some((
            *self.chain.get(place.checked_sub(1)?)?,
            self.message_hashes[place],
        ))
    }

    /// Hash of the id of the stored answer that this request goes on from.
    pub fn stored(&self) -> Option<u64> {
        let id = self.previous.as_ref()?;
        Some(hash::bytes(id.as_bytes()))
    }

    /// Hash of the first `length` units of the history; `None` beyond its end.
    pub fn prefix_hash(&self, length: usize) -> Option<u64> {
        match self.unit() {
            Unit::Messages => length
                .checked_sub(1)
                .and_then(|last| self.chain.get(last))
                .copied(),
            Unit::Opaque => None,
            Unit::Bytes | Unit::Tokens => self.prompt.as_ref()?.prefix_hash(&self.chain, length),
        }
    }

    /// Hash of `length` units of a prompt from `start`, to be compared with an answer's; `None` in chat.
    pub fn span_hash(&self, start: usize, length: usize) -> Option<u64> {
        match self.unit() {
            Unit::Bytes | Unit::Tokens => self.prompt.as_ref()?.span_hash(start, length),
            Unit::Messages | Unit::Opaque => None,
        }
    }
}

/// Checks that `body` is UTF-8 without a byte order mark.
pub(crate) fn check_encoding(body: &[u8]) -> Result<(), JsonError> {
    if body.starts_with(b"\xEF\xBB\xBF") {
        return Err(JsonError {
            position: 0,
            reason: Reason::ByteOrderMark,
        });
    }
    match std::str::from_utf8(body) {
        Ok(_) => Ok(()),
        Err(error) => Err(JsonError {
            position: error.valid_up_to(),
            reason: Reason::Encoding,
        }),
    }
}

/// Reads a request body.
///
/// # Errors
/// The bytes are no JSON object, no UTF-8, or nest deeper than 512. Nothing else: types are the worker's business.
pub fn scan_body(body: &[u8], dialect: Dialect) -> Result<Scan, JsonError> {
    check_encoding(body)?;
    let mut cursor = Cursor::new(body);
    if cursor.peek()? != b'{' {
        let start = cursor.position();
        let reason = match cursor.skip() {
            Ok(()) => Reason::NotAnObject,
            Err(error) => return Err(error),
        };
        return Err(JsonError {
            position: start,
            reason,
        });
    }
    let mut reader = Reader::new(dialect, cursor.position());
    cursor.enter_object()?;
    let mut first = true;
    while let Some(key) = cursor.key(&mut first)? {
        cursor.peek()?;
        let value = cursor.position();
        reader.member(&mut cursor, key)?;
        let member = Member {
            key: key.quote(),
            value,
            end: cursor.position(),
        };
        reader.scan.members.push(member);
        if reader.is_stream_options {
            reader.scan.stream_options = Some(member);
        }
    }
    cursor.finish()?;
    reader.scan.length = body.len();
    Ok(reader.finish())
}

/// Most anchors taken from one request.
const MAX_ANCHORS: usize = 4096;

/// Anchors ([`hash::anchors`]) of the messages' texts. A second pass, needed only for a request that extends no
/// known history. Empty for other dialects and for bodies that are no JSON.
pub fn message_anchors(body: &[u8], dialect: Dialect) -> Vec<u64> {
    let mut anchors = Vec::new();
    if dialect.has_messages() {
        // What was found before an error is of no use, and a scanned body has none.
        let _ = read_anchors(&mut Cursor::new(body), dialect, &mut anchors);
    }
    anchors
}

fn read_anchors(
    cursor: &mut Cursor<'_>,
    dialect: Dialect,
    anchors: &mut Vec<u64>,
) -> Result<(), JsonError> {
    let mut scratch = message::Scratch::default();
    let mut name = Vec::new();
    let wanted: &[u8] = if dialect == Dialect::Responses {
        b"input"
    } else {
        b"messages"
    };
    cursor.members(|cursor, key| {
        if key.decode(&mut name) != wanted {
            return cursor.skip();
        }
        anchors.clear();
        let mut take = |text: &[u8]| {
            let room = MAX_ANCHORS.saturating_sub(anchors.len());
            hash::anchors(text, room, anchors);
        };
        if dialect == Dialect::Responses {
            return responses::input(cursor, &mut scratch, &mut Turns::default(), take);
        }
        cursor.elements(|cursor| {
            let ids = &mut Vec::new();
            match dialect {
                Dialect::Messages => anthropic::message(cursor, &mut scratch, ids)?,
                _ => message::read(cursor, &mut scratch, ids)?,
            };
            take(scratch.text());
            Ok(())
        })
    })
}

/// The state of the pass.
struct Reader {
    scan: Scan,
    scratch: message::Scratch,
    name: Vec<u8>,
    is_stream_options: bool,
    /// Bytes of text a model will read besides the messages: tools, response formats.
    text_bytes: usize,
    message_bytes: usize,
    max_completion_tokens: Option<u64>,
    input_ids: Option<Prompt>,
    /// Of the dialects whose system prompt stands apart.
    turns: Turns,
}

impl Reader {
    fn new(dialect: Dialect, brace: usize) -> Self {
        Self {
            scan: Scan {
                dialect,
                model: None,
                stream: false,
                include_usage: None,
                background: false,
                choices: 1,
                max_tokens: None,
                prompt_tokens: 0,
                fields: Vec::new(),
                message_hashes: Vec::new(),
                roles: Vec::new(),
                call_ids: Vec::new(),
                previous: None,
                chain: Vec::new(),
                prompt: None,
                anchors: None,
                length: 0,
                brace,
                members: Vec::with_capacity(16),
                stream_options: None,
            },
            scratch: message::Scratch::default(),
            name: Vec::new(),
            is_stream_options: false,
            text_bytes: 0,
            message_bytes: 0,
            max_completion_tokens: None,
            input_ids: None,
            turns: Turns::default(),
        }
    }

    /// Reads the value of one top-level member. A repeated key wins over the earlier one, as in Python.
    fn member(&mut self, cursor: &mut Cursor<'_>, key: RawStr<'_>) -> Result<(), JsonError> {
        self.name.clear();
        key.decode_into(&mut self.name);
        self.is_stream_options = false;
        let chat = self.scan.dialect == Dialect::Chat;
        let generate = self.scan.dialect == Dialect::Generate;
        let tokens = self.scan.dialect == Dialect::Tokens;
        match self.name.as_slice() {
            b"model" => self.scan.model = cursor.string_or_skip()?.map(RawStr::to_text),
            b"stream" => self.scan.stream = cursor.boolean_or_skip()? == Some(true),
            b"n" => self.scan.choices = cursor.count_or_skip()?.unwrap_or(1).max(1),
            b"max_tokens" => self.scan.max_tokens = cursor.count_or_skip()?,
            b"max_completion_tokens" => self.max_completion_tokens = cursor.count_or_skip()?,
            b"stream_options" => {
                self.is_stream_options = true;
                let mut include_usage = None;
                cursor.members(|cursor, key| {
                    if key.decode(&mut Vec::new()) == b"include_usage" {
                        include_usage = cursor.boolean_or_skip()?;
                        return Ok(());
                    }
                    cursor.skip()
                })?;
                self.scan.include_usage = include_usage;
            }
            b"sampling_params" if generate || tokens => self.sampling_params(cursor)?,
            b"messages" if chat => self.messages(cursor)?,
            b"tools" | b"functions" if self.scan.dialect.has_messages() => {
                let before = cursor.position();
                cursor.skip()?;
                self.text_bytes += cursor.position() - before;
            }
            b"input_ids" if chat || generate => self.input_ids = Prompt::read(cursor)?,
            b"prompt" if self.scan.dialect == Dialect::Completions => {
                self.scan.prompt = Prompt::read(cursor)?;
            }
            b"token_ids" if tokens => self.scan.prompt = Prompt::read(cursor)?,
            b"text" if generate => self.scan.prompt = Prompt::read(cursor)?,
            _ if self.scan.dialect == Dialect::Messages => self.anthropic(cursor)?,
            _ if self.scan.dialect == Dialect::Responses => self.responses(cursor)?,
            _ => self.field(cursor)?,
        }
        Ok(())
    }

    /// A member that this crate reads only for the trajectory that it may name.
    fn field(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        match std::str::from_utf8(&self.name) {
            Ok(name) if fields::concerns(name) => {
                fields::collect(cursor, name, &mut self.scan.fields)
            }
            _ => cursor.skip(),
        }
    }

    /// Members of `/v1/messages` alone.
    fn anthropic(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let Self { turns, scratch, .. } = self;
        match self.name.as_slice() {
            b"system" => {
                turns.system = None;
                if let Some(text) = anthropic::system(cursor, scratch)? {
                    turns.set_system(&text);
                }
            }
            b"messages" => {
                turns.clear();
                cursor.elements(|cursor| {
                    let message = anthropic::message(cursor, scratch, &mut turns.call_ids)?;
                    turns.push(message.role, message.hash, message.text_bytes);
                    Ok(())
                })?;
            }
            _ => self.field(cursor)?,
        }
        Ok(())
    }

    /// Members of `/v1/responses` alone.
    fn responses(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let Self { turns, scratch, .. } = self;
        match self.name.as_slice() {
            b"instructions" => {
                turns.system = None;
                if let Some(text) = cursor.string_or_skip()? {
                    turns.set_system(text.decode(&mut Vec::new()));
                }
            }
            b"input" => {
                turns.clear();
                responses::input(cursor, scratch, turns, |_| ())?;
            }
            b"max_output_tokens" => self.scan.max_tokens = cursor.count_or_skip()?,
            b"background" => self.scan.background = cursor.boolean_or_skip()? == Some(true),
            b"previous_response_id" => {
                cursor.peek()?;
                let mut here = *cursor;
                self.scan.previous = here.string_or_skip()?.map(RawStr::to_text);
                self.field(cursor)?;
            }
            _ => self.field(cursor)?,
        }
        Ok(())
    }

    /// `sampling_params`: one object, or one for each prompt (the first speaks for all). vLLM says `max_tokens`.
    fn sampling_params(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let mut max_tokens = None;
        let mut choices = None;
        let mut read = |cursor: &mut Cursor<'_>| {
            cursor.members(|cursor, key| {
                match key.decode(&mut Vec::new()) {
                    b"max_new_tokens" | b"max_tokens" => {
                        max_tokens = max_tokens.or(cursor.count_or_skip()?);
                    }
                    b"n" => choices = choices.or(cursor.count_or_skip()?),
                    _ => cursor.skip()?,
                }
                Ok(())
            })
        };
        if cursor.peek()? == b'[' {
            cursor.elements(|cursor| read(cursor))?;
        } else {
            read(cursor)?;
        }
        self.scan.max_tokens = max_tokens;
        self.scan.choices = choices.unwrap_or(1).max(1);
        Ok(())
    }

    fn messages(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let Self {
            scan,
            scratch,
            message_bytes,
            ..
        } = self;
        *message_bytes = 0;
        scan.message_hashes.clear();
        scan.roles.clear();
        scan.call_ids.clear();
        scan.chain.clear();
        let mut chain = 0;
        let mut too_long = false;
        cursor.elements(|cursor| {
            let message = message::read(cursor, scratch, &mut scan.call_ids)?;
            // The role and its markers cost a template a few tokens.
            *message_bytes += message.text_bytes + 16;
            too_long |= scan.roles.len() == MAX_HISTORY || scan.call_ids.len() > MAX_HISTORY;
            if too_long {
                scan.call_ids.clear();
                return Ok(());
            }
            chain = hash::link(chain, message.hash);
            scan.message_hashes.push(message.hash);
            scan.roles.push(message.role);
            scan.chain.push(chain);
            Ok(())
        })?;
        if too_long {
            scan.message_hashes = Vec::new();
            scan.roles = Vec::new();
            scan.call_ids = Vec::new();
            scan.chain = Vec::new();
        }
        Ok(())
    }

    fn finish(mut self) -> Scan {
        let scan = &mut self.scan;
        if matches!(scan.dialect, Dialect::Messages | Dialect::Responses) {
            self.message_bytes = self.turns.move_to(scan);
        }
        scan.max_tokens = self.max_completion_tokens.or(scan.max_tokens);
        scan.prompt_tokens = (self.text_bytes + self.message_bytes) as u64 / 4;
        if scan.dialect.has_messages() {
            // SGLang takes input_ids beside the messages and skips the template: only the size is of interest.
            if let Some(ids) = &self.input_ids {
                scan.prompt_tokens = ids.token_estimate();
            }
        } else {
            if let Some(ids) = self.input_ids {
                scan.prompt = Some(ids);
            }
            if let Some(prompt) = &scan.prompt {
                scan.prompt_tokens = prompt.token_estimate();
                scan.chain = prompt.chain();
            }
        }
        self.scan
    }
}
