//! The tap changes no byte but the chunk it hides, and reads the same answer however the stream is cut.

#![allow(clippy::needless_pass_by_value, clippy::format_push_string)] // convenience of test code

use heddle_wire::{Answer, Dialect, Output, Scan, StreamTap, read_answer, scan_body};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Runs a stream cut at `cuts`: bytes out, and the answer.
fn run(stream: &[u8], cuts: &[usize], dialect: Dialect, hide_usage: bool) -> (Vec<u8>, Answer) {
    let mut tap = StreamTap::new(dialect, hide_usage);
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
    out.extend_from_slice(&tap.finish());
    (out, tap.answer())
}

const USAGE: &str = r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":3}}}"#;

/// An event of a stream, and whether it is the hidden one.
fn event() -> impl Strategy<Value = (String, bool)> {
    prop_oneof![
        4 => any::<String>().prop_map(|text| (delta(json!({"content": text})), false)),
        1 => "[ a-z\n]{0,12}".prop_map(|text| (delta(json!({"content": text})), false)),
        1 => "[a-z<>/]{0,9}".prop_map(|text| (delta(json!({"content": format!("<think>{text}</think>")})), false)),
        1 => any::<String>().prop_map(|part| (delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})), false)),
        1 => Just((USAGE.to_owned(), true)),
        1 => Just((r#"{"choices":[],"usage":null}"#.to_owned(), false)),
        1 => Just((r#"{"choices":[],"usage":{"prompt_tokens":9},"sglext":{"routed_experts":"x"}}"#.to_owned(), false)),
        1 => Just((r#"{"id":"x"}"#.to_owned(), false)),
        1 => Just(("not json".to_owned(), false)),
        1 => Just(("[DONE]".to_owned(), false)),
    ]
}

fn delta(delta: Value) -> String {
    json!({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": null}], "usage": {"prompt_tokens": 1}}).to_string()
}

fn framing() -> impl Strategy<Value = (&'static str, &'static str)> {
    (
        prop::sample::select(vec!["\n", "\r\n", "\r"]),
        prop::sample::select(vec![
            "",
            ": ping",
            ":",
            "event: message",
            "id: 4",
            "retry: 1",
        ]),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_bytes_and_the_same_answer(
        events in prop::collection::vec((event(), framing(), any::<bool>()), 0..8),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
        last_blank in any::<bool>(),
        hide in any::<bool>(),
    ) {
        let mut stream = String::new();
        let mut visible = String::new();
        for ((data, hidden), (end, line), before) in &events {
            let mut text = String::new();
            if *before && !line.is_empty() {
                text += &format!("{line}{end}");
            }
            text += &format!("data: {data}{end}");
            // A usage chunk in an event with other fields is hidden with them; a comment before it stays.
            let comment = if *before && line.starts_with(':') { format!("{line}{end}") } else { String::new() };
            text += end;
            stream += &text;
            visible += if hide && *hidden { &comment } else { &text };
        }
        if !last_blank && events.last().is_some_and(|((_, hidden), (end, _), _)| !hidden && *end == "\n") {
            stream.pop();
            visible.pop();
        }
        let (out, answer) = run(stream.as_bytes(), &cuts, Dialect::Chat, hide);
        prop_assert_eq!(String::from_utf8_lossy(&out), visible.clone());
        let (_, whole) = run(stream.as_bytes(), &[], Dialect::Chat, hide);
        let every: Vec<usize> = (0..stream.len()).collect();
        let (bytewise_out, bytewise) = run(stream.as_bytes(), &every, Dialect::Chat, hide);
        prop_assert_eq!(&answer, &whole);
        prop_assert_eq!(&answer, &bytewise);
        prop_assert_eq!(String::from_utf8_lossy(&bytewise_out), visible);
    }

    #[test]
    fn bytes_that_are_no_event_stream_pass(bytes in prop::collection::vec(any::<u8>(), 0..300), cuts in prop::collection::vec(any::<usize>(), 0..9), hide in any::<bool>()) {
        let (out, _) = run(&bytes, &cuts, Dialect::Chat, hide);
        prop_assert_eq!(out, bytes);
    }

    #[test]
    fn a_streamed_answer_hashes_like_the_message_the_client_sends_back(
        pieces in prop::collection::vec(prop_oneof![any::<String>(), Just("</th".to_owned()), Just("ink>".to_owned()), Just("  ".to_owned())], 0..8),
        arguments in prop::collection::vec("[ -~]{0,6}", 0..4),
        calls in any::<bool>(),
    ) {
        let mut stream = String::new();
        for piece in &pieces {
            stream += &format!("data: {}\n\n", delta(json!({"content": piece, "reasoning_content": "why"})));
        }
        let mut message = json!({"role": "assistant", "content": pieces.concat()});
        if calls {
            stream += &format!("data: {}\n\n", delta(json!({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]})));
            for part in &arguments {
                stream += &format!("data: {}\n\n", delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})));
            }
            message["tool_calls"] = json!([{"function": {"arguments": arguments.concat(), "name": "f"}, "id": "call_1", "type": "function"}]);
        }
        if pieces.is_empty() && !calls {
            stream += &format!("data: {}\n\n", delta(json!({"role": "assistant"})));
        }
        let (_, answer) = run(stream.as_bytes(), &[], Dialect::Chat, true);
        let sent_back = chat(&json!({"messages": [message.clone()]})).message_hashes;
        prop_assert_eq!(&answer.answer_hashes, &sent_back);
        let whole = json!({"choices": [{"message": message}]}).to_string();
        prop_assert_eq!(read_answer(whole.as_bytes(), Dialect::Chat).unwrap().answer_hashes, sent_back);
    }
}

fn chat(body: &Value) -> Scan {
    scan_body(body.to_string().as_bytes(), Dialect::Chat).unwrap()
}

#[test]
fn a_token_chunk_is_never_held_to_the_next_feed() {
    let mut tap = StreamTap::new(Dialect::Chat, true);
    let chunk = format!("data: {}\n\n", delta(json!({"content": "x"})));
    assert_eq!(tap.feed(chunk.as_bytes()), Output::Same);
    // Not even without its blank line, and not even cut within the text.
    let cut = chunk.find("content").unwrap() + 12;
    assert_eq!(tap.feed(&chunk.as_bytes()[..cut]), Output::Same);
    assert_eq!(
        tap.feed(&chunk.as_bytes()[cut..chunk.len() - 1]),
        Output::Same
    );
    assert_eq!(tap.feed(b"\n"), Output::Same);
    assert_eq!(tap.answer().chunks, 2);
    assert_eq!(tap.feed(b": ping"), Output::Same);
    assert_eq!(tap.feed(b"\n\n"), Output::Same);
    assert_eq!(tap.feed(b"data: [DO"), Output::Same);
}

#[test]
fn a_chunk_that_may_report_usage_only_is_held_just_until_that_is_known() {
    let mut tap = StreamTap::new(Dialect::Chat, true);
    let start = br#"data: {"id":"c","choices":["#;
    assert_eq!(tap.feed(start), Output::Bytes(Vec::new()));
    let rest = br#"{"index":0,"#;
    assert_eq!(
        tap.feed(rest),
        Output::Bytes([start.as_slice(), rest].concat())
    );
}

#[test]
fn a_hidden_chunk_takes_its_whole_line_end_along() {
    let stream = format!("data: {USAGE}\r\n\r\ndata: [DONE]\r\n\r\n");
    for cut in 0..stream.len() {
        let (out, answer) = run(stream.as_bytes(), &[cut], Dialect::Chat, true);
        assert_eq!(
            String::from_utf8_lossy(&out),
            "data: [DONE]\r\n\r\n",
            "cut at {cut}"
        );
        assert!(answer.done);
        assert_eq!(
            (
                answer.prompt_tokens,
                answer.output_tokens,
                answer.cached_tokens
            ),
            (Some(7), Some(5), Some(3))
        );
    }
}

#[test]
fn an_emoji_split_at_each_byte_survives() {
    let stream = format!(
        "data: {}\n\n",
        r#"{"choices":[{"index":0,"delta":{"content":"a😀b"}}]}"#
    );
    let expected =
        chat(&json!({"messages": [{"role": "assistant", "content": "a😀b"}]})).message_hashes;
    for cut in 0..stream.len() {
        let (out, answer) = run(stream.as_bytes(), &[cut], Dialect::Chat, true);
        assert_eq!(out, stream.as_bytes());
        assert_eq!(answer.answer_hashes, expected);
    }
}

#[test]
fn data_may_come_in_several_lines_and_the_last_event_without_a_blank_one() {
    let stream = "data: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n";
    let (out, answer) = run(stream.as_bytes(), &[], Dialect::Chat, true);
    assert_eq!(out, stream.as_bytes());
    assert_eq!(answer.finish_reasons, ["stop"]);
    assert_eq!(answer.chunks, 1);
}

#[test]
fn the_last_usage_counts_and_choices_are_kept_apart() {
    let chunk = |index: u64, text: &str, output: u64| {
        let body = json!({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": if output > 2 { json!("stop") } else { Value::Null }}],
            "usage": {"prompt_tokens": 4, "completion_tokens": output}});
        format!("data: {body}\n\n")
    };
    let stream = [
        chunk(1, "b", 1),
        chunk(0, "a", 2),
        chunk(1, "B", 3),
        chunk(0, "A", 4),
    ]
    .concat();
    let (_, answer) = run(stream.as_bytes(), &[], Dialect::Chat, false);
    assert_eq!(
        (
            answer.prompt_tokens,
            answer.output_tokens,
            answer.cached_tokens
        ),
        (Some(4), Some(4), None)
    );
    assert_eq!(answer.finish_reasons, ["stop", "stop"]);
    let expected = chat(
        &json!({"messages": [{"role": "assistant", "content": "aA"}, {"role": "assistant", "content": "bB"}]}),
    );
    assert_eq!(answer.answer_hashes, expected.message_hashes);
}

#[test]
fn parallel_tool_calls_are_told_apart_by_their_index() {
    let piece = |call: u64, id: Option<&str>, name: Option<&str>, arguments: &str| {
        let body = json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": call, "id": id, "function": {"name": name, "arguments": arguments}}]}}]});
        format!("data: {body}\n\n")
    };
    let stream = [
        piece(0, Some("c0"), Some("read"), "{\"a\""),
        piece(1, Some("c1"), Some("write"), "{\"b\""),
        piece(0, None, None, ":1}"),
        piece(1, None, None, ":2}"),
    ]
    .concat();
    let (_, answer) = run(stream.as_bytes(), &[], Dialect::Chat, false);
    assert_eq!(answer.tool_names, ["read", "write"]);
    let sent_back = chat(
        &json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [
        {"id": "c0", "type": "function", "function": {"name": "read", "arguments": "{\"a\": 1}"}},
        {"id": "c1", "type": "function", "function": {"name": "write", "arguments": "{\"b\": 2}"}}]}]}),
    );
    assert_eq!(answer.answer_hashes, sent_back.message_hashes);
    assert_eq!(answer.call_ids, sent_back.call_ids);
}

