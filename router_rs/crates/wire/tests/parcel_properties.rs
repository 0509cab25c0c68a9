//! What was read of a request or an answer is the same in another process.

#![allow(clippy::needless_pass_by_value)] // convenience of test code

use heddle_wire::{
    Answer, Dialect, Edits, ParcelError, Scan, message_anchors, read_answer, scan_body, splice,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// All that identity and the core ask of a scan.
fn read(scan: &Scan, body: &[u8]) -> String {
    let prefixes: Vec<_> = (0..=scan.history_length() + 1)
        .map(|length| {
            (
                scan.prefix_hash(length),
                scan.span_hash(length / 2, length / 2),
            )
        })
        .collect();
    format!(
        "{:?}",
        (
            (
                scan.dialect,
                &scan.model,
                scan.stream,
                scan.include_usage,
                scan.choices
            ),
            (
                scan.max_tokens,
                scan.prompt_tokens,
                &scan.message_hashes,
                &scan.roles
            ),
            (
                &scan.call_ids,
                &scan.chain,
                scan.unit(),
                scan.head(),
                scan.last_answer()
            ),
            (prefixes, scan.anchors_in(body)),
        )
    )
}

fn message() -> impl Strategy<Value = Value> {
    let text = || prop_oneof!["[a-z \n]{0,200}", any::<String>()];
    prop_oneof![
        (
            prop::sample::select(vec!["system", "user", "assistant", "tool", "odd"]),
            text()
        )
            .prop_map(|(role, text)| json!({"role": role, "content": text})),
        (any::<String>(), text()).prop_map(
            |(id, arguments)| json!({"role": "assistant", "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}]})
        ),
    ]
}

fn body() -> impl Strategy<Value = (Value, Dialect)> {
    let more = || {
        (
            any::<Option<String>>(),
            any::<bool>(),
            any::<Option<bool>>(),
            any::<Option<u32>>(),
        )
            .prop_map(|(model, stream, usage, most)| {
                json!({"model": model, "stream": stream, "stream_options": {"include_usage": usage}, "max_tokens": most, "n": 2})
            })
    };
    let prompt = prop_oneof![
        any::<String>().prop_map(Value::from),
        "[a-z ]{0,900}".prop_map(Value::from),
        prop::collection::vec(any::<u32>(), 0..300).prop_map(Value::from),
        prop::collection::vec("[a-z]{0,9}", 2..4).prop_map(Value::from),
    ];
    let merged = |mut body: Value, name: &str, value: Value| {
        body[name] = value;
        body
    };
    prop_oneof![
        (more(), prop::collection::vec(message(), 0..6)).prop_map(move |(body, messages)| (
            merged(body, "messages", messages.into()),
            Dialect::Chat
        )),
        (more(), prompt, any::<bool>()).prop_map(move |(body, prompt, plain)| if plain {
            (merged(body, "prompt", prompt), Dialect::Completions)
        } else {
            (merged(body, "text", prompt), Dialect::Generate)
        }),
    ]
}

fn answer() -> impl Strategy<Value = Value> {
    (any::<Option<u32>>(), prop::collection::vec(message(), 0..3), any::<bool>()).prop_map(|(tokens, messages, fails)| {
        let choices: Vec<Value> = messages
            .into_iter()
            .enumerate()
            .map(|(index, message)| json!({"index": index, "message": message, "text": "plain", "finish_reason": "stop"}))
            .collect();
        let mut body = json!({"choices": choices, "usage": {"prompt_tokens": tokens, "completion_tokens": 5}});
        if fails {
            body["error"] = json!({"message": "no room"});
        }
        body
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_scan_says_the_same_elsewhere((body, dialect) in body()) {
        let body = body.to_string().into_bytes();
        let here = scan_body(&body, dialect).unwrap();
        let there = Scan::from_bytes(&here.to_bytes(&body)).unwrap();
        prop_assert_eq!(read(&here, &body), read(&there, b""));
        // Handed on once more, by who has no body.
        prop_assert_eq!(here.to_bytes(&body), there.to_bytes(b""));
    }

    #[test]
    fn an_answer_says_the_same_elsewhere(body in answer(), dialect in prop::sample::select(vec![Dialect::Chat, Dialect::Completions])) {
        let here = read_answer(body.to_string().as_bytes(), dialect).unwrap();
        prop_assert_eq!(Answer::from_bytes(&here.to_bytes()).unwrap(), here);
    }

    #[test]
    fn what_is_cut_short_or_goes_on_is_refused((body, dialect) in body(), at in any::<prop::sample::Index>()) {
        let body = body.to_string().into_bytes();
        let mut bytes = scan_body(&body, dialect).unwrap().to_bytes(&body);
        prop_assert!(Scan::from_bytes(&bytes[..at.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert!(Scan::from_bytes(&bytes).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _: Result<Scan, ParcelError> = Scan::from_bytes(&bytes);
        let _: Result<Answer, ParcelError> = Answer::from_bytes(&bytes);
    }
}

#[test]
fn anchors_travel_with_a_scan() {
    let line = "A line that is long enough to be told from others by its first bytes.";
    let body =
        json!({"messages": [{"role": "user", "content": format!("short\n{line}")}]}).to_string();
    let scan = scan_body(body.as_bytes(), Dialect::Chat).unwrap();
    let there = Scan::from_bytes(&scan.to_bytes(body.as_bytes())).unwrap();
    assert_eq!(
        there.anchors_in(b""),
        message_anchors(body.as_bytes(), Dialect::Chat)
    );
    assert!(!there.anchors_in(b"").is_empty());
}

#[test]
fn a_scan_from_elsewhere_splices_no_body() {
    let body = br#"{"messages":[]}"#;
    let scan = scan_body(body, Dialect::Chat).unwrap();
    let there = Scan::from_bytes(&scan.to_bytes(body)).unwrap();
    let edits = Edits {
        rid: Some("r"),
        priority: None,
        ask_usage: false,
        drop: &[],
    };
    assert!(splice(body, &scan, &edits).is_some());
    assert!(splice(body, &there, &edits).is_none());
}
