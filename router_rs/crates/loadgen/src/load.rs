//! A closed loop of agents on kept connections, and what it measured.
//!
//! Invariants: only what ended between the end of the warm-up and the end of the run counts; an answer that is not exactly the
//! one expected (status, length of the stream, its end) is an error; requests in flight at the end are read to their end, so
//! that no gateway has hang-ups to clean up in the next measurement.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::chat::{self, StepBody};
use crate::http1::{ProtocolError, response_head};
use crate::sse::EventCounter;

const READ_BYTES: usize = 64 * 1024;
/// No answer within this: the request is an error. Far above any latency worth measuring.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// One measurement.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `host:port` to connect to.
    pub authority: String,
    /// Path of the request.
    pub path: String,
    /// Agents, each with a connection of its own.
    pub connections: usize,
    /// Time measured, after the warm-up.
    pub duration: Duration,
    /// Time before that, not measured.
    pub warmup: Duration,
    /// Further request headers, as `Name: value`.
    pub headers: Vec<String>,
    /// Bodies in the order an agent sends them; then it begins a new conversation.
    pub steps: Vec<StepBody>,
    /// Events each stream must have; `None` when answers are not streamed.
    pub expected_events: Option<u64>,
    /// Answer header that must hold the step's index in its conversation: the gateway recognised the conversation.
    pub step_header: Option<String>,
}

/// Why a request failed.
#[derive(Debug, Error)]
pub enum RequestError {
    /// Could not connect.
    #[error("connect: {0}")]
    Connect(io::Error),
    /// The connection broke.
    #[error("connection: {0}")]
    Connection(#[from] io::Error),
    /// The server closed before the answer's end.
    #[error("closed before the end of the answer")]
    Closed,
    /// Not HTTP.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Any status but 200.
    #[error("status {0}")]
    Status(u16),
    /// A stream lost or gained events, or lacks its `[DONE]`.
    #[error("stream had {got} events ({ended}), expected {expected}")]
    Stream {
        /// Events seen.
        got: u64,
        /// Events due.
        expected: u64,
        /// Whether the last one was `[DONE]`.
        ended: &'static str,
    },
    /// The body is not the mock engine's answer.
    #[error("answer has no usage at its end")]
    Answer,
    /// The gateway took the request for another step than it was.
    #[error("gateway saw step {seen:?} where the agent sent step {sent}")]
    Step {
        /// The header's value.
        seen: Option<usize>,
        /// Index in the conversation.
        sent: usize,
    },
    /// Nothing came for long.
    #[error("no answer in time")]
    TimedOut,
}

/// Counts of one measurement; times in nanoseconds.
#[derive(Debug)]
pub struct Tally {
    /// Time from the first byte sent to the last received.
    pub latency: Histogram<u64>,
    /// Time from the first byte sent to the first byte of a body.
    pub first_byte: Histogram<u64>,
    /// Server-sent events received.
    pub events: u64,
    /// Bytes of bodies received.
    pub bytes: u64,
    /// Connections opened beyond the first of each agent.
    pub reconnects: u64,
    /// Requests answered in the whole run, warm-up and end included; what the processes' CPU time was spent on.
    pub whole_requests: u64,
    /// Events of the whole run.
    pub whole_events: u64,
    /// Conversations begun in the whole run.
    pub conversations: u64,
    /// Failed requests by reason, also those of the warm-up.
    pub errors: BTreeMap<String, u64>,
}

impl Tally {
    fn new() -> Self {
        // Three digits, up to a minute: 200 KB a histogram.
        let histogram =
            || Histogram::new_with_max(60_000_000_000, 3).expect("bounds are constants that fit");
        Self {
            latency: histogram(),
            first_byte: histogram(),
            events: 0,
            bytes: 0,
            reconnects: 0,
            whole_requests: 0,
            whole_events: 0,
            conversations: 0,
            errors: BTreeMap::new(),
        }
    }

    fn merge(&mut self, other: &Self) {
        self.latency
            .add(&other.latency)
            .expect("both histograms have the same bounds");
        self.first_byte
            .add(&other.first_byte)
            .expect("both histograms have the same bounds");
        self.events += other.events;
        self.bytes += other.bytes;
        self.reconnects += other.reconnects;
        self.whole_requests += other.whole_requests;
        self.whole_events += other.whole_events;
        self.conversations += other.conversations;
        for (reason, count) in &other.errors {
            *self.errors.entry(reason.clone()).or_default() += count;
        }
    }
}

/// The part of the run that counts.
#[derive(Debug, Clone, Copy)]
struct Window {
    opens: Instant,
    closes: Instant,
}

impl Window {
    fn holds(self, moment: Instant) -> bool {
        self.opens <= moment && moment <= self.closes
    }
}

/// Runs all agents and adds up what they saw.
pub async fn run(settings: Settings) -> Tally {
    let settings = Rc::new(settings);
    let opens = Instant::now() + settings.warmup;
    let window = Window {
        opens,
        closes: opens + settings.duration,
    };
    let conversations = Rc::new(Cell::new(first_conversation()));
    let agents: Vec<_> = (0..settings.connections)
        .map(|_| {
            tokio::task::spawn_local(agent(
                Rc::clone(&settings),
                window,
                Rc::clone(&conversations),
            ))
        })
        .collect();
    let mut total = Tally::new();
    for agent in agents {
        total.merge(&agent.await.expect("an agent does not panic"));
    }
    total
}

/// Conversations of separate runs must differ, or the second run would look like retries of the first.
fn first_conversation() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    (since_epoch.as_millis() as u64) << 20
}