#[test]
fn errors_in_a_stream_are_read_in_every_form() {
    for (stream, message) in [
        (
            "data: {\"error\":{\"message\":\"nested\",\"code\":500}}\n\n",
            "nested",
        ),
        ("data: {\"error\":\"text\"}\n\n", "text"),
        (
            "data: {\"object\":\"error\",\"message\":\"flat\"}\n\n",
            "flat",
        ),
        ("event: error\ndata: boom\n\n", "boom"),
    ] {
        for hide in [true, false] {
            let (out, answer) = run(stream.as_bytes(), &[3, 9], Dialect::Chat, hide);
            assert_eq!(out, stream.as_bytes());
            assert_eq!(answer.error.as_deref(), Some(message));
            assert!(!answer.done);
        }
    }
}

fn generated(text: &str, ids: &[u32], finish: Value, output: u64) -> String {
    let meta = json!({"id": "r", "finish_reason": finish, "prompt_tokens": 6, "completion_tokens": output, "cached_tokens": 2});
    format!(
        "data: {}\n\n",
        json!({"text": text, "output_ids": ids, "meta_info": meta})
    )
}

#[test]
fn a_generate_stream_may_repeat_all_output_or_carry_the_new_part_only() {
    let stop = json!({"type": "stop", "matched": 2});
    let cumulative = [
        generated("a", &[1], Value::Null, 1),
        generated("aab", &[1, 1, 2], stop.clone(), 3),
    ]
    .concat();
    let incremental = [
        generated("a", &[1], Value::Null, 1),
        generated("ab", &[1, 2], stop.clone(), 3),
    ]
    .concat();
    let (_, left) = run(cumulative.as_bytes(), &[], Dialect::Generate, true);
    let (_, right) = run(incremental.as_bytes(), &[], Dialect::Generate, true);
    assert_eq!(left, right);
    assert_eq!(left.text_spans, [(3, heddle_wire::hash::bytes(b"aab"))]);
    assert_eq!(
        left.token_spans,
        [(3, heddle_wire::hash::tokens(&[1, 1, 2]))]
    );
    assert_eq!(
        (left.prompt_tokens, left.output_tokens, left.cached_tokens),
        (Some(6), Some(3), Some(2))
    );
    assert_eq!(left.finish_reasons, ["stop"]);
    let body = json!({"text": "aab", "output_ids": [1, 1, 2], "meta_info": {"finish_reason": stop, "prompt_tokens": 6, "completion_tokens": 3, "cached_tokens": 2}});
    let whole = read_answer(body.to_string().as_bytes(), Dialect::Generate).unwrap();
    assert_eq!(
        (whole.text_spans, whole.token_spans, whole.finish_reasons),
        (left.text_spans, left.token_spans, left.finish_reasons)
    );
    assert!(whole.done);
}

