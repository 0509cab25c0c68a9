//! What an answer said, gathered from a whole body or from the chunks of a stream.

use crate::arguments;
use crate::dialect::Dialect;
use crate::hash::{self, MessageParts, VisibleText};

/// Bytes of text and arguments kept for one answer. Beyond it the rest is counted and no longer read, so the
/// hashes of such an answer match nothing.
const MAX_KEPT: usize = 16 << 20;
/// Bytes of the visible text kept to find anchors in.
const HEAD: usize = 1024;
/// Anchors kept of one answer: its first line, and the one after (the first may be a tag of the client's).
const ANCHORS: usize = 2;

/// What an answer said; `None` where it said nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Prompt tokens by the worker's count.
    pub prompt_tokens: Option<u64>,
    /// Output tokens by the worker's count, all choices together.
    pub output_tokens: Option<u64>,
    /// Prompt tokens found in the worker's prefix cache.
    pub cached_tokens: Option<u64>,
    /// Finish reason of each choice that has one, by index; in every dialect by the words of chat.
    pub finish_reasons: Vec<String>,
    /// Names of the tools called, by choice and call.
    pub tool_names: Vec<String>,
    /// One hash a choice: with messages equal to the message's in the next request; elsewhere of the exact text.
    pub answer_hashes: Vec<u64>,
    /// Text dialects: length in bytes and hash of each choice's text ([`crate::Scan::span_hash`]).
    pub text_spans: Vec<(usize, u64)>,
    /// The same in tokens, where the worker gave token ids.
    pub token_spans: Vec<(usize, u64)>,
    /// Hashes of the tool-call ids.
    pub call_ids: Vec<u64>,
    /// Hashes of how the text starts ([`hash::anchors`]).
    pub anchors: Vec<u64>,
    /// Pieces that carried output: about one a token in a stream.
    pub chunks: u64,
    /// The answer is whole: `[DONE]` came, or the body was read to its end.
    pub done: bool,
    /// Message of an error, of the body or of an event.
    pub error: Option<String>,
    /// `Responses`: the answer's id.
    pub response_id: Option<String>,
    /// `Responses`: number of the last event.
    pub sequence: Option<u64>,
}

#[derive(Clone, Default)]
struct Call {
    index: u64,
    name: Vec<u8>,
    arguments: Vec<u8>,
    id: Vec<u8>,
}

/// How `/generate` streams: each event repeats all text so far, or carries the new part only.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Growth {
    Unknown,
    Cumulative,
    Incremental,
}

#[derive(Clone)]
struct Choice {
    index: u64,
    visible: VisibleText,
    head: Vec<u8>,
    /// Exact text of the text dialects.
    text: Vec<u8>,
    ids: Vec<u32>,
    growth: Growth,
    calls: Vec<Call>,
    finish: Option<String>,
    usage: Usage,
}

impl Choice {
    fn new(index: u64) -> Self {
        Self {
            index,
            visible: VisibleText::default(),
            head: Vec::new(),
            text: Vec::new(),
            ids: Vec::new(),
            growth: Growth::Unknown,
            calls: Vec::new(),
            finish: None,
            usage: Usage::default(),
        }
    }
}

/// Token counts of one usage object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// `prompt_tokens`.
    pub prompt: Option<u64>,
    /// `completion_tokens`.
    pub output: Option<u64>,
    /// `cached_tokens`.
    pub cached: Option<u64>,
}

impl Usage {
    fn update(&mut self, newer: Self) {
        self.prompt = newer.prompt.or(self.prompt);
        self.output = newer.output.or(self.output);
        self.cached = newer.cached.or(self.cached);
    }
}

/// Gathers an answer. Pieces may come in any number.
pub struct Builder {
    dialect: Dialect,
    choices: Vec<Choice>,
    usage: Usage,
    kept: usize,
    chunks: u64,
    done: bool,
    error: Option<String>,
    response_id: Option<String>,
    sequence: Option<u64>,
}

