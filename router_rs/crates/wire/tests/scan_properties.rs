//! What a scan finds does not depend on how the JSON is written.

#![allow(clippy::needless_pass_by_value)] // convenience of test code

mod json_strategies;

use heddle_wire::{Dialect, JsonError, Reason, Scan, Unit, scan_body};
use json_strategies::{members, value, write_object};
use proptest::prelude::*;
use serde_json::{Value, json};

fn scan(body: &Value) -> Scan {
    scan_body(body.to_string().as_bytes(), Dialect::Chat).unwrap()
}

fn message_hash(message: Value) -> u64 {
    scan(&json!({"messages": [message]})).message_hashes[0]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_body_is_accepted_exactly_if_it_is_json(mut bytes in members().prop_map(|members| write_object(&members, 1).into_bytes()),
        at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at); } else { bytes[at] = byte; }
        let ours = scan_body(&bytes, Dialect::Chat).is_ok();
        let theirs: Result<Value, _> = serde_json::from_slice(&bytes);
        // What we take and they do not: lone surrogates, and numbers beyond f64.
        if let Err(error) = &theirs {
            let text = error.to_string();
            prop_assume!(!text.contains("surrogate") && !text.contains("hex escape") && !text.contains("out of range"));
        }
        prop_assert_eq!(ours, theirs.is_ok_and(|value| value.is_object()), "{}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn whitespace_escapes_and_key_order_do_not_change_a_hash(
        messages in prop::collection::vec(message(), 1..5), style in any::<u64>(), other in any::<u64>(),
    ) {
        let body = |messages: Vec<Value>, style| {
            let text = write_object(&[("messages".into(), Value::Array(messages))], style);
            scan_body(text.as_bytes(), Dialect::Chat).unwrap()
        };
        let backwards: Vec<Value> = messages.iter().map(reversed).collect();
        let (left, right) = (body(messages, style), body(backwards, other));
        prop_assert_eq!(&left.chain, &right.chain);
        prop_assert_eq!(&left.message_hashes, &right.message_hashes);
    }

    #[test]
    fn any_value_in_any_place_is_accepted(members in members(), messages in value(), style in any::<u64>()) {
        let mut members = members;
        members.push(("messages".into(), messages));
        for dialect in [Dialect::Chat, Dialect::Completions, Dialect::Generate] {
            prop_assert!(scan_body(write_object(&members, style).as_bytes(), dialect).is_ok());
        }
    }

    #[test]
    fn a_prompt_that_goes_on_has_the_hash_of_its_beginning(text in "[a-zé\"\\\\\n]{0,1200}", more in "[a-z]{0,400}", cut in any::<prop::sample::Index>()) {
        let one = |text: &str| scan_body(json!({"prompt": text}).to_string().as_bytes(), Dialect::Completions).unwrap();
        let short = one(&text);
        let long = one(&format!("{text}{more}"));
        prop_assert_eq!(short.history_length(), text.len());
        let at = cut.index(text.len() + 1);
        prop_assert_eq!(short.prefix_hash(at), long.prefix_hash(at));
        prop_assert!(short.prefix_hash(text.len()).is_some());
        prop_assert_eq!(short.prefix_hash(text.len() + 1), None);
        prop_assert_eq!(long.span_hash(text.len(), more.len()), Some(heddle_wire::hash::bytes(more.as_bytes())));
    }

    #[test]
    fn token_prompts_have_prefixes_too(ids in prop::collection::vec(any::<u32>(), 0..300), more in prop::collection::vec(any::<u32>(), 1..100)) {
        let one = |ids: &[u32]| scan_body(json!({"input_ids": ids}).to_string().as_bytes(), Dialect::Generate).unwrap();
        let whole = [ids.as_slice(), more.as_slice()].concat();
        let long = one(&whole);
        prop_assert_eq!(long.unit(), Unit::Tokens);
        prop_assert_eq!(long.prompt_tokens, whole.len() as u64);
        prop_assert_eq!(long.span_hash(ids.len(), more.len()), Some(heddle_wire::hash::tokens(&more)));
        if !ids.is_empty() {
            prop_assert_eq!(one(&ids).prefix_hash(ids.len()), long.prefix_hash(ids.len()));
        }
    }
}

