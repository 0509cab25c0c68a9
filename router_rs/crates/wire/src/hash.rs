//! Canonical 64-bit hashes: of a message, of a history, of a JSON value.
//!
//! Invariant: an assistant message that a client sends back hashes to the same number as the answer it came
//! from, whatever the client's JSON writer does to key order, whitespace, escapes and absent fields. So a hash
//! covers meaning only: role, visible text, media, tool calls. Not: reasoning, refusals, annotations, names.
//!
//! The numbers (XXH3, 64 bit) are hints for recognition, never keys of anything that must not collide, and
//! they are not stable between releases.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::cursor::{Cursor, JsonError, Reason};

/// Hashes a few words into one.
pub fn fold<const WORDS: usize>(words: [u64; WORDS]) -> u64 {
    // Flat bytes, since the one-shot hash of few bytes costs a tenth of a streamed one.
    let mut bytes = [0; 64];
    for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64(&bytes[..(WORDS * 8).min(64)])
}

/// The next link of a hash chain.
pub fn link(previous: u64, next: u64) -> u64 {
    fold([previous, next])
}

/// Hashes plain bytes.
pub fn bytes(data: &[u8]) -> u64 {
    xxh3_64(data)
}

/// Hashes token ids (little-endian, four bytes each).
pub fn tokens(ids: &[u32]) -> u64 {
    let mut state = Xxh3::new();
    let mut block = [0; 256];
    for part in ids.chunks(64) {
        for (slot, id) in block.chunks_exact_mut(4).zip(part) {
            slot.copy_from_slice(&id.to_le_bytes());
        }
        state.update(&block[..part.len() * 4]);
    }
    state.digest()
}

/// The parts of a message that count, each already a hash.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageParts {
    /// Hash of the role's name.
    pub role: u64,
    /// Hash of the text, all text parts joined.
    pub text: u64,
    /// Chain over images and other parts, 0 without any.
    pub media: u64,
    /// Chain over tool calls ([`call`]), 0 without any.
    pub calls: u64,
    /// Hash of the id of the call that a tool message answers, 0 without one.
    pub answers_call: u64,
}

impl MessageParts {
    /// The message's hash.
    pub fn digest(self) -> u64 {
        fold([
            self.role,
            self.text,
            self.media,
            self.calls,
            self.answers_call,
        ])
    }
}

/// Hash of one tool call, from the hashes of its parts. The id tells apart siblings that make the same call; without one it is 0.
pub fn call(name: u64, arguments: u64, id: Option<u64>) -> u64 {
    fold([name, arguments, id.unwrap_or(0)])
}

/// The part of an assistant's text that counts.
///
/// Clients drop `<think>` blocks and outer whitespace when they send an answer back; so does this.
pub fn visible(text: &[u8]) -> &[u8] {
    let start =
        memchr::memmem::rfind(text, END_OF_THOUGHT).map_or(0, |at| at + END_OF_THOUGHT.len());
    text[start..].trim_ascii()
}

const END_OF_THOUGHT: &[u8] = b"</think>";

/// [`bytes`] of [`visible`] text that arrives in pieces.
#[derive(Clone)]
pub struct VisibleText {
    state: Box<Xxh3>,
    started: bool,
    /// Whitespace that counts only if more text follows.
    pending: Vec<u8>,
    /// The last bytes seen, for an end tag cut in two.
    tail: Vec<u8>,
}

impl Default for VisibleText {
    fn default() -> Self {
        Self {
            state: Box::new(Xxh3::new()),
            started: false,
            pending: Vec::new(),
            tail: Vec::new(),
        }
    }
}

impl VisibleText {
    /// Takes the next piece. `Some(offset)`: a thought ended there, and nothing before it counts.
    pub fn push(&mut self, piece: &[u8]) -> Option<usize> {
        let counts_from = self.end_of_thought(piece);
        if counts_from.is_some() {
            self.state.reset();
            self.started = false;
            self.pending.clear();
        }
        let mut text = &piece[counts_from.unwrap_or(0)..];
        if !self.started {
            text = text.trim_ascii_start();
        }
        let solid = text.trim_ascii_end();
        if !solid.is_empty() {
            self.started = true;
            self.state.update(&self.pending);
            self.pending.clear();
            self.state.update(solid);
        }
        if self.started {
            self.pending.extend_from_slice(&text[solid.len()..]);
        }
        counts_from
    }

