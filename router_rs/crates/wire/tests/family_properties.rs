//! `/v1/messages` and `/v1/responses`: what is true of chat's answers and histories is true of theirs.

#![allow(clippy::needless_pass_by_value)] // convenience of test code

use std::fmt::Write;

use heddle_wire::{
    AFTER_STORED, Answer, Dialect, Output, Role, Scan, StreamTap, Unit, read_answer, scan_body,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const FAMILIES: [Dialect; 2] = [Dialect::Messages, Dialect::Responses];

fn run(stream: &[u8], cuts: &[usize], dialect: Dialect) -> (Vec<u8>, Answer) {
    let mut tap = StreamTap::new(dialect, true);
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    let mut out = Vec::new();
    for pair in cuts.windows(2) {
        let piece = &stream[pair[0]..pair[1]];
        match tap.feed(piece) {
            Output::Same => out.extend_from_slice(piece),
            Output::Bytes(bytes) => out.extend_from_slice(&bytes),
        }
    }
    assert_eq!(tap.is_done(), tap.answer().done);
    out.extend_from_slice(&tap.finish());
    (out, tap.answer())
}

fn scan(body: &Value, dialect: Dialect) -> Scan {
    scan_body(body.to_string().as_bytes(), dialect).unwrap()
}

fn whole(body: &Value, dialect: Dialect) -> Answer {
    read_answer(body.to_string().as_bytes(), dialect).unwrap()
}

/// What a model said: a text in pieces, and calls, each with its arguments in pieces of JSON text.
#[derive(Clone, Debug)]
struct Said {
    pieces: Vec<String>,
    calls: Vec<(String, Vec<String>)>,
    thought: Option<String>,
}

fn said() -> impl Strategy<Value = Said> {
    let argument =
        prop::collection::vec(("[a-z]{1,3}", any::<String>()), 0..3).prop_map(|members| {
            let object: serde_json::Map<String, Value> = members
                .into_iter()
                .map(|(key, text)| (key, json!(text)))
                .collect();
            let text: Vec<char> = Value::Object(object).to_string().chars().collect();
            text.chunks(7)
                .map(|part| part.iter().collect())
                .collect::<Vec<String>>()
        });
    (
        prop::collection::vec(
            prop_oneof![
                any::<String>(),
                "[ a-z\n]{0,9}",
                Just("</think>".to_owned())
            ],
            0..6,
        ),
        prop::collection::vec(("[a-z]{1,5}", argument), 0..3),
        prop::option::of(any::<String>()),
    )
        .prop_map(|(pieces, calls, thought)| Said {
            pieces,
            calls,
            thought,
        })
}

fn event(stream: &mut String, name: &str, data: Value) {
    let mut data = data;
    data["type"] = json!(name);
    write!(stream, "event: {name}\ndata: {data}\n\n").unwrap();
}

impl Said {
    fn text(&self) -> String {
        self.pieces.concat()
    }

    /// As the engine streams it.
    fn stream(&self, dialect: Dialect) -> String {
        if dialect == Dialect::Messages {
            self.messages_stream()
        } else {
            self.responses_stream()
        }
    }

    fn messages_stream(&self) -> String {
        let mut out = String::new();
        event(
            &mut out,
            "message_start",
            json!({"message": {"id": "msg_1", "type": "message", "role": "assistant",
            "content": [], "model": "m", "stop_reason": null, "usage": {"input_tokens": 4, "output_tokens": 0, "cache_read_input_tokens": 3}}}),
        );
        event(&mut out, "ping", json!({}));
        let mut index = 0;
        if let Some(thought) = &self.thought {
            event(
                &mut out,
                "content_block_start",
                json!({"index": index, "content_block": {"type": "thinking", "thinking": ""}}),
            );
            event(
                &mut out,
                "content_block_delta",
                json!({"index": index, "delta": {"type": "thinking_delta", "thinking": thought}}),
            );
            event(&mut out, "content_block_stop", json!({"index": index}));
            index += 1;
        }
        event(
            &mut out,
            "content_block_start",
            json!({"index": index, "content_block": {"type": "text", "text": ""}}),
        );
        for piece in &self.pieces {
            event(
                &mut out,
                "content_block_delta",
                json!({"index": index, "delta": {"type": "text_delta", "text": piece}}),
            );
        }
        event(&mut out, "content_block_stop", json!({"index": index}));
        for (number, (name, arguments)) in self.calls.iter().enumerate() {
            index += 1;
            event(
                &mut out,
                "content_block_start",
                json!({"index": index, "content_block": {"type": "tool_use", "id": format!("toolu_{number}"), "name": name, "input": {}}}),
            );
            for part in arguments {
                event(
                    &mut out,
                    "content_block_delta",
                    json!({"index": index, "delta": {"type": "input_json_delta", "partial_json": part}}),
                );
            }
            event(&mut out, "content_block_stop", json!({"index": index}));
        }
        event(
            &mut out,
            "message_delta",
            json!({"delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": {"output_tokens": 9}}),
        );
        event(&mut out, "message_stop", json!({}));
        out
    }

    fn responses_stream(&self) -> String {
        let mut out = String::new();
        let shell = |status: &str, output: &Value, usage: Value| json!({"response": {"id": "resp_1", "object": "response", "status": status, "error": null, "output": output, "usage": usage}});
        event(
            &mut out,
            "response.created",
            shell("in_progress", &json!([]), Value::Null),
        );
        let items = self.items();
        for (index, item) in items.iter().enumerate() {
            event(
                &mut out,
                "response.output_item.added",
                json!({"output_index": index, "item": {"type": item["type"]}}),
            );
            if item["type"] == "message" {
                for piece in &self.pieces {
                    event(
                        &mut out,
                        "response.output_text.delta",
                        json!({"output_index": index, "delta": piece}),
                    );
                }
            }
            event(
                &mut out,
                "response.output_item.done",
                json!({"output_index": index, "item": item}),
            );
        }
        let usage = json!({"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 9});
        let mut last = shell("completed", &Value::Array(items), usage);
        last["sequence_number"] = json!(41);
        event(&mut out, "response.completed", last);
        out
    }

    fn items(&self) -> Vec<Value> {
        let mut items = Vec::new();
        if let Some(thought) = &self.thought {
            items.push(json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]}));
        }
        items.push(
            json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": self.text(), "annotations": []}]}),
        );
        for (number, (name, arguments)) in self.calls.iter().enumerate() {
            items.push(json!({"type": "function_call", "id": "fc_1", "call_id": format!("toolu_{number}"), "name": name,
                "arguments": arguments.concat(), "status": "completed"}));
        }
        items
    }

    fn blocks(&self) -> Vec<Value> {
        let mut blocks = Vec::new();
        if let Some(thought) = &self.thought {
            blocks.push(json!({"type": "thinking", "thinking": thought}));
        }
        blocks.push(json!({"type": "text", "text": self.text()}));
        for (number, (name, arguments)) in self.calls.iter().enumerate() {
            let input: Value = serde_json::from_str(&arguments.concat()).unwrap();
            blocks.push(json!({"input": input, "name": name, "id": format!("toolu_{number}"), "type": "tool_use"}));
        }
        blocks
    }

    /// As the engine answers it whole.
    fn body(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::Messages => {
                json!({"id": "msg_1", "type": "message", "role": "assistant", "content": self.blocks(), "model": "m",
                "stop_reason": "tool_use", "usage": {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 9}})
            }
            _ => {
                json!({"id": "resp_1", "object": "response", "status": "completed", "error": null, "output": self.items(),
                "usage": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 9, "total_tokens": 16}})
            }
        }
    }

    /// The request that shows it, after `task`; with what was thought, or without.
    fn next_request(&self, dialect: Dialect, keeps_thought: bool) -> Value {
        let kept = |item: &Value| {
            keeps_thought || !matches!(item["type"].as_str(), Some("thinking" | "reasoning"))
        };
        if dialect == Dialect::Messages {
            let blocks: Vec<Value> = self.blocks().into_iter().filter(kept).collect();
            json!({"system": "s", "messages": [{"role": "user", "content": "task"}, {"role": "assistant", "content": blocks},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_0", "content": "ok"}]}]})
        } else {
            let mut items = vec![json!({"role": "user", "content": "task"})];
            items.extend(self.items().into_iter().filter(kept));
            items.push(
                json!({"type": "function_call_output", "call_id": "toolu_0", "output": "ok"}),
            );
            json!({"instructions": "s", "input": items})
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_bytes_and_the_same_answer(said in said(), cuts in prop::collection::vec(any::<usize>(), 0..20)) {
        for dialect in FAMILIES {
            let stream = said.stream(dialect);
            let (out, answer) = run(stream.as_bytes(), &cuts, dialect);
            prop_assert_eq!(String::from_utf8_lossy(&out), stream.clone());
            let (_, at_once) = run(stream.as_bytes(), &[], dialect);
            let every: Vec<usize> = (0..stream.len()).collect();
            let (_, bytewise) = run(stream.as_bytes(), &every, dialect);
            prop_assert_eq!(&answer, &at_once);
            prop_assert_eq!(&answer, &bytewise);
            prop_assert!(answer.done);
            prop_assert_eq!((answer.prompt_tokens, answer.output_tokens, answer.cached_tokens), (Some(7), Some(9), Some(3)));
        }
    }

    #[test]
    fn an_answer_hashes_like_what_the_client_sends_back(said in said(), keeps_thought in any::<bool>()) {
        for dialect in FAMILIES {
            let (_, streamed) = run(said.stream(dialect).as_bytes(), &[], dialect);
            let answered = whole(&said.body(dialect), dialect);
            prop_assert_eq!(&streamed.answer_hashes, &answered.answer_hashes);
            prop_assert_eq!(&streamed.call_ids, &answered.call_ids);
            prop_assert_eq!(&streamed.tool_names, &answered.tool_names);
            prop_assert_eq!((answered.prompt_tokens, answered.cached_tokens, answered.done), (Some(7), Some(3), true));
            let next = scan(&said.next_request(dialect, keeps_thought), dialect);
            prop_assert_eq!(&next.roles[..3], &[Role::System, Role::User, Role::Assistant]);
            let (before, hash) = next.last_answer().unwrap();
            prop_assert_eq!(vec![hash], streamed.answer_hashes);
            let first = scan(&match dialect {
                Dialect::Messages => json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "task", "cache_control": {"type": "ephemeral"}}]}], "system": [{"type": "text", "text": "s"}]}),
                _ => json!({"input": "task", "instructions": "s"}),
            }, dialect);
            prop_assert_eq!(first.chain.last().copied(), Some(before));
        }
    }

    #[test]
    fn bytes_that_are_no_event_stream_pass(bytes in prop::collection::vec(any::<u8>(), 0..300), cuts in prop::collection::vec(any::<usize>(), 0..9)) {
        for dialect in FAMILIES {
            let (out, _) = run(&bytes, &cuts, dialect);
            prop_assert_eq!(&out, &bytes);
        }
    }
}

