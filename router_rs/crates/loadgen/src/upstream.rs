//! A mock SGLang server that costs nearly nothing: fixed answers, one thread.
//!
//! It speaks enough of the engine's routes to be accepted as a worker by Heddle and by sglang-router. Every request body must
//! be JSON: a gateway that breaks it gets a 400, which the load generator counts as an error.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::chat;
use crate::http1::{ProtocolError, RequestHead, request_head};

/// Read size; a whole benchmark request fits.
const READ_BYTES: usize = 64 * 1024;

/// How the mock answers.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Tokens of an answer that is not streamed.
    pub tokens: usize,
    /// Tokens of a streamed answer; one event each.
    pub stream_tokens: usize,
    /// Pause before each event of a stream; changed by `POST /mock/pace`.
    pub chunk_delay: Duration,
}

/// The only members of a body that change the answer.
#[derive(Deserialize)]
struct Ask {
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct Pace {
    chunk_delay_us: u64,
}

/// Answers made once, and the one thing that can change.
struct Script {
    completion: Vec<u8>,
    stream_head: Vec<u8>,
    frames: [Vec<Vec<u8>>; 2],
    chunk_delay: Cell<Duration>,
    running: Cell<usize>,
    aborts: Cell<u64>,
    port: u16,
}

impl Script {
    fn new(settings: &Settings) -> Self {
        let frames = [false, true].map(|usage| {
            let mut frames: Vec<Vec<u8>> = chat::events(settings.stream_tokens, usage)
                .iter()
                .map(|event| chunk(event))
                .collect();
            // uvicorn, under SGLang, ends a chunked body in a write of its own too.
            frames.push(b"0\r\n\r\n".to_vec());
            frames
        });
        Self {
            completion: answer(200, "application/json", &chat::completion(settings.tokens)),
            stream_head: b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                transfer-encoding: chunked\r\n\r\n"
                .to_vec(),
            frames,
            chunk_delay: Cell::new(settings.chunk_delay),
            running: Cell::new(0),
            aborts: Cell::new(0),
            port: settings.port,
        }
    }
}

/// Serves until the process is ended; prints `ready` as one line of JSON when it listens.
///
/// # Errors
/// The port cannot be bound.
pub async fn serve(settings: Settings) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", settings.port)).await?;
    let port = listener.local_addr()?.port();
    let script = Rc::new(Script::new(&Settings { port, ..settings }));
    println!("{}", json!({"ready": format!("http://127.0.0.1:{port}")}));
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let script = Rc::clone(&script);
        tokio::task::spawn_local(async move {
            // A caller that goes away ends its connection; nothing else hangs on it.
            let _ended = converse(socket, &script).await;
        });
    }
}

async fn converse(mut socket: TcpStream, script: &Script) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(READ_BYTES);
    while let Some((head, whole)) = next_request(&mut socket, &mut buffer).await? {
        let body = &buffer[head.size..whole];
        if head.method == "POST" && head.path == "/v1/chat/completions" {
            script.running.set(script.running.get() + 1);
            let answered = chat_completion(&mut socket, script, body).await;
            script.running.set(script.running.get() - 1);
            answered?;
        } else {
            socket.write_all(&side_route(script, &head, body)).await?;
        }
        buffer.drain(..whole);
    }
    Ok(())
}

