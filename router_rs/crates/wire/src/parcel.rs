//! What was read of a request or an answer, as bytes for another process of the same release.
//!
//! Hashes, counts and names; of a text dialect also the prompt, since lengths of its prefixes are asked for that only
//! the reader knows. What can be computed from the rest is not written. Not a format to keep: it has no version, and the
//! hashes in it mean something within one release alone.

use crate::answer::Answer;
use crate::dialect::Dialect;
use crate::hash;
use crate::prompt::Prompt;
use crate::role::Role;
use crate::scan::{Scan, message_anchors};
use crate::turns;

/// Bytes that are no parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a parcel of this release: {0}")]
pub struct ParcelError(&'static str);

type Read<T> = Result<T, ParcelError>;

const DIALECTS: [Dialect; 6] = Dialect::ALL;
const ROLES: [Role; 6] = [
    Role::System,
    Role::Developer,
    Role::User,
    Role::Assistant,
    Role::Tool,
    Role::Other,
];

impl Scan {
    /// `body`: the bytes that were scanned; how their lines start is written too.
    pub fn to_bytes(&self, body: &[u8]) -> Vec<u8> {
        let Self {
            dialect,
            model,
            stream,
            include_usage,
            background,
            choices,
            max_tokens,
            prompt_tokens,
            // Read where the request came in.
            fields: _,
            message_hashes,
            roles,
            call_ids,
            previous,
            // From the message hashes, or the prompt.
            chain: _,
            prompt,
            anchors: _,
            // Places in the body, which stays where it is.
            length: _,
            brace: _,
            members: _,
            stream_options: _,
        } = self;
        let mut out = Writer::default();
        out.place(&DIALECTS, dialect);
        out.option(model.as_ref(), Writer::text);
        out.byte(u8::from(*stream));
        out.option(include_usage.as_ref(), |out, said| {
            out.byte(u8::from(*said));
        });
        out.count(*choices);
        out.option(max_tokens.as_ref(), |out, tokens| out.count(*tokens));
        out.count(*prompt_tokens);
        out.hashes(message_hashes);
        for role in roles {
            out.place(&ROLES, role);
        }
        out.hashes(call_ids);
        out.byte(u8::from(*background));
        out.option(previous.as_ref(), Writer::text);
        match prompt {
            None => out.byte(0),
            Some(Prompt::Text(text)) => {
                out.byte(1);
                out.bytes(text);
            }
            Some(Prompt::Tokens(ids)) => {
                out.byte(2);
                out.list(ids, |out, id| out.count(u64::from(*id)));
            }
            Some(Prompt::Batch {
                hash,
                count,
                tokens,
            }) => {
                out.byte(3);
                out.hash(*hash);
                out.count(*count as u64);
                out.count(*tokens);
            }
        }
        out.hashes(&self.anchors_in(body));
        out.0
    }

    /// What [`Scan::to_bytes`] wrote. No body belongs to it: it cannot be spliced.
    ///
    /// # Errors
    /// Bytes that were cut short, or of another release.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParcelError> {
        let mut from = Reader(bytes);
        let dialect = from.place(&DIALECTS)?;
        let model = from.option(Reader::text)?;
        let stream = from.flag()?;
        let include_usage = from.option(Reader::flag)?;
        let choices = from.count()?;
        let max_tokens = from.option(Reader::count)?;
        let prompt_tokens = from.count()?;
        let message_hashes = from.hashes()?;
        let roles = (0..message_hashes.len())
            .map(|_| from.place(&ROLES))
            .collect::<Read<_>>()?;
        let call_ids = from.hashes()?;
        let background = from.flag()?;
        let previous = from.option(Reader::text)?;
        let prompt = match from.byte()? {
            0 => None,
            1 => Some(Prompt::Text(from.bytes()?.to_vec())),
            2 => Some(Prompt::Tokens(from.list(1, |from| {
                u32::try_from(from.count()?).map_err(|_| ParcelError("a token id is too large"))
            })?)),
            3 => Some(Prompt::Batch {
                hash: from.hash()?,
                count: from.size()?,
                tokens: from.count()?,
            }),
            _ => return Err(ParcelError("an unknown kind of prompt")),
        };
        let anchors = from.hashes()?;
        from.end()?;
        let chain = match &prompt {
            Some(prompt) => prompt.chain(),
            None => turns::chain(
                &message_hashes,
                previous.as_ref().map(|id| hash::bytes(id.as_bytes())),
            ),
        };
        Ok(Self {
            dialect,
            model,
            stream,
            include_usage,
            background,
            choices,
            max_tokens,
            prompt_tokens,
            fields: Vec::new(),
            message_hashes,
            roles,
            call_ids,
            previous,
            chain,
            prompt,
            anchors: Some(anchors),
            length: 0,
            brace: 0,
            members: Vec::new(),
            stream_options: None,
        })
    }

    /// How the lines of the messages start ([`message_anchors`]); `body`: the bytes that were scanned, of no concern
    /// where the scan came from another process.
    pub fn anchors_in(&self, body: &[u8]) -> Vec<u64> {
        match &self.anchors {
            Some(anchors) => anchors.clone(),
            None => message_anchors(body, self.dialect),
        }
    }
}

