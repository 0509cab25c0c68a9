//! The conversation both ends know: what the mock engine answers, and the history agents send back.
//!
//! Invariant: the assistant messages in an agent's history equal the answers the mock engine gave, so a gateway that
//! recognises a conversation by its history has to do that work for real.

use serde_json::{Value, json};
use thiserror::Error;

/// Model name of the mock engine.
pub const MODEL: &str = "mock-8b";
/// Stands in the task of a body for the conversation's number; replaced digit by digit before sending.
pub const CONVERSATION_MARK: &str = "#conversation-00#";
/// Prompt tokens the engine reports; what a 4 KB chat body comes to.
const PROMPT_TOKENS: u64 = 1024;
/// Prompt tokens the engine reports as found in its prefix cache.
const CACHED_TOKENS: u64 = 896;
/// Fixed creation time, so that every answer has the same bytes.
const CREATED: u64 = 1_767_225_600;
/// Bytes a tool's output adds to the history at each step.
const TOOL_OUTPUT_BYTES: usize = 220;

/// A body file that cannot serve as the first step of an agent.
#[derive(Debug, Error)]
pub enum BodyError {
    /// Not JSON.
    #[error("body is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// No `messages` array with a user message whose content is text.
    #[error("body needs a messages array with a user message of plain text")]
    NoTask,
}

/// The words of an answer, one per token; every token differs from its neighbours.
pub fn tokens(count: usize) -> impl Iterator<Item = String> {
    const WORDS: [&str; 8] = [
        "the", "file", "reads", "line", "then", "writes", "patch", "test",
    ];
    (0..count).map(|index| format!(" {}{}", WORDS[index % WORDS.len()], index % 97))
}

/// Text of an answer of `count` tokens.
pub fn text(count: usize) -> String {
    tokens(count).collect()
}

fn tool_call() -> Value {
    json!({
        "id": "call_5f3a9c1e7b2d4860a1c4", "type": "function",
        "function": {"name": "run_command", "arguments": "{\"command\": \"sed -n 1,80p src/server.py\"}"},
    })
}

/// The assistant message of a plain (not streamed) answer: text and one tool call, as an agent's step usually is.
fn plain_message(count: usize) -> Value {
    json!({"role": "assistant", "content": text(count), "tool_calls": [tool_call()]})
}

/// A whole chat completion with usage, as SGLang shapes it.
pub fn completion(count: usize) -> Vec<u8> {
    let mut message = plain_message(count);
    message["reasoning_content"] = Value::Null;
    json!({
        "id": "6d1f0c6a2b6f4a0e9f0b3e1c7a5d2f48", "object": "chat.completion", "created": CREATED, "model": MODEL,
        "choices": [{
            "index": 0, "message": message, "logprobs": null, "finish_reason": "tool_calls", "matched_stop": null,
        }],
        "usage": usage(count), "metadata": {"weight_version": "default"},
    })
    .to_string()
    .into_bytes()
}

fn usage(count: usize) -> Value {
    json!({
        "prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + count as u64, "completion_tokens": count,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS}, "reasoning_tokens": 0,
    })
}

/// Server-sent events of a streamed answer: role, `count` tokens, finish, usage when asked, `[DONE]`.
pub fn events(count: usize, include_usage: bool) -> Vec<Vec<u8>> {
    let chunk = |choices: Value, usage: Value| {
        let body = json!({
            "id": "6d1f0c6a2b6f4a0e9f0b3e1c7a5d2f48", "object": "chat.completion.chunk", "created": CREATED,
            "model": MODEL, "choices": choices, "usage": usage,
        });
        format!("data: {body}\n\n").into_bytes()
    };
    let choice = |delta: Value, finish: Value| json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish, "matched_stop": null}]);
    let mut events = vec![chunk(
        choice(json!({"role": "assistant", "content": ""}), Value::Null),
        Value::Null,
    )];
    events.extend(tokens(count).map(|token| {
        chunk(
            choice(json!({"role": null, "content": token}), Value::Null),
            Value::Null,
        )
    }));
    events.push(chunk(
        choice(json!({"role": null, "content": null}), json!("stop")),
        Value::Null,
    ));
    if include_usage {
        events.push(chunk(json!([]), usage(count)));
    }
    events.push(b"data: [DONE]\n\n".to_vec());
    events
}

/// Number of events a client sees that did not ask for usage.
pub fn event_count(count: usize) -> u64 {
    count as u64 + 3
}

/// One request body and where the conversation's number stands in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepBody {
    /// JSON text.
    pub bytes: Vec<u8>,
    /// Offset of [`CONVERSATION_MARK`]; `None` for a body sent as it is.
    pub mark_at: Option<usize>,
}