fn message() -> impl Strategy<Value = Value> {
    (
        prop::sample::select(vec!["system", "user", "assistant", "tool"]),
        prop_oneof![Just(Value::Null), any::<String>().prop_map(Value::from), parts()],
        prop::option::of(any::<String>()),
        prop::option::of(value()),
    )
        .prop_map(|(role, content, call_id, arguments)| {
            let mut message = json!({"role": role, "content": content});
            if let Some(id) = call_id {
                message["tool_call_id"] = json!(id);
            }
            if let Some(arguments) = arguments {
                message["tool_calls"] =
                    json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
            }
            message
        })
}

fn parts() -> impl Strategy<Value = Value> {
    prop::collection::vec(
        prop_oneof![
            any::<String>().prop_map(|text| json!({"type": "text", "text": text})),
            "[a-z0-9]{0,30}"
                .prop_map(|data| json!({"type": "image_url", "image_url": {"url": data}})),
        ],
        0..4,
    )
    .prop_map(Value::Array)
}

/// The same object with its members in the opposite order, all the way down.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .iter()
                .rev()
                .map(|(key, value)| (key.clone(), reversed(value)))
                .collect(),
        ),
        Value::Array(elements) => Value::Array(elements.iter().map(reversed).collect()),
        other => other.clone(),
    }
}

#[test]
fn noise_around_an_assistants_message_does_not_count() {
    let bare = message_hash(json!({"role": "assistant", "content": "hi"}));
    for noisy in [
        json!({"role": "assistant", "content": "hi", "refusal": null, "annotations": [], "audio": null}),
        json!({"content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}], "role": "assistant"}),
        json!({"role": "assistant", "content": "hi", "reasoning_content": "because", "tool_calls": null}),
        json!({"role": "assistant", "content": " hi\n"}),
        json!({"role": "assistant", "content": "<think>long</think>\n\nhi"}),
        json!({"role": "assistant", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}),
    ] {
        assert_eq!(message_hash(noisy.clone()), bare, "{noisy}");
    }
}

#[test]
fn what_a_message_means_does_count() {
    let messages = [
        json!({"role": "assistant", "content": "hi"}),
        json!({"role": "user", "content": "hi"}),
        json!({"role": "user", "content": " hi"}),
        json!({"role": "assistant", "content": "ho"}),
        json!({"role": "assistant", "content": "hi", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}),
        json!({"role": "assistant", "content": "hi", "tool_calls": [{"id": "2", "function": {"name": "f", "arguments": "{}"}}]}),
        json!({"role": "assistant", "content": "hi", "tool_calls": [{"id": "1", "function": {"name": "g", "arguments": "{}"}}]}),
        json!({"role": "assistant", "content": "hi", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{\"a\":1}"}}]}),
        json!({"role": "tool", "content": "hi", "tool_call_id": "1"}),
        json!({"role": "tool", "content": "hi", "tool_call_id": "2"}),
        json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}),
        json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b"}}]}),
    ];
    let mut hashes: Vec<u64> = messages.iter().cloned().map(message_hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), messages.len());
}

