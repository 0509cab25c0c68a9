//! A running trajectory: steps in, a row of numbers out.

use std::collections::HashSet;

use crate::bag::Bag;
use crate::cues::{Cues, RecentText};
use crate::running::{RECENT, Running, log};
use crate::siblings::Siblings;
use crate::tools::{self, KINDS};

/// Names of tools that are told apart.
const MOST_TOOLS: usize = 64;
/// Steps after which one may stand out by its length.
const SETTLED: i64 = 3;

/// One LLM call, as known at its last token: the gap, the error and the observation are of the tool call
/// *before* it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    /// Generated.
    pub output_tokens: i64,
    /// Appended to the context before it; of the first step nothing counts.
    pub input_tokens: i64,
    /// Called at its end.
    pub tools: &'a [&'a str],
    /// Its own.
    pub seconds: Option<f64>,
    /// Between its predecessor's end and its beginning.
    pub gap_before_s: Option<f64>,
    /// Whether its predecessor's tool failed.
    pub error_before: Option<bool>,
    /// What that tool said.
    pub observation: Option<&'a str>,
    /// Its output.
    pub text: Option<&'a str>,
    /// Its prompt is shorter than what went before.
    pub compacted: bool,
}

/// How often one of a kind of tool was called.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    count: u32,
    recent: f64,
    at: Option<i64>,
}

/// A stretch of work between two steps that called no tool or asked a person.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    ended: i64,
    started: i64,
    last: i64,
}

/// A running trajectory. `observe` takes its steps in order.
#[derive(Clone, Debug)]
pub struct Progress {
    prompt_tokens: i64,
    steps: i64,
    done_tokens: i64,
    context_tokens: i64,
    seconds: f64,
    output: Running,
    input: Running,
    gap: Running,
    call: Running,
    errors: u32,
    errors_known: u32,
    recent_errors: f64,
    error_at: Option<i64>,
    compactions: u32,
    compacted_at: i64,
    tools: HashSet<Box<str>>,
    tool: Box<str>,
    tool_run: u32,
    no_tool: u32,
    no_tool_at: Option<i64>,
    long_at: Option<i64>,
    many_tools: u32,
    parts: Parts,
    calls: [Calls; KINDS.len()],
    last_kind: Option<usize>,
    cues: Cues,
}

impl Progress {
    /// Before the first step.
    pub fn new(prompt_tokens: i64, prompt: Option<&str>) -> Self {
        Self {
            prompt_tokens,
            steps: 0,
            done_tokens: 0,
            context_tokens: prompt_tokens,
            seconds: 0.0,
            output: Running::default(),
            input: Running::default(),
            gap: Running::default(),
            call: Running::default(),
            errors: 0,
            errors_known: 0,
            recent_errors: 0.0,
            error_at: None,
            compactions: 0,
            compacted_at: 0,
            tools: HashSet::new(),
            tool: "".into(),
            tool_run: 0,
            no_tool: 0,
            no_tool_at: None,
            long_at: None,
            many_tools: 0,
            parts: Parts::default(),
            calls: [Calls::default(); KINDS.len()],
            last_kind: None,
            cues: Cues::new(prompt),
        }
    }

    /// Steps that have ended.
    pub fn steps(&self) -> i64 {
        self.steps
    }

    /// Output tokens of those.
    pub fn done_tokens(&self) -> i64 {
        self.done_tokens
    }

    /// The next step has ended.
    pub fn observe(&mut self, step: &Step<'_>) {
        self.steps += 1;
        let (output, input) = (step.output_tokens.max(0), step.input_tokens.max(0));
        self.done_tokens = self.done_tokens.saturating_add(output);
        if step.compacted {
            self.compactions += 1;
            self.compacted_at = self.steps;
            self.context_tokens = self.context_tokens.min(self.prompt_tokens);
        }
        self.context_tokens = self.context_tokens.saturating_add(input);
        self.context_tokens = self.context_tokens.saturating_add(output);
        self.output.add(Some(output as f64));
        if self.steps > 1 {
            self.input.add(Some(input as f64));
            self.gap.add(step.gap_before_s);
        }
        self.call.add(step.seconds);
        self.seconds += step.seconds.unwrap_or(0.0) + step.gap_before_s.unwrap_or(0.0);
        if let Some(failed) = step.error_before {
            self.observe_error(failed);
        }
        self.observe_tools(step.tools);
        if self.steps > SETTLED && output as f64 > 2.0 * self.output.mean() {
            self.long_at = Some(self.steps);
        }
        self.cues.observe(step.text, step.observation, step.tools);
    }

    fn observe_error(&mut self, failed: bool) {
        self.errors_known += 1;
        self.errors += u32::from(failed);
        self.recent_errors += RECENT * (f64::from(u8::from(failed)) - self.recent_errors);
        if failed {
            self.error_at = Some(self.steps);
        }
    }

