//! Which headers cross the gateway, in both directions, and as which lines.
//!
//! Invariant: the caller's credentials, anything that could command the engine (`x-override-*`) or pretend to come from the
//! gateway (`x-heddle-*`), and hop-by-hop headers never reach a worker. Names are lower case here.

/// One header: a lower-case name and a value without CR and LF, as parsers give them.
pub type Header<'a> = (&'a [u8], &'a [u8]);

// Known to be of use to an engine or to tracing. content-type is always sent, see `forward_lines`.
const REQUEST_ALLOWED: [&[u8]; 9] = [
    b"accept",
    b"accept-language",
    b"anthropic-beta",
    b"anthropic-version",
    b"baggage",
    b"openai-beta",
    b"traceparent",
    b"tracestate",
    b"user-agent",
];
// x- headers that are credentials, are ours to set, or say how the request reached *us*.
const REQUEST_DENIED_X: [&[u8]; 13] = [
    b"x-admin-key",
    b"x-amzn-trace-id",
    b"x-api-key",
    b"x-body-compressed",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-prefix",
    b"x-forwarded-proto",
    b"x-goog-api-key",
    b"x-real-ip",
    b"x-request-id",
    b"x-smg-target-worker",
];
const ANSWER_DENIED: [&[u8]; 14] = [
    b"connection",
    b"content-length",
    b"date",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-connection",
    b"server",
    b"set-cookie",
    b"strict-transport-security",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"x-request-id",
];
const JSON: &[u8] = b"application/json";

fn crosses_to_worker(name: &[u8]) -> bool {
    if name.starts_with(b"x-") {
        return !REQUEST_DENIED_X.contains(&name)
            && !name.starts_with(b"x-override-")
            && !name.starts_with(b"x-heddle-");
    }
    REQUEST_ALLOWED.contains(&name)
}

fn crosses_to_client(name: &[u8]) -> bool {
    !ANSWER_DENIED.contains(&name)
        && !name.starts_with(b"x-heddle-")
        && !name.starts_with(b"access-control-")
}

/// The header lines for the worker: what crosses, then ours; without the request's id and the body's length.
///
/// `content-type` is kept where it says JSON and is set otherwise: `SGLang` answers 415 without it. What the `connection`
/// header names is hop-by-hop as well (RFC 9110, 7.6.1).
pub fn forward_lines(headers: &[Header<'_>]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(256);
    let mut content_type = JSON;
    let nominated = headers.iter().find(|(name, _)| *name == b"connection");
    for &(name, value) in headers {
        if name == b"content-type" {
            if value.len() >= JSON.len() && value[..JSON.len()].eq_ignore_ascii_case(JSON) {
                content_type = value;
            }
        } else if crosses_to_worker(name) && !nominated.is_some_and(|_| is_nominated(headers, name))
        {
            push_line(&mut lines, name, value);
        }
    }
    push_line(&mut lines, b"content-type", content_type);
    push_line(&mut lines, b"accept-encoding", b"identity");
    lines
}

/// The worker's header lines that go to the client, without those of the names in `without`.
pub fn answer_lines(headers: &[Header<'_>], without: &[&[u8]]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(128);
    let nominated = headers.iter().find(|(name, _)| *name == b"connection");
    for &(name, value) in headers {
        if crosses_to_client(name)
            && !without.contains(&name)
            && !nominated.is_some_and(|_| is_nominated(headers, name))
        {
            push_line(&mut lines, name, value);
        }
    }
    lines
}

fn is_nominated(headers: &[Header<'_>], wanted: &[u8]) -> bool {
    headers
        .iter()
        .filter(|(name, _)| *name == b"connection")
        .flat_map(|(_, value)| value.split(|byte| *byte == b','))
        .any(|part| part.trim_ascii().eq_ignore_ascii_case(wanted))
}

fn push_line(lines: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    lines.extend_from_slice(name);
    lines.extend_from_slice(b": ");
    lines.extend_from_slice(value);
    lines.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded(headers: &[(&str, &str)]) -> String {
        let headers: Vec<Header<'_>> = headers
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            .collect();
        String::from_utf8(forward_lines(&headers)).unwrap()
    }

    #[test]
    fn credentials_and_commands_stay_here() {
        let lines = forwarded(&[
            ("authorization", "Bearer secret"),
            ("cookie", "secret"),
            ("host", "here"),
            ("x-api-key", "secret"),
            ("x-heddle-group", "g"),
            ("x-override-temperature", "0"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-custom", "kept"),
            ("traceparent", "kept"),
        ]);
        assert_eq!(
            lines,
            "x-custom: kept\r\ntraceparent: kept\r\ncontent-type: application/json\r\naccept-encoding: identity\r\n"
        );
    }

    #[test]
    fn what_the_connection_header_names_is_hop_by_hop() {
        let lines = forwarded(&[
            ("x-hop", "gone"),
            ("x-kept", "kept"),
            ("connection", "close, X-Hop"),
        ]);
        assert!(!lines.contains("x-hop"));
        assert!(lines.contains("x-kept: kept\r\n"));
    }

    #[test]
    fn a_content_type_is_kept_only_where_it_says_json() {
        let with = |value| forwarded(&[("content-type", value)]);
        assert!(
            with("Application/JSON; charset=utf-8")
                .starts_with("content-type: Application/JSON; charset=utf-8\r\n")
        );
        assert!(with("multipart/form-data").starts_with("content-type: application/json\r\n"));
        assert!(with("").starts_with("content-type: application/json\r\n"));
    }

    #[test]
    fn of_an_answer_the_workers_framing_and_claims_stay_here() {
        let headers: [Header<'_>; 7] = [
            (b"content-type", b"application/json"),
            (b"connection", b"X-Hop, keep-alive"),
            (b"x-hop", b"gone"),
            (b"server", b"uvicorn"),
            (b"x-heddle-worker", b"me"),
            (b"access-control-allow-origin", b"*"),
            (b"x-kept", b"1"),
        ];
        assert_eq!(
            answer_lines(&headers, &[]),
            b"content-type: application/json\r\nx-kept: 1\r\n"
        );
        assert_eq!(answer_lines(&headers, &[b"content-type"]), b"x-kept: 1\r\n");
    }
}