/// Head and total size of the next request in `buffer`; `None` when the caller closed between requests.
async fn next_request(
    socket: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(RequestHead, usize)>> {
    loop {
        if let Some(head) = request_head(buffer).map_err(invalid)? {
            let whole = head.size + head.content_length;
            while buffer.len() < whole {
                if socket.read_buf(buffer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            return Ok(Some((head, whole)));
        }
        buffer.reserve(READ_BYTES);
        if socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn invalid(error: ProtocolError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

async fn chat_completion(socket: &mut TcpStream, script: &Script, body: &[u8]) -> io::Result<()> {
    let Ok(ask) = serde_json::from_slice::<Ask>(body) else {
        let text = json!({"object": "error", "message": "body is not JSON", "type": "BadRequest", "code": 400});
        return socket
            .write_all(&answer(
                400,
                "application/json",
                text.to_string().as_bytes(),
            ))
            .await;
    };
    if ask.stream != Some(true) {
        return socket.write_all(&script.completion).await;
    }
    let usage = ask.stream_options.and_then(|options| options.include_usage) == Some(true);
    socket.write_all(&script.stream_head).await?;
    for frame in &script.frames[usize::from(usage)] {
        let delay = script.chunk_delay.get();
        if delay.is_zero() {
            // One write an event, in turn with the other streams, as an engine's batch does.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(delay).await;
        }
        socket.write_all(frame).await?;
    }
    Ok(())
}

/// What a worker is asked besides chat: health, shape, load, abort.
fn side_route(script: &Script, head: &RequestHead, body: &[u8]) -> Vec<u8> {
    let reply = match (head.method.as_str(), head.path.as_str()) {
        ("GET", "/health" | "/health_generate" | "/ready" | "/ping") => json!({}),
        ("GET", "/server_info" | "/get_server_info") => server_info(script),
        ("GET", "/model_info" | "/get_model_info") => model_info(),
        ("GET", "/v1/models") => models(),
        ("GET", "/v1/loads") => loads(script),
        ("POST", "/abort_request") => {
            script.aborts.set(script.aborts.get() + 1);
            json!({})
        }
        ("GET", "/mock/stats") => {
            json!({"running": script.running.get(), "aborts": script.aborts.get()})
        }
        ("POST", "/mock/pace") => match serde_json::from_slice::<Pace>(body) {
            Ok(pace) => {
                script
                    .chunk_delay
                    .set(Duration::from_micros(pace.chunk_delay_us));
                json!({"chunk_delay_us": pace.chunk_delay_us})
            }
            Err(_) => {
                return answer(
                    400,
                    "application/json",
                    br#"{"detail":"chunk_delay_us is missing"}"#,
                );
            }
        },
        _ => return answer(404, "application/json", br#"{"detail":"Not Found"}"#),
    };
    answer(200, "application/json", reply.to_string().as_bytes())
}

fn server_info(script: &Script) -> serde_json::Value {
    json!({
        "model_path": chat::MODEL, "served_model_name": chat::MODEL, "tokenizer_path": chat::MODEL, "host": "127.0.0.1",
        "port": script.port, "tp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 1, "version": "0.5.23", "status": "ready",
        "max_running_requests": 4096, "max_total_num_tokens": 64_000_000, "context_length": 131_072,
        "enable_priority_scheduling": true, "priority_scheduling_preemption_threshold": 10,
        "schedule_low_priority_values_first": false, "random_seed": 42,
        "internal_states": [{"effective_max_running_requests_per_dp": 4096}],
    })
}

fn model_info() -> serde_json::Value {
    json!({
        "model_path": chat::MODEL, "tokenizer_path": chat::MODEL, "is_generation": true, "weight_version": "default",
        "model_type": "llama", "architectures": ["LlamaForCausalLM"],
    })
}

fn models() -> serde_json::Value {
    json!({"object": "list", "data": [{
        "id": chat::MODEL, "object": "model", "created": 1_767_225_600, "owned_by": "sglang", "root": chat::MODEL,
        "max_model_len": 131_072,
    }]})
}

fn loads(script: &Script) -> serde_json::Value {
    let running = script.running.get();
    json!({
        "timestamp": "2026-01-01T00:00:00+00:00", "version": "0.5.23", "dp_rank_count": 1,
        "loads": [{
            "dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": 0, "num_used_tokens": running * 1024,
            "num_total_tokens": running * 1024, "max_total_num_tokens": 64_000_000, "max_running_requests": 4096,
            "token_usage": 0.0, "gen_throughput": 0.0, "cache_hit_rate": 0.0, "utilization": 0.0,
        }],
        "aggregate": {"total_running_reqs": running, "total_waiting_reqs": 0, "total_reqs": running},
    })
}

fn chunk(data: &[u8]) -> Vec<u8> {
    let mut framed = format!("{:x}\r\n", data.len()).into_bytes();
    framed.extend_from_slice(data);
    framed.extend_from_slice(b"\r\n");
    framed
}

fn answer(status: u16, content_type: &str, body: &[u8]) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        _ => "Not Found",
    };
    let mut bytes = format!(
        "HTTP/1.1 {status} {reason}\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
