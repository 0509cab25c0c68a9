//! The little HTTP/1.1 both ends need: heads, and bodies by length or in chunks.
//!
//! Invariant: [`BodyReader`] gives the same payload and the same end for any split of the bytes.

use thiserror::Error;

/// More headers than any gateway under test sends.
const MAX_HEADERS: usize = 96;
/// A chunk's size line holds a number, seldom an extension; longer is not HTTP.
const MAX_SIZE_LINE: usize = 256;

/// What the other side sent is not the HTTP/1.1 spoken here.
#[derive(Debug, Error)]
pub enum ProtocolError {
    /// The head cannot be parsed.
    #[error("bad HTTP head: {0}")]
    Head(#[from] httparse::Error),
    /// Neither a length nor chunked framing, so the end of the body is unknown on a kept connection.
    #[error("answer has neither content-length nor chunked framing")]
    NoFraming,
    /// `content-length` is not a number.
    #[error("bad content-length")]
    Length,
    /// Chunked framing is broken.
    #[error("bad chunked framing")]
    Chunk,
}

/// A parsed request head, as far as the mock engine looks at it.
#[derive(Debug)]
pub struct RequestHead {
    /// Bytes up to and including the blank line.
    pub size: usize,
    /// Upper-case method.
    pub method: String,
    /// Path without its query.
    pub path: String,
    /// Declared length of the body; 0 when there is none.
    pub content_length: usize,
}

/// A parsed answer head.
#[derive(Debug)]
pub struct ResponseHead {
    /// Bytes up to and including the blank line.
    pub size: usize,
    /// Status code.
    pub status: u16,
    /// How the body's end is found.
    pub body: BodyReader,
    /// The server will close after this answer.
    pub closes: bool,
    /// Value of the header asked for, when it is there and a number.
    pub number: Option<usize>,
}

/// Parses a request head; `None` until it is complete.
///
/// # Errors
/// A head that is not HTTP/1.1, or a length that is not a number.
pub fn request_head(bytes: &[u8]) -> Result<Option<RequestHead>, ProtocolError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(size) = request.parse(bytes)? else {
        return Ok(None);
    };
    let mut content_length = 0;
    for header in request.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            content_length = number(header.value)?;
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(ProtocolError::NoFraming);
        }
    }
    let target = request.path.unwrap_or("/");
    let path = target.split('?').next().unwrap_or("/").to_owned();
    let method = request.method.unwrap_or("GET").to_owned();
    Ok(Some(RequestHead {
        size,
        method,
        path,
        content_length,
    }))
}

/// Parses an answer's head; `None` until it is complete. `wanted` names a header with a number to pick out.
///
/// # Errors
/// A head that is not HTTP/1.1, or a body whose end cannot be known.
pub fn response_head(
    bytes: &[u8],
    wanted: Option<&str>,
) -> Result<Option<ResponseHead>, ProtocolError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(size) = response.parse(bytes)? else {
        return Ok(None);
    };
    let (mut body, mut closes, mut picked) = (None, false, None);
    for header in response.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            body = Some(BodyReader::with_length(number(header.value)?));
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            body = Some(BodyReader::chunked());
        } else if header.name.eq_ignore_ascii_case("connection") {
            closes = header.value.eq_ignore_ascii_case(b"close");
        } else if wanted.is_some_and(|name| header.name.eq_ignore_ascii_case(name)) {
            picked = number(header.value).ok();
        }
    }
    let body = body.ok_or(ProtocolError::NoFraming)?;
    Ok(Some(ResponseHead {
        size,
        status: response.code.unwrap_or(0),
        body,
        closes,
        number: picked,
    }))
}

fn number(value: &[u8]) -> Result<usize, ProtocolError> {
    std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or(ProtocolError::Length)
}

/// Finds the payload and the end of a body in whatever pieces arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyReader {
    state: BodyState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum BodyState {
    /// So many bytes of a body with a declared length are missing.
    Length(usize),
    /// In the hexadecimal size of a chunk (value so far, bytes of the line seen, digits over).
    Size {
        value: usize,
        seen: usize,
        in_extension: bool,
    },
    /// So many bytes of the current chunk are missing.
    Data(usize),
    /// CR LF after a chunk's data.
    DataEnd(usize),
    /// In the trailer; the number of bytes of the current line.
    Trailer(usize),
    Done,
}

impl BodyReader {
    /// A body of `length` bytes.
    pub fn with_length(length: usize) -> Self {
        let state = if length == 0 {
            BodyState::Done
        } else {
            BodyState::Length(length)
        };
        Self { state }
    }

    /// A body in chunks.
    pub fn chunked() -> Self {
        Self {
            state: BodyState::Size {
                value: 0,
                seen: 0,
                in_extension: false,
            },
        }
    }

    /// True when the last byte of the body was seen.
    pub fn is_done(&self) -> bool {
        self.state == BodyState::Done
    }

