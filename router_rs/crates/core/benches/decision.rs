//! What one decision costs with 100,000 active trajectories on 64 workers, for every combination of order, placement
//! and admission.
//!
//! One event with all its actions drained: a step arrives, ends, or a prediction ranks its trajectory anew; `overload_`
//! is the same while every worker has a queue.

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, criterion_group, criterion_main};
use heddle_core::event::{Outcome, StepArrived, StepEnded, WorkerUp};
use heddle_core::{Core, Event, Policy};
use std::cell::LazyCell;
use std::hint::black_box;
use std::time::Duration;

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
                link: None,
                weights: 0,
            }));
        }
        for trajectory in 0..TRAJECTORIES {
            let arrived = run.next_arrival(trajectory);
            run.arrive(arrived);
            let mean = (run.draw.next() % 60_000) as f64;
            run.handle(Event::Predicted {
                trajectory,
                mean,
                sigma: 0.5,
                gap_us: None,
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

    fn next_arrival(&mut self, trajectory: u64) -> StepArrived {
        self.next_step += 1;
        let turn = self.turns[trajectory as usize] % 8;
        self.turns[trajectory as usize] += 1;
        let messages = if self.reads_chain {
            MESSAGES + 2 * turn
        } else {
            0
        };
        StepArrived {
            step: self.next_step,
            trajectory,
            group: Some(trajectory / 16),
            prompt_tokens: 2_000,
            chain: (0..messages).map(|i| trajectory * 1_000 + i).collect(),
            pinned_worker: None,
            bound: false,
        }
    }

    fn arrive(&mut self, arrived: StepArrived) {
        self.live.push((arrived.step, arrived.trajectory));
        self.handle(Event::StepArrived(arrived));
    }

    fn end_one(&mut self) {
        let at = self.draw.next() as usize % self.live.len();
        let (step, _) = self.live.swap_remove(at);
        self.handle(Event::StepEnded(StepEnded {
            step,
            outcome: Outcome::Done,
            prompt_tokens: 2_000,
            output_tokens: 40 + step % 400,
            cached_tokens: 1_900,
        }));
    }

    /// CPU time of `n` steps that arrive, as many ending between.
    fn time_arrivals(&mut self, n: u64) -> Duration {
        let before = |run: &mut Self| {
            run.end_one();
            let trajectory = run.draw.next() % TRAJECTORIES;
            run.next_arrival(trajectory)
        };
        self.time(n, before, Self::arrive)
    }

    /// CPU time of `n` steps that end, as many arriving between.
    fn time_ends(&mut self, n: u64) -> Duration {
        self.time(n, Self::arrive_any, |run, ()| run.end_one())
    }

    fn arrive_any(&mut self) {
        let trajectory = self.draw.next() % TRAJECTORIES;
        let arrived = self.next_arrival(trajectory);
        self.arrive(arrived);
    }

    /// Does `before` and `timed` in turn, many at a time, so that the clock is read seldom.
    fn time<T>(
        &mut self,
        n: u64,
        before: impl Fn(&mut Self) -> T,
        timed: impl Fn(&mut Self, T),
    ) -> Duration {
        const AT_A_TIME: u64 = 256;
        let mut spent = Duration::ZERO;
        let mut left = n;
        while left > 0 {
            let count = left.min(AT_A_TIME);
            let prepared: Vec<T> = (0..count).map(|_| before(self)).collect();
            let start = CpuTime.start();
            for one in prepared {
                timed(self, one);
            }
            spent += CpuTime.end(start);
            left -= count;
        }
        spent
    }

    fn predict(&mut self) {
        let trajectory = self.draw.next() % TRAJECTORIES;
        let mean = (self.draw.next() % 60_000) as f64;
        self.handle(Event::Predicted {
            trajectory,
            mean,
            sigma: 0.5,
            gap_us: None,
        });
    }
}

/// CPU time of this thread: what else runs on the machine does not count.
struct CpuTime;

impl CpuTime {
    fn now() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        Self::now()
    }

    fn end(&self, start: Duration) -> Duration {
        Self::now().saturating_sub(start)
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn decision(c: &mut Criterion<CpuTime>) {
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
                for (name, slots) in [("", 256), ("overload_", 64)] {
                    let mut run = LazyCell::new(move || {
                        Run::new(order, placement, admission, slots, WORKERS * 200)
                    });
                    group.bench_function(format!("{name}step_arrived"), |b| {
                        let run = LazyCell::force_mut(&mut run);
                        b.iter_custom(|n| run.time_arrivals(n));
                    });
                    group.bench_function(format!("{name}step_ended"), |b| {
                        let run = LazyCell::force_mut(&mut run);
                        b.iter_custom(|n| run.time_ends(n));
                    });
                    group.bench_function(format!("{name}predicted"), |b| {
                        let run = LazyCell::force_mut(&mut run);
                        b.iter(|| run.predict());
                    });
                }
                group.finish();
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(150))
        .sample_size(10)
        .nresamples(1_000)
        .without_plots();
    targets = decision
}
criterion_main!(benches);