    fn observe_tools(&mut self, tools: &[&str]) {
        self.many_tools += u32::from(tools.len() > 1);
        let mut called = [false; KINDS.len()];
        for tool in tools {
            called[tools::kind(tool)] = true;
        }
        for (kind, (calls, called)) in self.calls.iter_mut().zip(called).enumerate() {
            calls.count += u32::from(called);
            calls.recent += RECENT * (f64::from(u8::from(called)) - calls.recent);
            if called {
                calls.at = Some(self.steps);
                self.last_kind = Some(kind);
            }
        }
        for tool in tools {
            if self.tools.len() < MOST_TOOLS && !self.tools.contains(*tool) {
                self.tools.insert((*tool).into());
            }
        }
        let tool = tools.first().copied().unwrap_or_default();
        if *self.tool == *tool {
            self.tool_run += 1;
        } else {
            self.tool_run = 1;
            self.tool = tool.into();
        }
        if tools.is_empty() || called[tools::PERSON] {
            self.no_tool += 1;
            self.no_tool_at = Some(self.steps);
            self.parts = Parts {
                ended: self.parts.ended + 1,
                started: self.steps,
                last: self.steps - self.parts.started,
            };
        }
        if tools.is_empty() {
            self.last_kind = None;
        }
    }

    /// What is known now, in the order of `names`, NaN where something is not known. `siblings` are the
    /// finished ones of its prompt.
    pub fn numbers(&self, siblings: &Siblings, row: &mut Vec<f64>) {
        let steps = self.steps as f64;
        self.own_numbers(row);
        let share = |count: u32| {
            if self.steps > 0 {
                f64::from(count) / steps
            } else {
                f64::NAN
            }
        };
        row.extend(self.calls.map(|calls| share(calls.count)));
        row.extend(self.calls.map(|calls| {
            if self.steps > 0 {
                calls.recent
            } else {
                f64::NAN
            }
        }));
        row.extend(self.calls.map(|calls| self.since(calls.at)));
        row.push(self.last_kind.map_or(-1.0, |kind| kind as f64));
        self.cues.numbers(row);
        siblings.numbers(self.done_tokens, self.steps, row);
    }

    fn own_numbers(&self, row: &mut Vec<f64>) {
        let done = self.done_tokens as f64;
        let recent_output = log(self.output.recent);
        let mean_output = log(self.output.mean());
        let known = |value: f64, is_known: bool| if is_known { value } else { f64::NAN };
        let errors_known = self.errors_known > 0;
        let Parts {
            ended,
            started,
            last,
        } = self.parts;
        row.extend([
            log(self.prompt_tokens as f64),
            self.steps as f64,
            log(done),
            log(self.context_tokens as f64),
            mean_output,
            recent_output,
            log(self.output.last),
            log(self.output.largest),
            recent_output - mean_output,
            self.output.log_spread(),
            log(self.input.mean()),
            log(self.input.recent),
            log(self.input.last),
            log(self.input.largest),
            done / (done + self.input.total).max(1.0),
            known(self.seconds.max(0.0).ln_1p(), self.call.count > 0),
            log(self.gap.recent),
            log(self.gap.mean()),
            log(self.gap.last),
            log(self.gap.largest),
            log(self.call.mean()),
            known(f64::from(self.errors), errors_known),
            f64::from(self.errors) / known(f64::from(self.errors_known), errors_known),
            known(self.recent_errors, errors_known),
            self.since(self.error_at),
            f64::from(self.compactions),
            (self.steps - self.compacted_at) as f64,
            self.tools.len() as f64,
            f64::from(self.tool_run),
            f64::from(self.no_tool),
            self.since(self.no_tool_at),
            self.since(self.long_at),
            f64::from(self.many_tools),
            ended as f64,
            (self.steps - started) as f64,
            known(log(started as f64 / ended as f64), ended > 0),
            known(log(last as f64), ended > 0),
        ]);
    }

    /// Steps since then; NaN for never.
    fn since(&self, at: Option<i64>) -> f64 {
        at.map_or(f64::NAN, |at| (self.steps - at) as f64)
    }

    /// Hashed words and word pairs of the prompt, the last output and the last observation. None without words.
    pub fn words(&self) -> Option<Bag> {
        self.cues.words()
    }

    /// Hashed words of all outputs so far, and names of all tools called. None before the first.
    pub fn said(&self) -> Option<Bag> {
        self.cues.said()
    }

    /// The last observation and output, without their middles; the prompt where there are none.
    pub fn recent_text(&self) -> Option<RecentText> {
        self.cues.recent_text()
    }
}
