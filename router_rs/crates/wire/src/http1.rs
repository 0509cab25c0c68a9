//! HTTP/1.1 messages of the plain kind, whole in one read: nearly all of an agent's requests and a worker's answers.
//!
//! Both functions say `None` to whatever else comes (a part of a message, a chunked body, an upgrade, more than one message,
//! anything odd), and the caller goes the long way through a parser that keeps state. So these need not know all of HTTP, only
//! be sure of what they take.

use httparse::{EMPTY_HEADER, Request, Response, Status};
use memchr::memchr_iter;

use crate::headers::Header;

const MAX_HEADERS: usize = 64;
const MAX_NAME: usize = 64;
// Below what the long way takes.
const MAX_TARGET: usize = 8 * 1024;

/// A whole POST with its body. Header names are as they came.
#[derive(Debug)]
pub struct PlainRequest<'a> {
    /// The request's target: ASCII.
    pub target: &'a [u8],
    /// In the order they came.
    pub headers: LowerHeaders<'a>,
    /// As long as `content-length` says.
    pub body: &'a [u8],
}

/// A whole successful answer after which the connection can be used again.
#[derive(Debug)]
pub struct PlainAnswer<'a> {
    /// 200 to 299, but none that has no body.
    pub status: u16,
    /// In the order they came.
    pub headers: LowerHeaders<'a>,
    /// As long as `content-length` says.
    pub body: &'a [u8],
}

/// Headers with their names in lower case.
#[derive(Debug)]
pub struct LowerHeaders<'a> {
    names: Vec<u8>,
    // End of each name in `names`, and the value.
    ends: Vec<(usize, &'a [u8])>,
}

impl<'a> LowerHeaders<'a> {
    fn of(headers: &[httparse::Header<'a>]) -> Self {
        let mut names = Vec::with_capacity(256);
        let mut ends = Vec::with_capacity(headers.len());
        for header in headers {
            names.extend_from_slice(header.name.as_bytes());
            ends.push((names.len(), header.value));
        }
        names.make_ascii_lowercase();
        Self { names, ends }
    }

    /// Pairs of name and value.
    pub fn iter(&self) -> impl Iterator<Item = Header<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |&(end, value)| {
            let name = &self.names[start..end];
            start = end;
            (name, value)
        })
    }
}

