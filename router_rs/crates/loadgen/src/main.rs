//! `heddle-loadgen`: a mock SGLang server and a load generator for measuring gateways.
//!
//! Both ends run on one thread each and do no work per request that could be done before, so that the gateway between them
//! is what is measured.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

mod chat;
mod http1;
mod load;
mod report;
mod sse;
mod upstream;

/// Mock engine and load generator for gateways.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve as a mock SGLang worker on 127.0.0.1.
    Upstream(UpstreamArgs),
    /// Send requests in a closed loop on kept connections; prints one line of JSON.
    Load(LoadArgs),
}

#[derive(Args)]
struct UpstreamArgs {
    /// Port; 0 takes a free one (see the `ready` line).
    #[arg(long)]
    port: u16,
    /// Tokens of each answer.
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Tokens of each streamed answer, one event each; as --tokens when not given.
    #[arg(long)]
    stream_tokens: Option<usize>,
    /// Pause before each event of a stream, in microseconds.
    #[arg(long, default_value_t = 0)]
    chunk_delay_us: u64,
}

#[derive(Args)]
struct LoadArgs {
    /// <http://host:port/path> to post to.
    #[arg(long)]
    url: String,
    /// Agents, each with one connection.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Measured seconds.
    #[arg(long, default_value_t = 4.0)]
    duration: f64,
    /// Seconds before that, not measured.
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// JSON body to send; the first step of each conversation with --vary.
    #[arg(long)]
    body: PathBuf,
    /// Further request header, "Name: value". May be given again.
    #[arg(long = "header")]
    headers: Vec<String>,
    /// Each connection is an agent: its history grows by answer and tool output, then a new conversation begins.
    #[arg(long)]
    vary: bool,
    /// Steps of a conversation with --vary.
    #[arg(long, default_value_t = 8)]
    steps: usize,
    /// Tokens the upstream answers with: the history repeats its answers, and a stream must have them all.
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Answer header that must hold the step's index in its conversation, with --vary.
    #[arg(long, requires = "vary")]
    step_header: Option<String>,
    /// Print JSON (the only format; accepted for clarity in scripts).
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Upstream(args) => serve(&args),
        Command::Load(args) => measure(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("heddle-loadgen: {message}");
            ExitCode::FAILURE
        }
    }
}

/// One thread, tasks that need not be `Send`.
fn on_one_thread<F: Future>(work: F) -> Result<F::Output, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    Ok(tokio::task::LocalSet::new().block_on(&runtime, work))
}

fn serve(args: &UpstreamArgs) -> Result<(), String> {
    let settings = upstream::Settings {
        port: args.port,
        tokens: args.tokens,
        stream_tokens: args.stream_tokens.unwrap_or(args.tokens),
        chunk_delay: Duration::from_micros(args.chunk_delay_us),
    };
    on_one_thread(upstream::serve(settings))?
        .map_err(|error| format!("port {}: {error}", args.port))
}

fn measure(args: LoadArgs) -> Result<(), String> {
    let settings = load_settings(args)?;
    let measured = settings.duration;
    let tally = on_one_thread(load::run(settings))?;
    println!("{}", report::summary(&tally, measured));
    Ok(())
}

fn load_settings(args: LoadArgs) -> Result<load::Settings, String> {
    let (authority, path) = split_url(&args.url)?;
    let body =
        std::fs::read(&args.body).map_err(|error| format!("{}: {error}", args.body.display()))?;
    let parsed: serde_json::Value = serde_json::from_slice(&body)
        .map_err(|error| format!("{}: {error}", args.body.display()))?;
    let streamed = parsed["stream"] == serde_json::Value::Bool(true);
    let steps = if args.vary {
        chat::agent_steps(&body, args.steps.max(1), args.tokens)
            .map_err(|error| error.to_string())?
    } else {
        vec![chat::StepBody {
            bytes: body,
            mark_at: None,
        }]
    };
    Ok(load::Settings {
        authority,
        path,
        connections: args.connections,
        duration: Duration::try_from_secs_f64(args.duration)
            .map_err(|error| format!("--duration: {error}"))?,
        warmup: Duration::try_from_secs_f64(args.warmup)
            .map_err(|error| format!("--warmup: {error}"))?,
        headers: args.headers,
        steps,
        step_header: args.step_header,
        expected_events: streamed.then(|| chat::event_count(args.tokens)),
    })
}

fn split_url(url: &str) -> Result<(String, String), String> {
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| format!("--url {url}: only http:// is spoken here"))?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !authority.contains(':') {
        return Err(format!("--url {url}: give the port"));
    }
    Ok((authority.to_owned(), format!("/{path}")))
}