#[test]
fn tokens_that_no_usage_counts_are_counted_themselves() {
    let choice = |index: u64, ids: &[u32], finish: Value| json!({"index": index, "token_ids": ids, "finish_reason": finish, "logprobs": null});
    let body = json!({"request_id": "r", "prompt_logprobs": null, "kv_transfer_params": null,
        "choices": [choice(0, &[7, 8, 9], json!("stop")), choice(1, &[7], json!("length"))]});
    let whole = read_answer(body.to_string().as_bytes(), Dialect::Tokens).unwrap();
    assert_eq!(
        (whole.prompt_tokens, whole.output_tokens, whole.done),
        (None, Some(4), true)
    );
    assert_eq!(whole.finish_reasons, ["stop", "length"]);
    assert_eq!(
        whole.token_spans,
        [
            (3, heddle_wire::hash::tokens(&[7, 8, 9])),
            (1, heddle_wire::hash::tokens(&[7]))
        ]
    );
    let event = |choices: Value| {
        format!(
            "data: {}\n\n",
            json!({"request_id": "r", "choices": choices})
        )
    };
    let stream = [
        event(json!([choice(0, &[7], Value::Null)])),
        event(json!([choice(0, &[8, 9], json!("stop"))])),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat();
    let (passed, streamed) = run(stream.as_bytes(), &[], Dialect::Tokens, true);
    assert_eq!(passed, stream.as_bytes());
    assert_eq!(
        (streamed.output_tokens, streamed.chunks, streamed.done),
        (Some(3), 2, true)
    );
    assert_eq!(streamed.token_spans, whole.token_spans[..1]);
    let counted = json!({"choices": [choice(0, &[7, 8], json!("stop"))], "usage": {"prompt_tokens": 5, "completion_tokens": 9}});
    let counted = read_answer(counted.to_string().as_bytes(), Dialect::Tokens).unwrap();
    assert_eq!(
        (counted.prompt_tokens, counted.output_tokens),
        (Some(5), Some(9))
    );
}

#[test]
fn a_batch_of_generate_answers_adds_up() {
    let one = |text: &str, output: u64| json!({"text": text, "meta_info": {"finish_reason": {"type": "length"}, "prompt_tokens": 2, "completion_tokens": output}});
    let answer = read_answer(
        json!([one("a", 3), one("b", 4)]).to_string().as_bytes(),
        Dialect::Generate,
    )
    .unwrap();
    assert_eq!(
        (answer.prompt_tokens, answer.output_tokens),
        (Some(4), Some(7))
    );
    assert_eq!(answer.finish_reasons, ["length", "length"]);
    assert_eq!(answer.answer_hashes.len(), 2);
}

#[test]
fn an_event_too_long_to_keep_passes_and_the_next_is_read() {
    let long = format!(
        "data: {}\n\n",
        delta(json!({"content": "x".repeat(17 << 20)}))
    );
    let stream = format!("{long}data: {USAGE}\n\ndata: [DONE]\n\n");
    let cuts: Vec<usize> = (1..20).map(|part| part << 20).collect();
    let (out, answer) = run(stream.as_bytes(), &cuts, Dialect::Chat, true);
    assert_eq!(out.len(), long.len() + "data: [DONE]\n\n".len());
    assert_eq!(
        (answer.output_tokens, answer.done, answer.chunks),
        (Some(5), true, 0)
    );
}

#[test]
fn text_completions_are_hashed_exactly() {
    let stream = "data: {\"choices\":[{\"index\":0,\"text\":\" a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b \",\"index\":0,\"finish_reason\":\"stop\"}]}\n\n";
    let (_, answer) = run(stream.as_bytes(), &[], Dialect::Completions, true);
    assert_eq!(answer.text_spans, [(4, heddle_wire::hash::bytes(b" ab "))]);
    let prompt = scan_body(
        json!({"prompt": "P ab Q"}).to_string().as_bytes(),
        Dialect::Completions,
    )
    .unwrap();
    assert_eq!(prompt.span_hash(1, 4), Some(answer.answer_hashes[0]));
}

#[test]
fn a_summary_in_a_new_message_starts_like_the_answer_it_was() {
    let summary =
        "The bug is in parser.c: the loop reads one byte past the end.\nTests pass otherwise.";
    let answer = read_answer(
        json!({"choices": [{"message": {"content": format!("<think>so</think>\n{summary}")}}]})
            .to_string()
            .as_bytes(),
        Dialect::Chat,
    )
    .unwrap();
    let body = json!({"messages": [{"role": "user", "content": format!("Go on. What happened before:\n\n{summary}")}]}).to_string();
    let shown = heddle_wire::message_anchors(body.as_bytes(), Dialect::Chat);
    assert!(answer.anchors.iter().any(|anchor| shown.contains(anchor)));
    let other = json!({"messages": [{"role": "user", "content": "Something else of more than forty-eight bytes, in one line."}]}).to_string();
    let unrelated = heddle_wire::message_anchors(other.as_bytes(), Dialect::Chat);
    assert!(
        !answer
            .anchors
            .iter()
            .any(|anchor| unrelated.contains(anchor))
    );
}