#[test]
fn arguments_count_by_meaning() {
    let call = |arguments: Value| {
        message_hash(
            json!({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}]}),
        )
    };
    let written = call(json!(r#"{"a": 1, "b": [1.0, "x"]}"#));
    assert_eq!(call(json!(r#"{"b":[1,"\u0078"],"a":1}"#)), written);
    assert_eq!(call(json!({"a": 1, "b": [1, "x"]})), written);
    assert_ne!(call(json!(r#"{"b":[2,"x"],"a":1}"#)), written);
    assert_eq!(call(json!("")), call(json!("{}")));
    assert_eq!(call(Value::Null), call(json!("{}")));
    assert_ne!(call(json!("not json")), call(json!("{}")));
}

fn error(body: &[u8]) -> JsonError {
    scan_body(body, Dialect::Chat).unwrap_err()
}

#[test]
fn errors_say_what_and_where() {
    assert_eq!(
        error(b"[1]"),
        JsonError {
            position: 0,
            reason: Reason::NotAnObject
        }
    );
    assert_eq!(
        error(b"  \"x\""),
        JsonError {
            position: 2,
            reason: Reason::NotAnObject
        }
    );
    assert_eq!(
        error(b""),
        JsonError {
            position: 0,
            reason: Reason::Incomplete
        }
    );
    assert_eq!(
        error(b"{\"a\":"),
        JsonError {
            position: 5,
            reason: Reason::Incomplete
        }
    );
    assert_eq!(
        error(b"{\"a\":1,}"),
        JsonError {
            position: 7,
            reason: Reason::Unexpected
        }
    );
    assert_eq!(
        error(b"{\"a\":01}"),
        JsonError {
            position: 6,
            reason: Reason::Unexpected
        }
    );
    assert_eq!(
        error(b"{\"a\":\"\xff\"}"),
        JsonError {
            position: 6,
            reason: Reason::Encoding
        }
    );
    assert_eq!(
        error(b"\xef\xbb\xbf{}"),
        JsonError {
            position: 0,
            reason: Reason::ByteOrderMark
        }
    );
    assert_eq!(
        error(b"{\"a\":\"\n\"}"),
        JsonError {
            position: 6,
            reason: Reason::Control
        }
    );
    assert_eq!(error(b"{\"a\":\"\\x\"}").reason, Reason::Escape);
    assert_eq!(
        error(b"{} {}"),
        JsonError {
            position: 3,
            reason: Reason::Unexpected
        }
    );
    assert_eq!(
        error(format!("{{\"a\":{}}}", "[".repeat(100_000)).as_bytes()).reason,
        Reason::Depth
    );
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(500), "]".repeat(500));
    assert!(scan_body(deep.as_bytes(), Dialect::Chat).is_ok());
}

#[test]
fn an_emoji_cut_in_half_goes_through_and_differs_from_another() {
    let hash = |half: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"x{half}y"}}]}}"#);
        scan_body(body.as_bytes(), Dialect::Chat)
            .unwrap()
            .message_hashes[0]
    };
    assert_ne!(hash(r"\ud83d"), hash(r"\ud83e"));
    assert_ne!(hash(r"\ud83d"), hash(r"\ud83d\ude00"));
    assert_eq!(hash(r"\ud83d\ude00"), hash("😀"));
}

#[test]
fn routing_facts_are_read_and_wrong_types_are_the_workers_business() {
    let found = scan(
        &json!({"model": "m", "stream": true, "n": 3, "max_tokens": 5, "max_completion_tokens": 9,
        "stream_options": {"include_usage": false}, "messages": []}),
    );
    assert_eq!(found.model.as_deref(), Some("m"));
    assert!(found.stream);
    assert_eq!(
        (found.choices, found.max_tokens, found.include_usage),
        (3, Some(9), Some(false))
    );
    let odd = scan(
        &json!({"model": 1, "stream": "yes", "n": "3", "max_tokens": -5, "stream_options": 7, "messages": {"a": 1}}),
    );
    assert_eq!(
        (
            odd.model,
            odd.stream,
            odd.choices,
            odd.max_tokens,
            odd.include_usage
        ),
        (None, false, 1, None, None)
    );
    assert_eq!(odd.chain, Vec::<u64>::new());
}

#[test]
fn sampling_params_of_generate_are_read() {
    let body = json!({"text": "abcdefgh", "sampling_params": {"max_new_tokens": 7, "n": 2}});
    let found = scan_body(body.to_string().as_bytes(), Dialect::Generate).unwrap();
    assert_eq!(
        (
            found.max_tokens,
            found.choices,
            found.prompt_tokens,
            found.unit()
        ),
        (Some(7), 2, 2, Unit::Bytes)
    );
}

