//! Both ends of the binary against each other, and against servers that break the answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use serde_json::{Value, json};

struct Upstream {
    child: Child,
    url: String,
}

impl Upstream {
    fn start(tokens: usize) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_heddle-loadgen"))
            .args(["upstream", "--port", "0", "--tokens", &tokens.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        Self {
            child,
            url: ready["ready"].as_str().unwrap().to_owned(),
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn body_file(name: &str, streamed: bool) -> std::path::PathBuf {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let body = json!({"model": "mock-8b", "stream": streamed, "messages": [{"role": "user", "content": "go"}]});
    std::fs::write(&path, body.to_string()).unwrap();
    path
}

fn load(base: &str, body: &std::path::Path, further: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_heddle-loadgen"))
        .args([
            "load",
            "--url",
            &format!("{base}/v1/chat/completions"),
            "--body",
            body.to_str().unwrap(),
        ])
        .args([
            "--connections",
            "4",
            "--duration",
            "0.3",
            "--warmup",
            "0.05",
        ])
        .args(further)
        .output()
        .unwrap()
}

fn figures(output: &Output) -> Value {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn plain_answers_are_counted_and_timed() {
    let upstream = Upstream::start(64);
    let seen = figures(&load(
        &upstream.url,
        &body_file("plain.json", false),
        &["--vary"],
    ));
    assert_eq!(seen["errors"], 0, "{seen}");
    assert_eq!(seen["reconnects"], 0);
    assert!(seen["requests"].as_u64().unwrap() > 50, "{seen}");
    let latency = &seen["latency_us"];
    assert!(
        latency["p50"].as_f64() <= latency["p99"].as_f64()
            && latency["p99"].as_f64() <= latency["max"].as_f64()
    );
}

#[test]
fn streams_are_counted_by_event_and_must_be_whole() {
    let upstream = Upstream::start(20);
    let body = body_file("stream.json", true);
    let seen = figures(&load(&upstream.url, &body, &["--vary", "--tokens", "20"]));
    assert_eq!(seen["errors"], 0, "{seen}");
    let (events, requests) = (
        seen["events"].as_u64().unwrap(),
        seen["requests"].as_u64().unwrap(),
    );
    assert!(events.abs_diff(requests * 23) <= 4 * 23, "{seen}");

    let wrong = figures(&load(&upstream.url, &body, &["--tokens", "21"]));
    assert_eq!(wrong["requests"], 0);
    assert_eq!(
        wrong["error_kinds"].as_object().unwrap().len(),
        1,
        "{wrong}"
    );
    assert!(
        wrong["error_kinds"]["stream had 23 events (ended by [DONE]), expected 24"].as_u64()
            > Some(0),
        "{wrong}"
    );
}

/// Answers every request on every connection with the same bytes, then closes.
fn broken_server(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || answer_once(socket, answer));
        }
    });
    url
}

fn answer_once(mut socket: TcpStream, answer: &[u8]) {
    let mut request = [0; 4096];
    if socket.read(&mut request).is_ok_and(|size| size > 0) {
        // The load generator may have gone already.
        let _sent = socket.write_all(answer);
    }
}

#[test]
fn a_broken_answer_is_an_error_and_never_a_request() {
    let body = body_file("broken.json", false);
    for (answer, reason) in [
        (
            &b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"[..],
            "status 503",
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
            "closed before the end of the answer",
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
            "answer has no usage at its end",
        ),
        (
            b"HTTP/1.1 200 OK\r\n\r\n{}",
            "answer has neither content-length nor chunked framing",
        ),
        (b"garbage\r\n\r\n", "bad HTTP head"),
    ] {
        let seen = figures(&load(&broken_server(answer), &body, &[]));
        assert_eq!(seen["requests"], 0, "{seen}");
        let kinds: Vec<&String> = seen["error_kinds"].as_object().unwrap().keys().collect();
        assert!(
            kinds.iter().any(|kind| kind.starts_with(reason)),
            "{reason}: {seen}"
        );
    }
}

#[test]
fn a_step_that_the_gateway_took_for_another_is_an_error() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\nX-Heddle-Step: 5\r\n\r\n{\"usage\":1";
    let body = body_file("step.json", false);
    let further = ["--vary", "--step-header", "x-heddle-step"];
    let seen = figures(&load(&broken_server(answer), &body, &further));
    let reason = "gateway saw step Some(5) where the agent sent step 0";
    assert!(seen["error_kinds"][reason].as_u64() > Some(0), "{seen}");
    let without = figures(&load(&broken_server(answer), &body, &["--vary"]));
    assert!(without["requests"].as_u64() > Some(0), "{without}");
}

#[test]
fn a_port_in_use_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_heddle-loadgen"))
        .args(["upstream", "--port", &port])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("port {port}")));
}
