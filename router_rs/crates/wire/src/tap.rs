//! Reading an event stream beside the bytes that go to the client.
//!
//! Invariants: the bytes out are the bytes in, except for usage-only chunks when they are hidden; and any split
//! of the same bytes into chunks gives the same answer and the same bytes. A byte is held back only while the
//! event it belongs to may still turn out to be a usage-only chunk.

use crate::answer::{Answer, Builder};
use crate::dialect::Dialect;
use crate::reply::{Document, may_be_usage_only, read_document};
use crate::sse::{Line, line_end};

/// An event longer than this is passed on and not read.
const MAX_EVENT: usize = 16 << 20;
/// Most bytes held back. A usage-only chunk has a few hundred.
const MAX_HELD: usize = 4096;
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// What goes to the client for a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The chunk as it came.
    Same,
    /// These bytes instead.
    Bytes(Vec<u8>),
}

/// How far the unfinished event is understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// It may be a usage-only chunk.
    #[default]
    Undecided,
    /// It is none: its bytes go out as they come.
    Released,
    /// It is too long: only its end is looked for.
    Opaque,
}

/// The unfinished event.
#[derive(Default)]
struct Event {
    stage: Stage,
    /// Its `data`, lines joined with LF.
    payload: Vec<u8>,
    has_data: bool,
    is_error: bool,
}

/// Reads one stream.
pub struct StreamTap {
    builder: Builder,
    hide_usage: bool,
    event: Event,
    /// The unfinished line.
    line: Vec<u8>,
    /// Bytes of the unfinished event that came in earlier chunks and are held back.
    held: Vec<u8>,
    /// The last byte was a CR; `true` if the LF that may follow is to be hidden as well.
    open_line_end: Option<bool>,
    at_start: bool,
}

/// Which bytes of the current chunk go out.
struct Passage<'a> {
    chunk: &'a [u8],
    /// Bytes held back earlier that go out first.
    before: Vec<u8>,
    hidden: Vec<(usize, usize)>,
    /// Where the unfinished event starts in this chunk.
    event_start: usize,
    /// `data` of the current event, if it is one line that lies whole in this chunk.
    direct: Option<(usize, usize)>,
}

impl StreamTap {
    /// With `hide_usage` a chunk that only reports usage does not go out: the client did not ask for it.
    pub fn new(dialect: Dialect, hide_usage: bool) -> Self {
        Self {
            builder: Builder::new(dialect),
            hide_usage: hide_usage && dialect.asks_usage(),
            event: Event::default(),
            line: Vec::new(),
            held: Vec::new(),
            open_line_end: None,
            at_start: true,
        }
    }

    /// What the stream has said so far.
    pub fn answer(&self) -> Answer {
        self.builder.answer()
    }

    /// The stream has said that it is over.
    pub fn is_done(&self) -> bool {
        self.builder.is_done()
    }

    /// Nothing but a beginning has come: no output, no end, no error.
    pub fn is_silent(&self) -> bool {
        self.builder.said_nothing()
    }

    /// Takes the next bytes; answers what goes to the client now.
    pub fn feed(&mut self, chunk: &[u8]) -> Output {
        if chunk.is_empty() {
            return Output::Same;
        }
        let mut passage = Passage {
            chunk,
            before: Vec::new(),
            hidden: Vec::new(),
            event_start: 0,
            direct: None,
        };
        let mut from = 0;
        if let Some(hidden) = self.open_line_end.take()
            && chunk[0] == b'\n'
        {
            from = 1;
            if hidden {
                passage.hidden.push((0, 1));
            }
            if self.held.is_empty() {
                passage.event_start = 1;
            }
        }
        while let Some(end) = line_end(chunk, from) {
            self.open_line_end = end.open.then_some(false);
            self.take_line(&mut passage, from, end.start, end.next);
            from = end.next;
        }
        self.keep_rest(&chunk[from..]);
        if let Some((start, end)) = passage.direct.take() {
            self.event.payload.extend_from_slice(&chunk[start..end]);
        }
        self.emit(passage)
    }

