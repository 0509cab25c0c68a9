//! Lines and fields of an event stream (WHATWG HTML, section 9.2.6).

/// One line of an event stream, without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Ends the event.
    Blank,
    /// Starts with a colon: a keep-alive.
    Comment,
    /// The value of a `data` field.
    Data(&'a [u8]),
    /// The value of an `event` field.
    Event(&'a [u8]),
    /// Any other field.
    Other,
}

impl<'a> Line<'a> {
    /// Reads a whole line.
    pub fn parse(line: &'a [u8]) -> Self {
        if line.is_empty() {
            return Self::Blank;
        }
        let (name, value) = match memchr::memchr(b':', line) {
            Some(0) => return Self::Comment,
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => Self::Data(value),
            b"event" => Self::Event(value),
            _ => Self::Other,
        }
    }
}

/// A line end found in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineEnd {
    /// Offset of its first byte.
    pub start: usize,
    /// Offset of the next line.
    pub next: usize,
    /// It is a CR at the very end: a LF that comes next belongs to it.
    pub open: bool,
}

/// The first line end at or after `from`: LF, CR LF or CR.
pub fn line_end(chunk: &[u8], from: usize) -> Option<LineEnd> {
    let start = from + memchr::memchr2(b'\n', b'\r', &chunk[from..])?;
    let mut next = start + 1;
    let cr = chunk[start] == b'\r';
    let open = cr && next == chunk.len();
    if cr && chunk.get(next) == Some(&b'\n') {
        next += 1;
    }
    Some(LineEnd { start, next, open })
}