    /// Where in `piece` the text after the last end tag starts.
    fn end_of_thought(&mut self, piece: &[u8]) -> Option<usize> {
        let keep = END_OF_THOUGHT.len() - 1;
        let before = self.tail.len();
        let found = memchr::memrchr(b'>', piece).and_then(|_| {
            let inside =
                memchr::memmem::rfind(piece, END_OF_THOUGHT).map(|at| at + END_OF_THOUGHT.len());
            inside.or_else(|| {
                self.tail.extend_from_slice(&piece[..piece.len().min(keep)]);
                let across = memchr::memmem::rfind(&self.tail, END_OF_THOUGHT);
                self.tail.truncate(before);
                across.map(|at| at + END_OF_THOUGHT.len() - before)
            })
        });
        let fresh = piece.len().min(keep);
        let excess = (before + fresh).saturating_sub(keep).min(before);
        self.tail.drain(..excess);
        self.tail.extend_from_slice(&piece[piece.len() - fresh..]);
        found
    }

    /// The hash of what counts so far.
    pub fn digest(&self) -> u64 {
        self.state.digest()
    }
}

/// Bytes of text that make an anchor.
const ANCHOR: usize = 48;

/// Hashes of the first 48 bytes at each line start of `text`, at most `limit` of them.
///
/// An agent that compacts its history puts the summary, which is the model's own last answer, into a new message:
/// then a line of that message starts as the answer did. Too short a rest makes no anchor.
pub fn anchors(text: &[u8], limit: usize, out: &mut Vec<u64>) {
    let mut rest = text.trim_ascii_start();
    for _ in 0..limit {
        if rest.len() < ANCHOR {
            return;
        }
        out.push(bytes(&rest[..ANCHOR]));
        let Some(line_end) = memchr::memchr(b'\n', rest) else {
            return;
        };
        rest = rest[line_end..].trim_ascii_start();
    }
}

const NULL: u64 = 1;
const FALSE: u64 = 2;
const TRUE: u64 = 3;
const NUMBER: u64 = 4;
const STRING: u64 = 5;
const ARRAY: u64 = 6;
const OBJECT: u64 = 7;

/// Reads one JSON value and hashes its meaning: key order, whitespace, escapes and `null` members do not count,
/// nor the members named in `ignored`.
pub fn canonical(
    cursor: &mut Cursor<'_>,
    ignored: &[&[u8]],
    scratch: &mut Vec<u8>,
) -> Result<u64, JsonError> {
    match cursor.peek()? {
        b'"' => {
            let text = cursor.string()?;
            Ok(link(STRING, bytes(text.decode(scratch))))
        }
        b'{' => {
            // A sum does not depend on order. A repeated key counts twice: rare, and only a hash.
            let mut sum = 0_u64;
            cursor.members(|cursor, key| {
                let key = key.decode(scratch);
                if ignored.contains(&key) {
                    return cursor.skip();
                }
                let name = bytes(key);
                let value = canonical(cursor, ignored, scratch)?;
                if value != NULL {
                    sum = sum.wrapping_add(link(name, value));
                }
                Ok(())
            })?;
            Ok(link(OBJECT, sum))
        }
        b'[' => {
            let mut chain = ARRAY;
            cursor.elements(|cursor| {
                chain = link(chain, canonical(cursor, ignored, scratch)?);
                Ok(())
            })?;
            Ok(link(ARRAY, chain))
        }
        b't' | b'f' => Ok(if cursor.boolean()? { TRUE } else { FALSE }),
        b'n' => cursor.null().map(|()| NULL),
        b'-' | b'0'..=b'9' | b'N' | b'I' => {
            // By value: a client that reads 1.0 may write 1. Adding 0.0 makes one zero of two.
            let value = cursor.number()?.parse::<f64>().unwrap_or(f64::NAN) + 0.0;
            Ok(link(NUMBER, value.to_bits()))
        }
        _ => Err(cursor.error(Reason::Unexpected)),
    }
}
