//! What one decision costs with 100,000 active trajectories on 64 workers, for every combination of order, placement
//! and admission.
//!
//! `turn`: a step of some trajectory ends and its next one arrives, actions drained; two events, so halve it for one.
//! `predicted`: a prediction ranks some trajectory anew. `overload`: the same turn while every worker has a queue.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use heddle_core::event::{Outcome, StepArrived, StepEnded, WorkerUp};
use heddle_core::{Core, Event, Policy};
use std::cell::LazyCell;
use std::hint::black_box;

const TRAJECTORIES: u64 = 100_000;
const WORKERS: u64 = 64;
/// Messages of a prompt; cache-aware placement looks for the deepest known one.
const MESSAGES: u64 = 24;

/// A fixed sequence of numbers that looks random (splitmix64).
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

struct Run {
    core: Core,
    now: u64,
    next_step: u64,
    live: Vec<(u64, u64)>,
    turns: Vec<u64>,
    draw: Sequence,
    reads_chain: bool,
}

impl Run {
    /// All trajectories have had a step; `live` of them have one now.
    fn new(order: &str, placement: &str, admission: &str, slots: u32, live: u64) -> Self {
        let json =
            format!(r#"{{"order":"{order}","placement":"{placement}","admission":"{admission}"}}"#);
        let policy = Policy::from_json(&json).unwrap();
        let reads_chain = policy.placement.variant().reads_chain();
        let mut run = Self {
            core: Core::new(policy),
            now: 0,
            next_step: 0,
            live: Vec::new(),
            turns: vec![0; TRAJECTORIES as usize],
            draw: Sequence(1),
            reads_chain,
        };
        for worker in 0..WORKERS {
            let degree = [8, 4, 2, 1][worker as usize / 16];
            run.handle(Event::WorkerUp(WorkerUp {
                worker,
                generation: 1,
                degree,
                slots,
                kv_tokens: 20_000_000,
                has_priority: true,
                profile: None,
            }));
        }
        for trajectory in 0..TRAJECTORIES {
            run.arrive(trajectory);
            let mean = (run.draw.next() % 60_000) as f64;
            run.handle(Event::Predicted {
                trajectory,
                mean,
                sigma: 0.5,
            });
            if run.live.len() as u64 > live {
                run.end_one();
            }
        }
        run
    }

    fn handle(&mut self, event: Event) {
        self.now += 10;
        self.core.handle(self.now, event).unwrap();
        while let Some(action) = self.core.poll_action() {
            black_box(action);
        }
    }

    fn arrive(&mut self, trajectory: u64) {
        self.next_step += 1;
        let step = self.next_step;
        let turn = self.turns[trajectory as usize] % 8;
        self.turns[trajectory as usize] += 1;
        let chain = if self.reads_chain {
            (0..MESSAGES + 2 * turn)
                .map(|i| trajectory * 1_000 + i)
                .collect()
        } else {
            Vec::new()
        };
        self.handle(Event::StepArrived(StepArrived {
            step,
            trajectory,
            group: Some(trajectory / 16),
            prompt_tokens: 2_000,
            chain,
            pinned_worker: None,
        }));
        self.live.push((step, trajectory));
    }

    fn end_one(&mut self) -> u64 {
        let at = self.draw.next() as usize % self.live.len();
        let (step, trajectory) = self.live.swap_remove(at);
        self.handle(Event::StepEnded(StepEnded {
            step,
            outcome: Outcome::Done,
            prompt_tokens: 2_000,
            output_tokens: 40 + step % 400,
            cached_tokens: 1_900,
        }));
        trajectory
    }

    fn turn(&mut self) {
        self.end_one();
        let trajectory = self.draw.next() % TRAJECTORIES;
        self.arrive(trajectory);
    }

    fn predict(&mut self) {
        let trajectory = self.draw.next() % TRAJECTORIES;
        let mean = (self.draw.next() % 60_000) as f64;
        self.handle(Event::Predicted {
            trajectory,
            mean,
            sigma: 0.5,
        });
    }
}

fn decision(c: &mut Criterion) {
    for order in ["fcfs", "round_robin", "shortest_first", "longest_first"] {
        for placement in [
            "round_robin",
            "least_load",
            "sticky",
            "cache_aware",
            "by_rank",
        ] {
            for admission in ["unlimited", "slots", "working_set"] {
                let mut group = c.benchmark_group(format!("{order}+{placement}+{admission}"));
                // Built by the first benchmark that the command line lets through.
                let run = |slots| Run::new(order, placement, admission, slots, WORKERS * 200);
                let mut roomy = LazyCell::new(|| run(256));
                let mut full = LazyCell::new(|| run(64));
                group.throughput(Throughput::Elements(2));
                group.bench_function("turn", |b| {
                    let run = LazyCell::force_mut(&mut roomy);
                    b.iter(|| run.turn());
                });
                group.bench_function("overload", |b| {
                    let run = LazyCell::force_mut(&mut full);
                    b.iter(|| run.turn());
                });
                group.throughput(Throughput::Elements(1));
                group.bench_function("predicted", |b| {
                    let run = LazyCell::force_mut(&mut roomy);
                    b.iter(|| run.predict());
                });
                group.finish();
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(600))
        .sample_size(20);
    targets = decision
}
criterion_main!(benches);