async fn agent(settings: Rc<Settings>, window: Window, conversations: Rc<Cell<u64>>) -> Tally {
    let mut tally = Tally::new();
    let mut connection = None;
    let mut opened = 0_u64;
    let requests: Vec<Vec<u8>> = settings
        .steps
        .iter()
        .map(|step| request_bytes(&settings, step))
        .collect();
    let mut outgoing = Vec::new();
    let (mut step, mut conversation) = (0, 0);
    while Instant::now() < window.closes {
        if step == 0 {
            conversation = conversations.get();
            conversations.set(conversation + 1);
            tally.conversations += 1;
        }
        outgoing.clear();
        outgoing.extend_from_slice(&requests[step]);
        if let Some(mark_at) = settings.steps[step].mark_at {
            let body_at = outgoing.len() - settings.steps[step].bytes.len();
            chat::write_conversation(&mut outgoing, body_at + mark_at, conversation);
        }
        opened += u64::from(connection.is_none());
        let asked = ask(
            &mut connection,
            &settings,
            &outgoing,
            step,
            window,
            &mut tally,
        );
        match tokio::time::timeout(ANSWER_TIMEOUT, asked)
            .await
            .unwrap_or(Err(RequestError::TimedOut))
        {
            Ok(()) => step = (step + 1) % requests.len(),
            Err(error) => {
                *tally.errors.entry(error.to_string()).or_default() += 1;
                connection = None;
                // The run has failed already; do not spin on a server that refuses.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    tally.reconnects = opened.saturating_sub(1);
    tally
}

fn request_bytes(settings: &Settings, step: &StepBody) -> Vec<u8> {
    let mut head = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\naccept: */*\r\ncontent-length: {}\r\n",
        settings.path,
        settings.authority,
        step.bytes.len()
    );
    for header in &settings.headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&step.bytes);
    bytes
}

/// An open connection and what was read from it beyond the last answer.
struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(authority: &str) -> Result<Self, RequestError> {
        let socket = TcpStream::connect(authority)
            .await
            .map_err(RequestError::Connect)?;
        socket.set_nodelay(true).map_err(RequestError::Connect)?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(READ_BYTES),
        })
    }

    async fn read_more(&mut self) -> Result<(), RequestError> {
        self.buffer.reserve(READ_BYTES);
        match self.socket.read_buf(&mut self.buffer).await? {
            0 => Err(RequestError::Closed),
            _ => Ok(()),
        }
    }
}

async fn ask(
    slot: &mut Option<Connection>,
    settings: &Settings,
    request: &[u8],
    step: usize,
    window: Window,
    tally: &mut Tally,
) -> Result<(), RequestError> {
    // Taken out for the time of the request: after an error, or a time-out, it is not used again.
    let mut connection = match slot.take() {
        Some(open) => open,
        None => Connection::open(&settings.authority).await?,
    };
    let sent_at = Instant::now();
    connection.socket.write_all(request).await?;
    let mut head = loop {
        if let Some(head) = response_head(&connection.buffer, settings.step_header.as_deref())? {
            break head;
        }
        connection.read_more().await?;
    };
    connection.buffer.drain(..head.size);
    let mut first_byte_at = None;
    let mut counter = EventCounter::default();
    loop {
        let (mut bytes, before) = (0, counter.events());
        let taken = head.body.feed(&connection.buffer, |payload| {
            bytes += payload.len() as u64;
            counter.feed(payload);
        })?;
        connection.buffer.drain(..taken);
        let now = Instant::now();
        if bytes > 0 {
            first_byte_at.get_or_insert(now);
        }
        if window.holds(now) {
            tally.bytes += bytes;
            tally.events += counter.events() - before;
        }
        if head.body.is_done() {
            break;
        }
        connection.read_more().await?;
    }
    check(head.status, &counter, settings.expected_events)?;
    if settings.step_header.is_some() && head.number != Some(step) {
        return Err(RequestError::Step {
            seen: head.number,
            sent: step,
        });
    }
    tally.whole_requests += 1;
    tally.whole_events += counter.events();
    let ended_at = Instant::now();
    if window.holds(ended_at) {
        tally
            .latency
            .saturating_record(nanoseconds(ended_at - sent_at));
        if let Some(first) = first_byte_at {
            tally
                .first_byte
                .saturating_record(nanoseconds(first - sent_at));
        }
    }
    if !head.closes {
        *slot = Some(connection);
    }
    Ok(())
}

fn check(
    status: u16,
    counter: &EventCounter,
    expected_events: Option<u64>,
) -> Result<(), RequestError> {
    if status != 200 {
        return Err(RequestError::Status(status));
    }
    match expected_events {
        None if counter.tail_contains(b"\"usage\"") => Ok(()),
        None => Err(RequestError::Answer),
        Some(expected) => {
            let done = counter.tail_ends_with(b"data: [DONE]\n\n");
            if done && counter.events() == expected {
                return Ok(());
            }
            let ended = if done { "ended by [DONE]" } else { "no [DONE]" };
            Err(RequestError::Stream {
                got: counter.events(),
                expected,
                ended,
            })
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