impl Answer {
    /// For [`Answer::from_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self {
            prompt_tokens,
            output_tokens,
            cached_tokens,
            finish_reasons,
            tool_names,
            answer_hashes,
            text_spans,
            token_spans,
            call_ids,
            anchors,
            chunks,
            done,
            error,
            response_id,
            sequence,
        } = self;
        let mut out = Writer::default();
        for tokens in [prompt_tokens, output_tokens, cached_tokens] {
            out.option(tokens.as_ref(), |out, tokens| out.count(*tokens));
        }
        for names in [finish_reasons, tool_names] {
            out.list(names, Writer::text);
        }
        out.hashes(answer_hashes);
        for spans in [text_spans, token_spans] {
            out.list(spans, |out, (length, hash)| {
                out.count(*length as u64);
                out.hash(*hash);
            });
        }
        out.hashes(call_ids);
        out.hashes(anchors);
        out.count(*chunks);
        out.byte(u8::from(*done));
        for text in [error, response_id] {
            out.option(text.as_ref(), Writer::text);
        }
        out.option(sequence.as_ref(), |out, number| out.count(*number));
        out.0
    }

    /// What [`Answer::to_bytes`] wrote.
    ///
    /// # Errors
    /// Bytes that were cut short, or of another release.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParcelError> {
        let mut from = Reader(bytes);
        let found = Self {
            prompt_tokens: from.option(Reader::count)?,
            output_tokens: from.option(Reader::count)?,
            cached_tokens: from.option(Reader::count)?,
            finish_reasons: from.list(1, Reader::text)?,
            tool_names: from.list(1, Reader::text)?,
            answer_hashes: from.hashes()?,
            text_spans: from.spans()?,
            token_spans: from.spans()?,
            call_ids: from.hashes()?,
            anchors: from.hashes()?,
            chunks: from.count()?,
            done: from.flag()?,
            error: from.option(Reader::text)?,
            response_id: from.option(Reader::text)?,
            sequence: from.option(Reader::count)?,
        };
        from.end()?;
        Ok(found)
    }
}

/// Counts are seven bits a byte, lowest first; hashes eight bytes.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn count(&mut self, mut count: u64) {
        while count >= 0x80 {
            self.byte(count as u8 | 0x80);
            count >>= 7;
        }
        self.byte(count as u8);
    }

    fn hash(&mut self, hash: u64) {
        self.0.extend_from_slice(&hash.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &String) {
        self.bytes(text.as_bytes());
    }

    fn place<T: PartialEq>(&mut self, table: &[T], value: &T) {
        let place = table.iter().position(|one| one == value);
        self.byte(place.unwrap_or(table.len()) as u8);
    }

    fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.byte(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn list<T>(&mut self, values: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.count(values.len() as u64);
        for value in values {
            write(self, value);
        }
    }

    fn hashes(&mut self, hashes: &[u64]) {
        self.list(hashes, |out, hash| out.hash(*hash));
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(ParcelError("it was cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn end(&self) -> Read<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(ParcelError("something follows its end"))
        }
    }

    fn byte(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    fn flag(&mut self) -> Read<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ParcelError("a flag is neither 0 nor 1")),
        }
    }

    fn count(&mut self) -> Read<u64> {
        let mut count = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            count |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(count);
            }
        }
        Err(ParcelError("a count has no end"))
    }

    fn size(&mut self) -> Read<usize> {
        usize::try_from(self.count()?).map_err(|_| ParcelError("a count is too large"))
    }

    fn hash(&mut self) -> Read<u64> {
        let bytes = self.take(8)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |hash, byte| hash << 8 | u64::from(*byte)))
    }

    fn bytes(&mut self) -> Read<&'a [u8]> {
        let length = self.size()?;
        self.take(length)
    }

    fn text(&mut self) -> Read<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| ParcelError("a text is no UTF-8"))
    }

    fn place<T: Copy>(&mut self, table: &[T]) -> Read<T> {
        let place = usize::from(self.byte()?);
        table
            .get(place)
            .copied()
            .ok_or(ParcelError("a name is not in the table"))
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<Option<T>> {
        Ok(if self.flag()? {
            Some(read(self)?)
        } else {
            None
        })
    }

    /// `least`: bytes that an item has at least, so that a wrong count asks for no memory.
    fn list<T>(
        &mut self,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<Vec<T>> {
        let length = self.size()?;
        if length > self.0.len() / least {
            return Err(ParcelError("it was cut short"));
        }
        (0..length).map(|_| read(self)).collect()
    }

    fn hashes(&mut self) -> Read<Vec<u64>> {
        self.list(8, Self::hash)
    }

    fn spans(&mut self) -> Read<Vec<(usize, u64)>> {
        self.list(9, |from| Ok((from.size()?, from.hash()?)))
    }
}