/// Bodies of an agent's steps: the first is `template` with a mark in its task, each next one carries the answer of the
/// one before and a tool's output.
///
/// # Errors
/// A template without a task to mark.
pub fn agent_steps(
    template: &[u8],
    steps: usize,
    answer_tokens: usize,
) -> Result<Vec<StepBody>, BodyError> {
    let mut body: Value = serde_json::from_slice(template)?;
    let streamed = body["stream"] == Value::Bool(true);
    mark_task(&mut body)?;
    let mut bodies = Vec::with_capacity(steps);
    for step in 0..steps {
        let bytes = serde_json::to_vec(&body)?;
        let mark_at = find(&bytes, CONVERSATION_MARK.as_bytes());
        bodies.push(StepBody { bytes, mark_at });
        let history = body["messages"].as_array_mut().ok_or(BodyError::NoTask)?;
        if streamed {
            history.push(json!({"role": "assistant", "content": text(answer_tokens)}));
            history.push(json!({"role": "user", "content": tool_output(step)}));
        } else {
            history.push(plain_message(answer_tokens));
            history.push(json!({"role": "tool", "tool_call_id": tool_call()["id"], "content": tool_output(step)}));
        }
    }
    Ok(bodies)
}

fn mark_task(body: &mut Value) -> Result<(), BodyError> {
    let messages = body["messages"].as_array_mut().ok_or(BodyError::NoTask)?;
    let task = messages
        .iter_mut()
        .find(|message| message["role"] == "user")
        .ok_or(BodyError::NoTask)?;
    let Value::String(content) = &mut task["content"] else {
        return Err(BodyError::NoTask);
    };
    content.insert_str(0, &format!("[{CONVERSATION_MARK}] "));
    Ok(())
}

fn tool_output(step: usize) -> String {
    (0..)
        .map(|line| format!("{step}:{line}: value = load(path, {line})\n"))
        .scan(0, take_bytes)
        .collect()
}

fn take_bytes(taken: &mut usize, line: String) -> Option<String> {
    *taken += line.len();
    (*taken <= TOOL_OUTPUT_BYTES).then_some(line)
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}

/// Writes `number` over the mark, in as many hexadecimal digits as the mark has bytes.
pub fn write_conversation(bytes: &mut [u8], mark_at: usize, number: u64) {
    let width = CONVERSATION_MARK.len();
    let digits = format!("{number:0width$x}");
    bytes[mark_at..mark_at + width].copy_from_slice(digits.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &[u8] = br#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"do"}]}"#;

    #[test]
    fn each_step_extends_the_one_before_by_the_answer_given() {
        let steps = agent_steps(TEMPLATE, 3, 20).unwrap();
        let messages = |step: usize| -> Vec<Value> {
            let body: Value = serde_json::from_slice(&steps[step].bytes).unwrap();
            body["messages"].as_array().unwrap().clone()
        };
        assert_eq!(messages(1)[..2], messages(0)[..]);
        assert_eq!(messages(2)[..4], messages(1)[..]);
        let answer: Value = serde_json::from_slice(&completion(20)).unwrap();
        assert_eq!(
            messages(1)[2]["content"],
            answer["choices"][0]["message"]["content"]
        );
        assert_eq!(
            messages(1)[2]["tool_calls"],
            answer["choices"][0]["message"]["tool_calls"]
        );
        assert_ne!(messages(2)[3], messages(2)[5]);
    }

    #[test]
    fn a_streamed_answer_spells_the_text_of_the_history() {
        let spelled: String = events(30, true)
            .iter()
            .filter_map(|event| serde_json::from_slice::<Value>(&event[6..]).ok())
            .filter_map(|chunk| {
                chunk["choices"][0]["delta"]["content"]
                    .as_str()
                    .map(str::to_owned)
            })
            .collect();
        assert_eq!(spelled, text(30));
        assert_eq!(events(30, false).len() as u64, event_count(30));
        assert_eq!(events(30, true).len() as u64, event_count(30) + 1);
    }

    #[test]
    fn the_number_of_a_conversation_keeps_the_body_valid() {
        let mut step = agent_steps(TEMPLATE, 1, 1).unwrap().remove(0);
        write_conversation(&mut step.bytes, step.mark_at.unwrap(), u64::MAX);
        let body: Value = serde_json::from_slice(&step.bytes).unwrap();
        assert_eq!(body["messages"][1]["content"], "[0ffffffffffffffff] do");
    }

    #[test]
    fn a_body_without_a_task_is_refused() {
        assert!(matches!(
            agent_steps(b"{\"messages\":[]}", 1, 1),
            Err(BodyError::NoTask)
        ));
        assert!(matches!(agent_steps(b"{", 1, 1), Err(BodyError::Json(_))));
    }
}
