//! A forward cursor over JSON bytes that hands out raw slices.
//!
//! Why not a JSON library: the splice needs byte spans of members, the stream tap needs to tell "not JSON"
//! from "not all here yet", and bodies with lone surrogates (`"\ud83d"`: an emoji cut in half by an agent
//! that truncates tool output) must reach the worker, where the libraries refuse them.
//!
//! Grammar: RFC 8259, and `NaN`, `Infinity`, `-Infinity` as Python writes them. Encoding is checked by the
//! caller once for the whole body; the cursor itself works on bytes.

use thiserror::Error;

/// How deep arrays and objects may nest. Python's own reader stops near 1,000.
pub const MAX_DEPTH: u32 = 512;

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    /// The bytes end inside a value.
    #[error("the body ends inside a JSON value")]
    Incomplete,
    /// A byte that no JSON value can have here.
    #[error("unexpected character")]
    Unexpected,
    /// A malformed number.
    #[error("malformed number")]
    Number,
    /// A backslash followed by something that is no escape.
    #[error("malformed escape in a string")]
    Escape,
    /// A raw control character in a string.
    #[error("control character in a string")]
    Control,
    /// Deeper than [`MAX_DEPTH`].
    #[error("nested too deeply")]
    Depth,
    /// JSON, but the top level is no object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// Bytes that are not UTF-8.
    #[error("the body is not UTF-8")]
    Encoding,
    /// A byte order mark: JSON bodies start without one (RFC 8259, section 8.1).
    #[error("the body starts with a byte order mark")]
    ByteOrderMark,
}

/// Where and why reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{reason} at byte {position}")]
pub struct JsonError {
    /// Offset of the first byte that does not fit.
    pub position: usize,
    /// What is wrong with it.
    pub reason: Reason,
}

/// A string as it stands in the source, without its quotes.
#[derive(Clone, Copy, Debug)]
pub struct RawStr<'a> {
    raw: &'a [u8],
    escaped: bool,
    /// Offset of the first byte after the opening quote.
    start: usize,
}

impl<'a> RawStr<'a> {
    /// Offset of the opening quote in the bytes it was read from.
    pub fn quote(self) -> usize {
        self.start - 1
    }

    /// Appends the decoded text. Lone surrogates become their three-byte form (WTF-8), so that different
    /// strings stay different.
    pub fn decode_into(self, out: &mut Vec<u8>) {
        if !self.escaped {
            out.extend_from_slice(self.raw);
            return;
        }
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            out.extend_from_slice(&rest[..at]);
            let (code, used) = code_point(&rest[at..]);
            push_code_point(out, code);
            rest = &rest[at + used..];
        }
        out.extend_from_slice(rest);
    }

    /// The decoded bytes: borrowed from the source where nothing is escaped, else from `scratch`.
    #[inline]
    pub fn decode<'s>(self, scratch: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        if !self.escaped {
            return self.raw;
        }
        scratch.clear();
        self.decode_into(scratch);
        scratch
    }

    /// The decoded text; lone surrogates become U+FFFD.
    pub fn to_text(self) -> String {
        let mut scratch = Vec::new();
        String::from_utf8_lossy(self.decode(&mut scratch)).into_owned()
    }
}

/// The character an escape stands for, and the bytes it takes; `at` starts with the backslash of a checked escape.
fn code_point(at: &[u8]) -> (u32, usize) {
    match at[1] {
        b'n' => (0x0A, 2),
        b't' => (0x09, 2),
        b'r' => (0x0D, 2),
        b'b' => (0x08, 2),
        b'f' => (0x0C, 2),
        b'u' => unicode_escape(at),
        other => (u32::from(other), 2),
    }
}

/// Reads `\uXXXX`, or a pair of them, at the start of `at`; the cursor has checked the digits.
fn unicode_escape(at: &[u8]) -> (u32, usize) {
    let high = hex4(&at[2..6]);
    if (0xD800..0xDC00).contains(&high) && at.len() >= 12 && at[6] == b'\\' && at[7] == b'u' {
        let low = hex4(&at[8..12]);
        if (0xDC00..0xE000).contains(&low) {
            return (0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00), 12);
        }
    }
    (high, 6)
}