impl Builder {
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            choices: Vec::new(),
            usage: Usage::default(),
            kept: 0,
            chunks: 0,
            done: false,
            error: None,
            response_id: None,
            sequence: None,
        }
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn choice(&mut self, index: u64) -> &mut Choice {
        let at = self
            .choices
            .iter()
            .position(|choice| choice.index == index)
            .unwrap_or_else(|| {
                self.choices.push(Choice::new(index));
                self.choices.len() - 1
            });
        &mut self.choices[at]
    }

    /// Whether `more` bytes may still be kept.
    fn room(&mut self, more: usize) -> bool {
        self.kept += more;
        self.kept <= MAX_KEPT
    }

    /// Makes sure the choice is listed, also if it never says anything.
    pub fn see_choice(&mut self, index: u64) {
        self.choice(index);
    }

    /// A piece of an assistant's text.
    pub fn push_content(&mut self, index: u64, piece: &[u8]) {
        let choice = self.choice(index);
        let visible_from = choice.visible.push(piece);
        if visible_from.is_some() {
            choice.head.clear();
        }
        let fresh = &piece[visible_from.unwrap_or(0)..];
        let room = HEAD.saturating_sub(choice.head.len()).min(fresh.len());
        choice.head.extend_from_slice(&fresh[..room]);
    }

    /// A piece of exact text (text dialects, where pieces add up).
    pub fn push_text(&mut self, index: u64, piece: &[u8]) {
        if self.room(piece.len()) {
            self.choice(index).text.extend_from_slice(piece);
        }
    }

    /// Token ids that add up.
    pub fn push_ids(&mut self, index: u64, ids: &[u32]) {
        if self.room(ids.len() * 4) {
            self.choice(index).ids.extend_from_slice(ids);
        }
    }

    /// One event of `/generate`: all output so far, or the new part, depending on how the worker was started.
    /// `output_tokens` counts all so far in both cases, which tells them apart where there are ids.
    pub fn push_generated(
        &mut self,
        index: u64,
        text: &[u8],
        ids: &[u32],
        output_tokens: Option<u64>,
    ) {
        let choice = self.choice(index);
        let repeats = match (ids.len() as u64, output_tokens) {
            (given, Some(total)) if given > 0 => given >= total,
            _ => choice.growth != Growth::Incremental && text.starts_with(&choice.text),
        };
        let empty = choice.text.is_empty() && choice.ids.is_empty();
        choice.growth = match (choice.growth, repeats) {
            (Growth::Unknown, true) if empty => Growth::Unknown,
            (_, true) => Growth::Cumulative,
            (_, false) => Growth::Incremental,
        };
        if choice.growth == Growth::Incremental {
            self.push_text(index, text);
            self.push_ids(index, ids);
        } else if text.len() + ids.len() * 4 <= MAX_KEPT {
            choice.text.clear();
            choice.text.extend_from_slice(text);
            choice.ids.clear();
            choice.ids.extend_from_slice(ids);
        }
    }

    /// A piece of tool call `call` of choice `index`.
    pub fn push_call(&mut self, index: u64, call: u64, id: &[u8], name: &[u8], arguments: &[u8]) {
        if !self.room(id.len() + name.len() + arguments.len()) {
            return;
        }
        let calls = &mut self.choice(index).calls;
        let at = calls
            .iter()
            .position(|known| known.index == call)
            .unwrap_or_else(|| {
                calls.push(Call {
                    index: call,
                    ..Call::default()
                });
                calls.len() - 1
            });
        // The id and the name come once; some workers repeat them in every piece.
        if !id.is_empty() {
            id.clone_into(&mut calls[at].id);
        }
        if !name.is_empty() {
            name.clone_into(&mut calls[at].name);
        }
        calls[at].arguments.extend_from_slice(arguments);
    }

    pub fn finish_choice(&mut self, index: u64, reason: String) {
        self.choice(index).finish = Some(reason);
    }

    /// Usage of the whole answer. The last one counts: with `continuous_usage_stats` every chunk has one.
    pub fn set_usage(&mut self, usage: Usage) {
        self.usage.update(usage);
    }

    /// Usage of one choice (`meta_info` of `/generate`).
    pub fn set_choice_usage(&mut self, index: u64, usage: Usage) {
        self.choice(index).usage.update(usage);
    }

    pub fn count_chunk(&mut self) {
        self.chunks += 1;
    }

    pub fn set_done(&mut self) {
        self.done = true;
    }

    pub fn is_done(&self) -> bool {
        self.done
    }

    /// No output yet, no end and no error.
    pub fn said_nothing(&self) -> bool {
        let begun = self.chunks > 0 || self.done || self.error.is_some();
        !begun && self.choices.iter().all(|choice| choice.finish.is_none())
    }

    /// Tool calls that the first choice has so far.
    pub fn calls(&mut self) -> u64 {
        self.choice(0).calls.len() as u64
    }

    pub fn set_response_id(&mut self, id: String) {
        self.response_id = Some(id);
    }

    pub fn set_sequence(&mut self, number: u64) {
        self.sequence = Some(number);
    }

    pub fn set_error(&mut self, message: String) {
        self.error.get_or_insert(message);
    }

    /// What has been gathered so far.
    pub fn answer(&self) -> Answer {
        let mut order: Vec<&Choice> = self.choices.iter().collect();
        order.sort_by_key(|choice| choice.index);
        let mut answer = Answer {
            chunks: self.chunks,
            done: self.done,
            error: self.error.clone(),
            response_id: self.response_id.clone(),
            sequence: self.sequence,
            ..Answer::default()
        };
        let usage = self.total_usage();
        (
            answer.prompt_tokens,
            answer.output_tokens,
            answer.cached_tokens,
        ) = (usage.prompt, usage.output, usage.cached);
        let mut scratch = Vec::new();
        for choice in order {
            answer.finish_reasons.extend(choice.finish.clone());
            if self.dialect.has_messages() {
                chat_choice(choice, &mut answer, &mut scratch);
            } else {
                let text = hash::bytes(&choice.text);
                answer.answer_hashes.push(text);
                answer.text_spans.push((choice.text.len(), text));
                if !choice.ids.is_empty() {
                    answer
                        .token_spans
                        .push((choice.ids.len(), hash::tokens(&choice.ids)));
                }
            }
        }
        answer
    }

    fn total_usage(&self) -> Usage {
        if self.dialect == Dialect::Tokens {
            // vLLM's answer counts nothing, and gives every token.
            let ids: usize = self.choices.iter().map(|choice| choice.ids.len()).sum();
            let mut usage = self.usage;
            usage.output = usage.output.or((ids > 0).then_some(ids as u64));
            return usage;
        }
        if self.dialect != Dialect::Generate {
            return self.usage;
        }
        let sum = |field: fn(&Usage) -> Option<u64>| {
            self.choices
                .iter()
                .filter_map(|choice| field(&choice.usage))
                .reduce(|left, right| left + right)
        };
        Usage {
            prompt: sum(|usage| usage.prompt),
            output: sum(|usage| usage.output),
            cached: sum(|usage| usage.cached),
        }
    }
}

fn chat_choice(choice: &Choice, answer: &mut Answer, scratch: &mut Vec<u8>) {
    let mut calls: Vec<&Call> = choice.calls.iter().collect();
    calls.sort_by_key(|call| call.index);
    let mut chain = 0;
    for call in calls {
        let id = (!call.id.is_empty()).then(|| hash::bytes(&call.id));
        let arguments = arguments::hash_text(&call.arguments, scratch);
        chain = hash::link(chain, hash::call(hash::bytes(&call.name), arguments, id));
        answer.call_ids.extend(id);
        answer
            .tool_names
            .push(String::from_utf8_lossy(&call.name).into_owned());
    }
    let message = MessageParts {
        role: hash::bytes(b"assistant"),
        text: choice.visible.digest(),
        calls: chain,
        ..MessageParts::default()
    };
    answer.answer_hashes.push(message.digest());
    hash::anchors(&choice.head, ANCHORS, &mut answer.anchors);
}
