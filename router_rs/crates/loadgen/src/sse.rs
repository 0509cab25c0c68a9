//! Counts server-sent events in a byte stream and remembers its end.
//!
//! Invariant: counts and tail do not depend on how the bytes are split.

/// Bytes of the end that are kept: enough for `[DONE]` and for the usage object at the end of a completion.
const TAIL_BYTES: usize = 256;

/// Counts blank lines (the ends of events) and keeps the last bytes.
#[derive(Debug, Default)]
pub struct EventCounter {
    events: u64,
    after_newline: bool,
    tail: Vec<u8>,
}

impl EventCounter {
    /// Takes the next bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut line_start = 0;
        for newline in memchr::memchr_iter(b'\n', bytes) {
            let empty_line = newline == line_start && (newline > 0 || self.after_newline);
            self.events += u64::from(empty_line);
            line_start = newline + 1;
        }
        if let Some(last) = bytes.last() {
            self.after_newline = *last == b'\n';
        }
        self.keep_tail(bytes);
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        let newest = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let room = TAIL_BYTES - newest.len();
        let surplus = self.tail.len().saturating_sub(room);
        self.tail.drain(..surplus);
        self.tail.extend_from_slice(newest);
    }

    /// Events that have ended so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Whether the last bytes are `end`.
    pub fn tail_ends_with(&self, end: &[u8]) -> bool {
        self.tail.ends_with(end)
    }

    /// Whether `part` occurs in the last bytes.
    pub fn tail_contains(&self, part: &[u8]) -> bool {
        self.tail.windows(part.len()).any(|window| window == part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_split_gives_the_same_count_and_tail() {
        let stream = b"data: a\n\ndata: b\ndata: c\n\n: ping\n\ndata: [DONE]\n\n".repeat(9);
        for piece in 1..stream.len() {
            let mut counter = EventCounter::default();
            stream.chunks(piece).for_each(|part| counter.feed(part));
            assert_eq!(counter.events(), 36, "split into pieces of {piece}");
            assert!(counter.tail_ends_with(b"data: [DONE]\n\n"));
            assert!(counter.tail_contains(b": ping"));
        }
    }

    #[test]
    fn a_stream_cut_before_its_blank_line_has_one_event_less() {
        let mut counter = EventCounter::default();
        counter.feed(b"data: a\n\ndata: [DONE]\n");
        assert_eq!(counter.events(), 1);
        assert!(!counter.tail_ends_with(b"data: [DONE]\n\n"));
    }
}