    /// Takes bytes, hands the payload among them to `payload`, and gives how many bytes belonged to the body.
    ///
    /// # Errors
    /// Broken chunked framing.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        mut payload: impl FnMut(&[u8]),
    ) -> Result<usize, ProtocolError> {
        let mut at = 0;
        while at < bytes.len() && self.state != BodyState::Done {
            match self.state {
                BodyState::Length(missing) | BodyState::Data(missing) => {
                    let taken = missing.min(bytes.len() - at);
                    payload(&bytes[at..at + taken]);
                    at += taken;
                    self.state = self.after_data(missing - taken);
                }
                _ => {
                    self.state = self.after_framing_byte(bytes[at])?;
                    at += 1;
                }
            }
        }
        Ok(at)
    }

    fn after_data(&self, missing: usize) -> BodyState {
        match (&self.state, missing) {
            (BodyState::Length(_), 0) => BodyState::Done,
            (BodyState::Length(_), left) => BodyState::Length(left),
            (_, 0) => BodyState::DataEnd(0),
            (_, left) => BodyState::Data(left),
        }
    }

    fn after_framing_byte(&self, byte: u8) -> Result<BodyState, ProtocolError> {
        match self.state {
            BodyState::Size {
                value,
                seen,
                in_extension,
            } => size_byte(value, seen, in_extension, byte),
            BodyState::DataEnd(seen) => match (seen, byte) {
                (0, b'\r') => Ok(BodyState::DataEnd(1)),
                (_, b'\n') => Ok(BodyState::Size {
                    value: 0,
                    seen: 0,
                    in_extension: false,
                }),
                _ => Err(ProtocolError::Chunk),
            },
            BodyState::Trailer(seen) => Ok(match (seen, byte) {
                (0, b'\n') => BodyState::Done,
                (_, b'\n') => BodyState::Trailer(0),
                (_, b'\r') => BodyState::Trailer(seen),
                _ => BodyState::Trailer(seen + 1),
            }),
            _ => Err(ProtocolError::Chunk),
        }
    }
}

fn size_byte(
    value: usize,
    seen: usize,
    in_extension: bool,
    byte: u8,
) -> Result<BodyState, ProtocolError> {
    if byte == b'\n' {
        return match (seen, value) {
            (0, _) => Err(ProtocolError::Chunk),
            (_, 0) => Ok(BodyState::Trailer(0)),
            _ => Ok(BodyState::Data(value)),
        };
    }
    if seen >= MAX_SIZE_LINE {
        return Err(ProtocolError::Chunk);
    }
    let in_extension = in_extension || byte == b';';
    if in_extension || byte == b'\r' || byte == b' ' {
        return Ok(BodyState::Size {
            value,
            seen,
            in_extension,
        });
    }
    let digit = char::from(byte).to_digit(16).ok_or(ProtocolError::Chunk)?;
    let value = value
        .checked_mul(16)
        .and_then(|shifted| shifted.checked_add(digit as usize))
        .ok_or(ProtocolError::Chunk)?;
    Ok(BodyState::Size {
        value,
        seen: seen + 1,
        in_extension,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(chunks: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        bytes
    }

    proptest! {
        #[test]
        fn any_split_of_a_chunked_body_gives_its_payload(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12),
            piece in 1_usize..50,
        ) {
            let bytes = framed(&chunks);
            let (mut reader, mut payload) = (BodyReader::chunked(), Vec::new());
            for part in bytes.chunks(piece) {
                prop_assert_eq!(reader.feed(part, |data| payload.extend_from_slice(data)).unwrap(), part.len());
            }
            prop_assert!(reader.is_done());
            prop_assert_eq!(payload, chunks.concat());
        }
    }

    #[test]
    fn bytes_after_the_body_are_left() {
        let mut reader = BodyReader::with_length(3);
        assert_eq!(reader.feed(b"abcHTTP", |_| ()).unwrap(), 3);
        assert!(reader.is_done());
    }

    #[test]
    fn framing_that_is_not_hexadecimal_is_refused() {
        assert!(BodyReader::chunked().feed(b"zz\r\n", |_| ()).is_err());
        assert!(BodyReader::chunked().feed(b"\r\n", |_| ()).is_err());
        assert!(BodyReader::chunked().feed(b"1\r\nab", |_| ()).is_err());
    }

    #[test]
    fn a_chunk_extension_is_skipped() {
        let (mut reader, mut payload) = (BodyReader::chunked(), Vec::new());
        reader
            .feed(b"2;abc=1\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n", |data| {
                payload.extend_from_slice(data);
            })
            .unwrap();
        assert!(reader.is_done());
        assert_eq!(payload, b"hi");
    }

    #[test]
    fn an_answer_without_framing_is_refused() {
        assert!(matches!(
            response_head(b"HTTP/1.1 200 OK\r\n\r\n", None),
            Err(ProtocolError::NoFraming)
        ));
    }

    #[test]
    fn a_request_head_gives_path_and_length() {
        let head =
            request_head(b"POST /v1/loads?include=core HTTP/1.1\r\nContent-Length: 12\r\n\r\n")
                .unwrap()
                .unwrap();
        assert_eq!(
            (
                head.method.as_str(),
                head.path.as_str(),
                head.content_length
            ),
            ("POST", "/v1/loads", 12)
        );
    }
}