#[test]
fn vllms_token_prompts_are_read_under_its_own_names() {
    let body =
        json!({"model": "m", "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 7, "n": 2}});
    let found = scan_body(body.to_string().as_bytes(), Dialect::Tokens).unwrap();
    assert_eq!(
        (
            found.max_tokens,
            found.choices,
            found.prompt_tokens,
            found.unit()
        ),
        (Some(7), 2, 3, Unit::Tokens)
    );
}

#[test]
fn a_batch_has_a_size_and_no_prefix() {
    for (body, tokens) in [
        (json!({"prompt": ["abcd", "efghijkl"]}), 3),
        (json!({"prompt": [[1, 2], [3]]}), 3),
    ] {
        let found = scan_body(body.to_string().as_bytes(), Dialect::Completions).unwrap();
        assert_eq!(
            (found.unit(), found.prompt_tokens, found.prefix_hash(1)),
            (Unit::Opaque, tokens, None)
        );
        assert_eq!(found.chain.len(), 1);
    }
    let single = scan_body(br#"{"prompt": ["abcd"]}"#, Dialect::Completions).unwrap();
    assert_eq!(single.unit(), Unit::Bytes);
}

#[test]
fn identity_strings_come_as_dotted_paths() {
    let found = scan(&json!({
        "program_id": "p",
        "user": "u",
        "metadata": {"session_id": "s", "other": "x", "user_id": 12},
        "extra_body": {"program_id": "e"},
        "vllm_xargs": {"agentic_context": {"program_id": "a", "priority": 3, "nested": {"deep": 1}}, "other": "x"},
        "agent_hint": {"session_id": "h"},
        "nvext": {"agent_context": {"program_id": "n"}},
        "session_params": {"id": "i"},
        "conversation": {"id": "c"},
        "prompt_cache_key": null,
        "session_id": "x".repeat(2000),
        "temperature": "t",
    }));
    let mut fields = found.fields;
    fields.sort();
    let expected = [
        ("agent_hint.session_id", "h"),
        ("conversation.id", "c"),
        ("extra_body.program_id", "e"),
        ("metadata.session_id", "s"),
        ("metadata.user_id", "12"),
        ("nvext.agent_context.program_id", "n"),
        ("program_id", "p"),
        ("session_params.id", "i"),
        ("user", "u"),
        ("vllm_xargs.agentic_context.priority", "3"),
        ("vllm_xargs.agentic_context.program_id", "a"),
    ];
    assert_eq!(
        fields,
        expected.map(|(path, value)| (path.to_owned(), value.to_owned()))
    );
}

#[test]
fn agentic_context_may_come_as_json_text() {
    let found = scan(&json!({"vllm_xargs": {"agentic_context": "{\"program_id\": \"p\"}"}}));
    assert_eq!(
        found.fields,
        [(
            "vllm_xargs.agentic_context.program_id".to_owned(),
            "p".to_owned()
        )]
    );
}

#[test]
fn a_history_longer_than_any_agents_is_not_followed() {
    for (dialect, member) in [
        (Dialect::Chat, "messages"),
        (Dialect::Messages, "messages"),
        (Dialect::Responses, "input"),
    ] {
        let of = |count: usize| {
            let messages = vec![r#"{"role":"user","content":"a"}"#; count].join(",");
            let body = format!(r#"{{"{member}":[{messages}]}}"#);
            let scan = scan_body(body.as_bytes(), dialect).unwrap();
            let parcel = scan.to_bytes(body.as_bytes());
            (scan, parcel)
        };
        let (longest, _) = of(100_000);
        assert_eq!(longest.unit(), Unit::Messages, "{dialect:?}");
        assert_eq!(longest.history_length(), 100_000);
        let (beyond, parcel) = of(100_001);
        assert_eq!(beyond.unit(), Unit::Opaque, "{dialect:?}");
        assert!(beyond.chain.is_empty() && beyond.message_hashes.is_empty());
        assert!(beyond.prompt_tokens >= longest.prompt_tokens);
        // What a gateway tells another of it: some anchors.
        assert!(parcel.len() < 100_000, "{}", parcel.len());
    }
}