/// What frames the body, if it is a plain one: its length. `host`: how many such headers there must be.
fn plain_length(headers: &[httparse::Header<'_>], hosts_wanted: usize) -> Option<usize> {
    let mut length = None;
    let mut hosts = 0;
    for header in headers {
        let name = header.name;
        if name.len() > MAX_NAME {
            return None;
        }
        // Names of one length are few: the length tells most of them apart.
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => hosts += 1,
            6 if name.eq_ignore_ascii_case("expect") => return None,
            7 if name.eq_ignore_ascii_case("upgrade") => return None,
            10 if name.eq_ignore_ascii_case("connection")
                && !header.value.eq_ignore_ascii_case(b"keep-alive") =>
            {
                return None;
            }
            14 if name.eq_ignore_ascii_case("content-length") => {
                if length.is_some() {
                    return None;
                }
                length = Some(decimal(header.value)?);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => return None,
            _ => {}
        }
    }
    if hosts == hosts_wanted { length } else { None }
}

fn decimal(digits: &[u8]) -> Option<usize> {
    // Ten digits fit, and no body is longer.
    if digits.is_empty() || digits.len() > 10 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// `httparse` takes a line that ends in LF alone; another reader in front of us may take it for a part of the value.
fn ends_lines_in_crlf(head: &[u8]) -> bool {
    memchr_iter(b'\n', head).all(|at| at > 0 && head[at - 1] == b'\r')
}

/// A whole plain POST of HTTP/1.1, and nothing behind it.
pub fn plain_request(data: &[u8]) -> Option<PlainRequest<'_>> {
    if !data.starts_with(b"POST /") {
        return None;
    }
    let mut room = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = Request::new(&mut room);
    let Ok(Status::Complete(head)) = request.parse(data) else {
        return None;
    };
    if request.version != Some(1) {
        return None;
    }
    let target = request.path?;
    if !target.is_ascii() || target.len() > MAX_TARGET || !ends_lines_in_crlf(&data[..head]) {
        return None;
    }
    let length = plain_length(request.headers, 1)?;
    if data.len() - head != length {
        return None;
    }
    Some(PlainRequest {
        target: target.as_bytes(),
        headers: LowerHeaders::of(request.headers),
        body: &data[head..],
    })
}

/// A whole plain answer of HTTP/1.1 with a body, and nothing behind it.
pub fn plain_answer(data: &[u8]) -> Option<PlainAnswer<'_>> {
    let mut room = [EMPTY_HEADER; MAX_HEADERS];
    let mut response = Response::new(&mut room);
    let Ok(Status::Complete(head)) = response.parse(data) else {
        return None;
    };
    let status = response.code?;
    if response.version != Some(1) || !(200..300).contains(&status) || status == 204 {
        return None;
    }
    let length = plain_length(response.headers, 0)?;
    if data.len() - head != length || !ends_lines_in_crlf(&data[..head]) {
        return None;
    }
    Some(PlainAnswer {
        status,
        headers: LowerHeaders::of(response.headers),
        body: &data[head..],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "POST /v1/x?a=1 HTTP/1.1\r\nHost: h\r\nX-Name:  a b \r\n";

    #[test]
    fn a_whole_post_is_read() {
        let data = format!("{HEAD}Content-Length: 2\r\nConnection: Keep-Alive\r\n\r\nhi");
        let request = plain_request(data.as_bytes()).unwrap();
        assert_eq!(request.target, b"/v1/x?a=1");
        assert_eq!(request.body, b"hi");
        let headers: Vec<_> = request.headers.iter().collect();
        assert_eq!(headers[0], (&b"host"[..], &b"h"[..]));
        assert_eq!(headers[1], (&b"x-name"[..], &b"a b"[..]));
        assert_eq!(headers.len(), 4);
    }

    #[test]
    fn what_is_not_plain_goes_the_long_way() {
        for rest in [
            "Content-Length: 3\r\n\r\nhi",
            "Content-Length: 1\r\n\r\nhi",
            "Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
            "Content-Length: +2\r\n\r\nhi",
            "Content-Length: 99999999999999999999\r\n\r\nhi",
            "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi",
            "Content-Length: 2\r\nExpect: 100-continue\r\n\r\nhi",
            "Content-Length: 2\r\nUpgrade: h2c\r\n\r\nhi",
            "Content-Length: 2\r\nConnection: close\r\n\r\nhi",
            "Content-Length: 2\r\nHost: second\r\n\r\nhi",
            "Content-Length: 2\r\nX-Folded: a\r\n b\r\n\r\nhi",
            "Content-Length: 2\r\nX-Bare: a\nX-Heddle-Group: b\r\n\r\nhi",
            "Content-Length: 2\r\n\nhi",
            "\r\nhi",
            "Content-Length: 2\r\n",
        ] {
            let data = format!("{HEAD}{rest}");
            assert!(plain_request(data.as_bytes()).is_none(), "{rest}");
        }
        for data in [
            "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
            "POST / HTTP/1.0\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
            "POST http://elsewhere/ HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
            "POST /t/caf\u{e9}/v1 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
            &format!(
                "POST /{} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
                "a".repeat(MAX_TARGET)
            ),
            "",
        ] {
            assert!(plain_request(data.as_bytes()).is_none(), "{data}");
        }
    }

    #[test]
    fn no_prefix_of_a_request_is_taken_for_a_whole_one() {
        let data = format!("{HEAD}Content-Length: 20\r\n\r\n{}", "x".repeat(20));
        for end in 0..data.len() {
            assert!(plain_request(&data.as_bytes()[..end]).is_none(), "{end}");
        }
        assert!(plain_request(data.as_bytes()).is_some());
    }

    #[test]
    fn a_whole_answer_is_read_and_a_part_or_a_fault_is_not() {
        let whole =
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        let answer = plain_answer(whole).unwrap();
        assert_eq!((answer.status, answer.body), (200, &b"{}"[..]));
        for end in 0..whole.len() {
            assert!(plain_answer(&whole[..end]).is_none());
        }
        for other in [
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nX-Bare: a\nContent-Length: 0\r\n\r\n",
        ] {
            assert!(plain_answer(other.as_bytes()).is_none(), "{other}");
        }
    }
}