    /// The stream has ended: reads an event without its blank line; answers what was still held back.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut passage = Passage {
            chunk: b"",
            before: Vec::new(),
            hidden: Vec::new(),
            event_start: 0,
            direct: None,
        };
        if !self.line.is_empty() {
            self.take_line(&mut passage, 0, 0, 0);
        }
        self.end_event(&mut passage, 0);
        passage.before
    }

    /// Takes the line `chunk[start..end]`, of which `self.line` may hold the beginning.
    fn take_line(&mut self, passage: &mut Passage<'_>, start: usize, end: usize, next: usize) {
        let carried = std::mem::take(&mut self.line);
        let fresh = &passage.chunk[start..end];
        if self.event.stage == Stage::Opaque {
            if carried.is_empty() && fresh.is_empty() {
                self.end_event(passage, next);
            }
            return;
        }
        let whole = if carried.is_empty() {
            None
        } else {
            let mut whole = carried;
            whole.extend_from_slice(fresh);
            Some(whole)
        };
        let mut line = whole.as_deref().unwrap_or(fresh);
        if std::mem::take(&mut self.at_start) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        match Line::parse(line) {
            Line::Blank => self.end_event(passage, next),
            Line::Comment if !self.event.has_data => {
                passage.before.append(&mut self.held);
                passage.event_start = next;
            }
            Line::Data(data) if whole.is_none() && !self.event.has_data => {
                self.event.has_data = true;
                passage.direct = Some((end - data.len(), end));
            }
            Line::Data(data) => self.add_data(passage, data),
            Line::Event(name) => self.event.is_error = name == b"error",
            Line::Comment | Line::Other => {}
        }
        if let Some(mut buffer) = whole {
            // Keep the allocation for the next unfinished line.
            buffer.clear();
            self.line = buffer;
        }
    }

    fn add_data(&mut self, passage: &mut Passage<'_>, data: &[u8]) {
        if let Some((start, end)) = passage.direct.take() {
            self.event
                .payload
                .extend_from_slice(&passage.chunk[start..end]);
        }
        if std::mem::replace(&mut self.event.has_data, true) {
            self.event.payload.push(b'\n');
        }
        self.event.payload.extend_from_slice(data);
        self.limit();
    }

    /// Keeps the beginning of a line that is not all here.
    fn keep_rest(&mut self, rest: &[u8]) {
        if self.event.stage == Stage::Opaque {
            // Only whether the line is empty matters.
            self.line
                .extend_from_slice(&rest[..rest.len().min(1 - self.line.len().min(1))]);
        } else {
            self.line.extend_from_slice(rest);
            self.limit();
        }
    }

    fn limit(&mut self) {
        if self.event.payload.len() + self.line.len() > MAX_EVENT {
            self.event.stage = Stage::Opaque;
            self.event.payload = Vec::new();
            self.line.truncate(1);
            self.line.shrink_to_fit();
        }
    }

    /// The current event ends before `next`.
    fn end_event(&mut self, passage: &mut Passage<'_>, next: usize) {
        let usage_only = self.event.has_data && self.event.stage != Stage::Opaque && {
            let payload = std::mem::take(&mut self.event.payload);
            let data = passage
                .direct
                .take()
                .map_or(payload.as_slice(), |(start, end)| {
                    &passage.chunk[start..end]
                });
            let usage_only = self.read_event(data);
            self.event.payload = payload;
            usage_only
        };
        if usage_only && self.hide_usage && self.event.stage == Stage::Undecided {
            self.held.clear();
            passage.hidden.push((passage.event_start, next));
            self.open_line_end = self.open_line_end.map(|_| true);
        } else {
            passage.before.append(&mut self.held);
        }
        self.event.payload.clear();
        self.event.has_data = false;
        self.event.is_error = false;
        self.event.stage = Stage::Undecided;
        passage.direct = None;
        passage.event_start = next;
    }

    /// Reads the data of a whole event; answers whether it only reports usage.
    fn read_event(&mut self, data: &[u8]) -> bool {
        if data.starts_with(b"[DONE]") {
            self.builder.set_done();
            return false;
        }
        let usage_only = read_document(data, &mut self.builder).is_ok_and(Document::usage_only);
        if self.event.is_error {
            self.builder
                .set_error(String::from_utf8_lossy(data).into_owned());
        }
        usage_only
    }

    /// Whether the unfinished event may be a usage-only chunk for all that is known of it.
    fn undecided(&self, held: usize) -> bool {
        if !self.hide_usage || self.event.stage != Stage::Undecided || held > MAX_HELD {
            return false;
        }
        match Line::parse(&self.line) {
            Line::Comment if !self.event.has_data => false,
            Line::Data(data) if self.event.has_data => {
                may_be_usage_only(&[&self.event.payload, b"\n".as_slice(), data].concat())
            }
            Line::Data(data) => may_be_usage_only(data),
            _ => !self.event.has_data || may_be_usage_only(&self.event.payload),
        }
    }

    fn emit(&mut self, mut passage: Passage<'_>) -> Output {
        let chunk = passage.chunk;
        let unfinished = &chunk[passage.event_start..];
        let held = self.held.len() + unfinished.len();
        let mut end = chunk.len();
        if held > 0 && self.undecided(held) {
            self.held.extend_from_slice(unfinished);
            end = passage.event_start;
        } else {
            passage.before.append(&mut self.held);
            // A comment alone decides nothing about the event it may stand in.
            let decided = self.event.has_data || Line::parse(&self.line) != Line::Comment;
            if held > 0 && decided && self.event.stage == Stage::Undecided {
                self.event.stage = Stage::Released;
            }
        }
        if passage.before.is_empty() && passage.hidden.is_empty() && end == chunk.len() {
            return Output::Same;
        }
        let mut out = passage.before;
        let mut from = 0;
        for (start, stop) in passage.hidden {
            out.extend_from_slice(&chunk[from..start]);
            from = stop;
        }
        out.extend_from_slice(&chunk[from..end.max(from)]);
        Output::Bytes(out)
    }
}