/// The value of four hex digits; of anything else no surrogate.
fn hex4(digits: &[u8]) -> u32 {
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return 0;
    }
    digits.iter().fold(0, |value, &digit| {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            _ => (digit | 0x20) - b'a' + 10,
        };
        value << 4 | u32::from(nibble)
    })
}

fn push_code_point(out: &mut Vec<u8>, code: u32) {
    if code < 0x80 {
        out.push(code as u8);
    } else if let Some(character) = char::from_u32(code) {
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        // A lone surrogate, D800..DFFF, in the form UTF-8 would give it.
        out.extend_from_slice(&[
            0xE0 | (code >> 12) as u8,
            0x80 | (code >> 6 & 0x3F) as u8,
            0x80 | (code & 0x3F) as u8,
        ]);
    }
}

/// A position in JSON bytes. Cheap to copy: a copy is a bookmark.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    data: &'a [u8],
    pos: usize,
    depth: u32,
}

impl<'a> Cursor<'a> {
    /// At the first byte of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self {
            data,
            pos: 0,
            depth: 0,
        }
    }

    /// At `pos`, which must be the start of a token.
    pub fn at(mut self, pos: usize) -> Self {
        self.pos = pos;
        self
    }

    /// Offset of the next byte.
    pub fn position(&self) -> usize {
        self.pos
    }

    /// The bytes from `start` up to here.
    pub fn since(&self, start: usize) -> &'a [u8] {
        &self.data[start..self.pos]
    }

    /// An error at the current position.
    pub fn error(&self, reason: Reason) -> JsonError {
        JsonError {
            position: self.pos,
            reason,
        }
    }

    /// The first byte of the next token; whitespace is passed over.
    #[inline]
    pub fn peek(&mut self) -> Result<u8, JsonError> {
        while let Some(&byte) = self.data.get(self.pos) {
            if !matches!(byte, b' ' | b'\n' | b'\t' | b'\r') {
                return Ok(byte);
            }
            self.pos += 1;
        }
        Err(self.error(Reason::Incomplete))
    }

    #[inline]
    fn expect(&mut self, wanted: u8) -> Result<(), JsonError> {
        if self.peek()? == wanted {
            self.pos += 1;
            return Ok(());
        }
        Err(self.error(Reason::Unexpected))
    }

    fn enter(&mut self, bracket: u8) -> Result<(), JsonError> {
        self.expect(bracket)?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(JsonError {
                position: self.pos - 1,
                reason: Reason::Depth,
            });
        }
        Ok(())
    }

    /// Steps over `{`. Then call [`key`](Self::key) until it answers `None`, reading one value after each.
    pub fn enter_object(&mut self) -> Result<(), JsonError> {
        self.enter(b'{')
    }

    /// Steps over `[`. Then call [`element`](Self::element) until it answers `false`, reading one value after each.
    pub fn enter_array(&mut self) -> Result<(), JsonError> {
        self.enter(b'[')
    }

    /// Steps to the next item of a container: `false` at its closing bracket, which is consumed.
    #[inline]
    fn next_item(&mut self, first: &mut bool, close: u8) -> Result<bool, JsonError> {
        let byte = self.peek()?;
        if byte == close {
            self.pos += 1;
            self.depth -= 1;
            return Ok(false);
        }
        if !std::mem::take(first) {
            if byte != b',' {
                return Err(self.error(Reason::Unexpected));
            }
            self.pos += 1;
            if self.peek()? == close {
                return Err(self.error(Reason::Unexpected));
            }
        }
        Ok(true)
    }

    /// The next key of the object entered; the value follows. `first` starts as `true`.
    #[inline]
    pub fn key(&mut self, first: &mut bool) -> Result<Option<RawStr<'a>>, JsonError> {
        if !self.next_item(first, b'}')? {
            return Ok(None);
        }
        let key = self.string()?;
        self.expect(b':')?;
        Ok(Some(key))
    }

    /// Whether the array entered has another element; it follows. `first` starts as `true`.
    pub fn element(&mut self, first: &mut bool) -> Result<bool, JsonError> {
        self.next_item(first, b']')
    }

    /// Reads a string.
    #[inline]
    pub fn string(&mut self) -> Result<RawStr<'a>, JsonError> {
        self.expect(b'"')?;
        let start = self.pos;
        let mut escaped = false;
        loop {
            self.pos = skip_plain(self.data, self.pos);
            match self.data.get(self.pos) {
                Some(b'"') => {
                    self.pos += 1;
                    return Ok(RawStr {
                        raw: &self.data[start..self.pos - 1],
                        escaped,
                        start,
                    });
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.error(Reason::Control)),
                None => return Err(self.error(Reason::Incomplete)),
            }
        }
    }

    /// Reads a string and appends its decoded text: one pass, for long texts.
    pub fn string_into(&mut self, out: &mut Vec<u8>) -> Result<(), JsonError> {
        self.expect(b'"')?;
        loop {
            let start = self.pos;
            self.pos = skip_plain(self.data, self.pos);
            out.extend_from_slice(&self.data[start..self.pos]);
            match self.data.get(self.pos) {
                Some(b'"') => {
                    self.pos += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    let start = self.pos;
                    self.escape()?;
                    let (code, used) = code_point(&self.data[start..]);
                    if used > self.pos - start {
                        // The second half of a surrogate pair.
                        self.escape()?;
                    }
                    push_code_point(out, code);
                }
                Some(_) => return Err(self.error(Reason::Control)),
                None => return Err(self.error(Reason::Incomplete)),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.data.get(self.pos + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.pos += 2,
            Some(b'u') => {
                for offset in 2..6 {
                    match self.data.get(self.pos + offset) {
                        Some(digit) if digit.is_ascii_hexdigit() => {}
                        Some(_) => return Err(self.error(Reason::Escape)),
                        None => return Err(self.error(Reason::Incomplete)),
                    }
                }
                self.pos += 6;
            }
            Some(_) => return Err(self.error(Reason::Escape)),
            None => return Err(self.error(Reason::Incomplete)),
        }
        Ok(())
    }

    /// Reads a number and returns its text; `NaN` and the infinities count as numbers.
    pub fn number(&mut self) -> Result<&'a str, JsonError> {
        self.peek()?;
        let start = self.pos;
        if self.data[self.pos] == b'-' {
            self.pos += 1;
        }
        match self.data.get(self.pos) {
            Some(b'N') if self.pos == start => self.word(b"NaN")?,
            Some(b'I') => self.word(b"Infinity")?,
            Some(b'0') => {
                self.pos += 1;
                self.fraction()?;
            }
            Some(b'1'..=b'9') => {
                self.digits()?;
                self.fraction()?;
            }
            Some(_) => return Err(self.error(Reason::Number)),
            None => return Err(self.error(Reason::Incomplete)),
        }
        // Only ASCII was consumed, so this cannot fail; an empty text stands for "no number" all the same.
        Ok(std::str::from_utf8(&self.data[start..self.pos]).unwrap_or_default())
    }

    fn fraction(&mut self) -> Result<(), JsonError> {
        if self.data.get(self.pos) == Some(&b'.') {
            self.pos += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.data.get(self.pos) {
            self.pos += 1;
            if let Some(b'+' | b'-') = self.data.get(self.pos) {
                self.pos += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.pos;
        while self.data.get(self.pos).is_some_and(u8::is_ascii_digit) {
            self.pos += 1;
        }
        if self.pos > start {
            return Ok(());
        }
        Err(self.error(if self.pos == self.data.len() {
            Reason::Incomplete
        } else {
            Reason::Number
        }))
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        for &wanted in word {
            match self.data.get(self.pos) {
                Some(&byte) if byte == wanted => self.pos += 1,
                Some(_) => return Err(self.error(Reason::Unexpected)),
                None => return Err(self.error(Reason::Incomplete)),
            }
        }
        Ok(())
    }

    /// Reads `true` or `false`.
    pub fn boolean(&mut self) -> Result<bool, JsonError> {
        let value = self.peek()? == b't';
        self.word(if value { b"true" } else { b"false" })?;
        Ok(value)
    }

    /// Reads `null`.
    pub fn null(&mut self) -> Result<(), JsonError> {
        self.peek()?;
        self.word(b"null")
    }

    /// Passes over one value of any kind.
    pub fn skip(&mut self) -> Result<(), JsonError> {
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'{' => {
                self.enter_object()?;
                let mut first = true;
                while self.key(&mut first)?.is_some() {
                    self.skip()?;
                }
                Ok(())
            }
            b'[' => {
                self.enter_array()?;
                let mut first = true;
                while self.element(&mut first)? {
                    self.skip()?;
                }
                Ok(())
            }
            b't' | b'f' => self.boolean().map(drop),
            b'n' => self.null(),
            b'-' | b'0'..=b'9' | b'N' | b'I' => self.number().map(drop),
            _ => Err(self.error(Reason::Unexpected)),
        }
    }

    /// Reads a string if one follows; passes over anything else.
    pub fn string_or_skip(&mut self) -> Result<Option<RawStr<'a>>, JsonError> {
        if self.peek()? == b'"' {
            self.string().map(Some)
        } else {
            self.skip().map(|()| None)
        }
    }

    /// Reads a non-negative integer if one follows; passes over anything else.
    pub fn count_or_skip(&mut self) -> Result<Option<u64>, JsonError> {
        match self.peek()? {
            b'0'..=b'9' => self.number().map(|text| text.parse().ok()),
            _ => self.skip().map(|()| None),
        }
    }

    /// Reads a boolean if one follows; passes over anything else.
    pub fn boolean_or_skip(&mut self) -> Result<Option<bool>, JsonError> {
        match self.peek()? {
            b't' | b'f' => self.boolean().map(Some),
            _ => self.skip().map(|()| None),
        }
    }

    /// Calls `visit` for each member of an object, with its key; `visit` must read the value. A value that is
    /// no object is passed over.
    pub fn members(
        &mut self,
        mut visit: impl FnMut(&mut Self, RawStr<'a>) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        if self.peek()? != b'{' {
            return self.skip();
        }
        self.enter_object()?;
        let mut first = true;
        while let Some(key) = self.key(&mut first)? {
            visit(self, key)?;
        }
        Ok(())
    }

    /// Calls `visit` for each element of an array; `visit` must read it. A value that is no array is passed over.
    pub fn elements(
        &mut self,
        mut visit: impl FnMut(&mut Self) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        if self.peek()? != b'[' {
            return self.skip();
        }
        self.enter_array()?;
        let mut first = true;
        while self.element(&mut first)? {
            visit(self)?;
        }
        Ok(())
    }

    /// Checks that only whitespace is left.
    pub fn finish(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            Ok(_) => Err(self.error(Reason::Unexpected)),
            Err(_) => Ok(()),
        }
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The offset of the first quote, backslash or control character at or after `pos`, or the length.
///
/// Eight bytes at a time; in each of the three tests the lowest marked byte is exact (a borrow can only mark
/// bytes above a true hit), so the lowest of all is.
#[inline]
fn skip_plain(data: &[u8], mut pos: usize) -> usize {
    let (words, _) = data[pos..].as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (ONES * u64::from(b'"'));
        let backslash = word ^ (ONES * u64::from(b'\\'));
        let hits = (quote.wrapping_sub(ONES) & !quote
            | backslash.wrapping_sub(ONES) & !backslash
            | word.wrapping_sub(ONES * 0x20) & !word)
            & HIGHS;
        if hits != 0 {
            return pos + (hits.trailing_zeros() / 8) as usize;
        }
        pos += 8;
    }
    data[pos..]
        .iter()
        .position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20)
        .map_or(data.len(), |offset| pos + offset)
}