fn last_hash(messages: Value) -> u64 {
    *scan(&json!({"messages": messages}), Dialect::Messages)
        .message_hashes
        .last()
        .unwrap()
}

#[test]
fn what_a_client_does_to_caching_marks_and_result_texts_does_not_count() {
    let result = |content: Value, mark: Value| {
        last_hash(json!([{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": content, "cache_control": mark}]}]))
    };
    let mark = json!({"type": "ephemeral"});
    assert_eq!(
        result(json!("ok"), mark.clone()),
        result(json!([{"type": "text", "text": "ok"}]), Value::Null)
    );
    assert_ne!(
        result(json!("ok"), Value::Null),
        result(json!("no"), Value::Null)
    );
    let named = |id: &str| {
        last_hash(
            json!([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": id}]}]),
        )
    };
    assert_ne!(named("a"), named("b"));
    let image = |data: &str| {
        last_hash(json!([{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {"data": data}}]}]}]))
    };
    assert_ne!(image("a"), image("b"));
}

#[test]
fn claude_codes_billing_line_is_no_part_of_the_system_prompt() {
    let head = |line: &str| {
        scan(
            &json!({"system": [{"type": "text", "text": line}, {"type": "text", "text": "You are an agent."}],
                "messages": [{"role": "user", "content": "x"}]}),
            Dialect::Messages,
        )
        .head()
    };
    let first = head("x-anthropic-billing-header: cc_version=2.1; cch=1;");
    assert_eq!(
        first,
        head("x-anthropic-billing-header: cc_version=2.1; cch=2;")
    );
    assert_ne!(first, head("Another agent."));
    assert_ne!(first, 0);
}

#[test]
fn a_stored_answer_is_what_the_request_comes_after() {
    let after = |id: &str| {
        scan(
            &json!({"previous_response_id": id, "input": "go on", "background": false}),
            Dialect::Responses,
        )
    };
    let found = after("resp_a");
    assert_eq!(
        found.last_answer(),
        Some((AFTER_STORED, heddle_wire::hash::bytes(b"resp_a")))
    );
    assert_eq!(
        found.fields,
        [("previous_response_id".to_owned(), "resp_a".to_owned())]
    );
    assert_ne!(found.chain, after("resp_b").chain);
    assert_ne!(
        found.chain,
        scan(&json!({"input": "go on"}), Dialect::Responses).chain
    );
    assert_eq!((found.unit(), found.background), (Unit::Messages, false));
}

#[test]
fn an_answers_items_are_one_message_whatever_stands_between() {
    let history = |items: Value| scan(&json!({"input": items}), Dialect::Responses);
    let answer = json!({"role": "assistant", "content": "hm"});
    let call =
        |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "a", "output": "ok"});
    let found =
        history(json!([{"role": "user", "content": "t"}, answer, call("a"), call("b"), output]));
    assert_eq!(found.roles, [Role::User, Role::Assistant, Role::Tool]);
    let parted = history(
        json!([{"role": "user", "content": "t"}, {"type": "reasoning", "summary": []}, answer,
        {"type": "reasoning", "encrypted_content": "x"}, call("a"), call("b"), output]),
    );
    assert_eq!(found.chain, parted.chain);
    let other =
        history(json!([{"role": "user", "content": "t"}, answer, call("a"), call("c"), output]));
    assert_ne!(found.chain, other.chain);
    let custom = history(
        json!([{"type": "custom_tool_call", "call_id": "a", "name": "sh", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"}]),
    );
    assert_eq!(custom.roles, [Role::Assistant, Role::Tool]);
    let said = whole(
        &json!({"id": "resp_1", "status": "completed", "output": [{"type": "custom_tool_call", "call_id": "a", "name": "sh", "input": "ls"}]}),
        Dialect::Responses,
    );
    assert_eq!(said.answer_hashes, [custom.message_hashes[0]]);
}

#[test]
fn facts_of_routing_are_read_where_each_family_has_them() {
    let found = scan(
        &json!({"model": "m", "stream": true, "max_output_tokens": 9, "background": true, "input": "abcdefgh",
        "prompt_cache_key": "k", "metadata": {"session_id": "s"}}),
        Dialect::Responses,
    );
    assert_eq!(
        (
            found.model.as_deref(),
            found.stream,
            found.max_tokens,
            found.background
        ),
        (Some("m"), true, Some(9), true)
    );
    assert_eq!(found.fields.len(), 2);
    assert!(found.prompt_tokens > 0);
    let found = scan(
        &json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x".repeat(400)}],
        "metadata": {"user_id": "user_a_account__session_b"}}),
        Dialect::Messages,
    );
    assert_eq!((found.max_tokens, found.prompt_tokens), (Some(5), 104));
    assert_eq!(
        found.fields,
        [(
            "metadata.user_id".to_owned(),
            "user_a_account__session_b".to_owned()
        )]
    );
    // A repeated member wins, as in Python.
    let twice = scan_body(br#"{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}"#, Dialect::Messages).unwrap();
    assert_eq!(
        twice.message_hashes,
        [last_hash(json!([{"role": "user", "content": "b"}]))]
    );
    let odd = scan(
        &json!({"input": 7, "instructions": [1], "previous_response_id": 3, "max_output_tokens": "x"}),
        Dialect::Responses,
    );
    assert_eq!(
        (odd.unit(), odd.previous, odd.max_tokens),
        (Unit::Opaque, None, None)
    );
}

#[test]
fn a_stream_is_silent_until_there_is_output_an_end_or_an_error() {
    let begin = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],\"usage\":{\"input_tokens\":1}}}\n\n";
    for (dialect, begin, next) in [
        (
            Dialect::Messages,
            begin,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"x\"}}\n\n",
        ),
        (
            Dialect::Messages,
            begin,
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n",
        ),
        (
            Dialect::Responses,
            "data: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"status\":\"in_progress\",\"output\":[]}}\n\n",
            "data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n",
        ),
    ] {
        let mut tap = StreamTap::new(dialect, false);
        tap.feed(begin.as_bytes());
        assert!(tap.is_silent());
        tap.feed(next.as_bytes());
        assert!(!tap.is_silent());
    }
}

#[test]
fn of_a_broken_message_the_pieces_count_and_not_what_its_beginning_says() {
    let mut stream = String::new();
    event(
        &mut stream,
        "message_start",
        json!({"message": {"content": [], "usage": {"input_tokens": 4, "output_tokens": 0}}}),
    );
    for text in ["a", "b"] {
        event(
            &mut stream,
            "content_block_delta",
            json!({"index": 0, "delta": {"type": "text_delta", "text": text}}),
        );
    }
    let (_, answer) = run(stream.as_bytes(), &[], Dialect::Messages);
    assert_eq!(
        (answer.prompt_tokens, answer.output_tokens, answer.chunks),
        (Some(4), None, 2)
    );
}

#[test]
fn errors_and_ends_of_each_family_are_read() {
    let streams = [
        (
            Dialect::Messages,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"boom\"}}\n\n",
        ),
        (
            Dialect::Responses,
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"resp_1\",\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"boom\"}}}\n\n",
        ),
        (
            Dialect::Responses,
            "event: error\ndata: {\"type\":\"error\",\"code\":null,\"message\":\"boom\"}\n\n",
        ),
    ];
    for (dialect, stream) in streams {
        assert_eq!(
            run(stream.as_bytes(), &[], dialect).1.error.as_deref(),
            Some("boom")
        );
    }
    for (status, details, word) in [
        ("completed", Value::Null, "stop"),
        ("incomplete", Value::Null, "length"),
        (
            "incomplete",
            json!({"reason": "content_filter"}),
            "content_filter",
        ),
        ("cancelled", Value::Null, "abort"),
    ] {
        let body =
            json!({"id": "resp_1", "status": status, "incomplete_details": details, "output": []});
        let answer = whole(&body, Dialect::Responses);
        assert_eq!(answer.finish_reasons, [word]);
        assert_eq!(answer.response_id.as_deref(), Some("resp_1"));
    }
    for (reason, word) in [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("stop_sequence", "stop"),
    ] {
        let body = json!({"type": "message", "content": [], "stop_reason": reason});
        assert_eq!(whole(&body, Dialect::Messages).finish_reasons, [word]);
    }
    let mut stream = String::new();
    event(
        &mut stream,
        "response.completed",
        json!({"sequence_number": 41, "response": {"id": "resp_1", "status": "completed"}}),
    );
    let (_, answer) = run(stream.as_bytes(), &[], Dialect::Responses);
    assert_eq!((answer.done, answer.sequence), (true, Some(41)));
    assert!(
        !whole(
            &json!({"type": "error", "error": {"message": "no"}}),
            Dialect::Messages
        )
        .done
    );
}
