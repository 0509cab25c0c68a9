//! A rollout of made-up coding agents under several policies: what each costs, and how long the simulation took.
//!
//! `cargo run --release -p heddle-sim --example rollout -- [trajectories] [gpus]`

use std::collections::BTreeMap;
use std::time::Instant;

use heddle_sim::bound::lower_bound;
use heddle_sim::draw::{Purpose, normal};
use heddle_sim::prediction::Prediction;
use heddle_sim::spec::Truth;
use heddle_sim::{Costs, Script, Spec, Turn, Workload, simulate};

/// The arithmetic of an 8B dense model in bf16 on a GPU of the H100 class, as in `heddle_shim.emulator.timing`.
fn truth(degree: u32) -> Truth {
    let d = f64::from(degree);
    let compute = d.powf(0.85);
    let step = |batch: f64| 1.3e-3 + 5.2e-3 / d + batch * 32e-6 / compute;
    Truth {
        costs: Costs {
            batches: vec![1, 256],
            step_seconds: vec![step(1.0), step(256.0)],
            context_token_s: 62e-9 / d,
            prefill_fixed_s: 4e-3,
            prefill_token_s: 1.0 / 28_000.0 / compute,
            prefill_pair_s: 1.2e-9 / compute,
        },
        slots: 64 * degree,
        kv_tokens: (350_000.0 * d) as u64,
        link: None,
    }
}

/// Groups of 16; lognormal lengths that vary more between prompts than within one.
fn workload(trajectories: u64) -> Workload {
    let scripts = (0..trajectories)
        .map(|i| {
            let group = i / 16;
            let level = 0.7 * normal(1, Purpose::Stranger, group, 0)
                + 0.5 * normal(2, Purpose::Stranger, i, 0);
            let output = (8.3 + level).exp().clamp(64.0, 40_000.0);
            let steps = (12.0 * (0.6 * level).exp()).clamp(1.0, 60.0) as u64;
            let turns = (0..steps)
                .map(|step| Turn {
                    input: if step == 0 { 0 } else { 400 },
                    output: (output / steps as f64) as u64 + 1,
                    tool_s: (0.2 + normal(3, Purpose::Stranger, i, step)).exp(),
                })
                .collect();
            Script {
                prompt: 1500,
                group: Some(group),
                start_s: 0.0,
                turns,
            }
        })
        .collect();
    Workload::new(scripts).expect("the scripts are within bounds")
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |default| arguments.next().and_then(Result::ok).unwrap_or(default);
    let (trajectories, gpus) = (next(6_400), next(64) as usize);
    let workload = workload(trajectories);
    println!(
        "{trajectories} trajectories, {} steps, {gpus} GPUs",
        workload.steps()
    );
    let rows = [
        (
            "sticky, first come",
            r#"{"order":"fcfs","placement":"sticky","admission":"unlimited"}"#,
        ),
        (
            "least load",
            r#"{"order":"fcfs","placement":"least_load","admission":"unlimited"}"#,
        ),
        (
            "cache aware",
            r#"{"order":"fcfs","placement":"cache_aware","admission":"unlimited"}"#,
        ),
        (
            "shortest first",
            r#"{"order":"shortest_first","placement":"sticky","admission":"unlimited"}"#,
        ),
        ("default", "{}"),
    ];
    for degree in [1u32, 8] {
        for (name, policy) in rows {
            let spec = Spec {
                truth: BTreeMap::from([1, 2, 4, 8].map(|degree| (degree, truth(degree)))),
                workers: vec![degree; gpus / degree as usize],
                policy: serde_json::from_str(policy).expect("a JSON object"),
                prediction: Prediction::Calibrated {
                    first: 1.0,
                    least: 0.4,
                },
                ..serde_json::from_str(r#"{"truth":{},"workers":[]}"#).expect("a spec of defaults")
            };
            let bound = lower_bound(&workload, &spec.truth, spec.gpus(), spec.slowdown).seconds();
            let started = Instant::now();
            match simulate(&workload, &spec) {
                Ok(run) => println!(
                    "TP{degree} {name:20} makespan {:8.1} s  {:5.2} x bound  {:8.0} tokens/s  recomputed {:>10}  moves {:>6}  \
                     preempted {:>6}  queue of longest {:7.1} s  [{:.2} s, {} events]",
                    run.report.makespan_s,
                    run.report.makespan_s / bound,
                    run.report.tokens_per_s,
                    run.report.recomputed_tokens,
                    run.report.moves,
                    run.report.preemptions,
                    run.report.queue_s_longest,
                    started.elapsed().as_secs_f64(),
                    run.report.events,
                ),
                Err(error) => println!("TP{degree} {name:20} {error}"),
            }
        }
    }
}
