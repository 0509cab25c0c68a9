//! A modelled cluster for tests of policy: the truth against which the core's beliefs are held.
//!
//! Engines batch continuously with a token time that grows with batch and context; a prefill stops the batch for its
//! time; prefixes stay cached until KV runs out, least recently used first; with priorities, an engine puts the lowest
//! running request aside for a much higher one and has to prefill it again. No request is ever lost here.

use std::collections::{BTreeMap, BTreeSet};

use heddle_core::event::{Outcome, StepArrived, StepEnded, WorkerUp};
use heddle_core::{Action, Core, Event, Policy};

/// Numbers that look random, from a seed (splitmix64).
pub struct Draw(pub u64);

impl Draw {
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        let angle = std::f64::consts::TAU * self.uniform();
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        median * (sigma * radius * angle.cos()).exp()
    }
}

/// One step as it will be.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub input: u64,
    pub output: u64,
    pub gap_us: u64,
}

/// Trajectories: group and steps of each.
pub struct Workload {
    pub trajectories: Vec<(u64, Vec<Turn>)>,
}

impl Workload {
    /// Groups of `samples` around `median` output tokens, with a spread over groups and one within, as coding agents
    /// are: a prompt of 3,000 tokens, then short turns with gaps of half a second and a tail of minutes.
    pub fn drawn(
        groups: u64,
        samples: u64,
        seed: u64,
        median: f64,
        over: f64,
        within: f64,
    ) -> Self {
        let mut draw = Draw(seed);
        let mut trajectories = Vec::new();
        for group in 0..groups {
            let typical = draw.lognormal(median, over);
            for _ in 0..samples {
                let total = (typical * draw.lognormal(1.0, within)).clamp(200.0, 80_000.0);
                let mut left = total;
                let mut turns = Vec::new();
                while left > 0.0 {
                    let output = draw.lognormal(150.0, 0.8).clamp(10.0, left.max(10.0));
                    let input = if turns.is_empty() {
                        3_000.0
                    } else {
                        draw.lognormal(250.0, 0.9)
                    };
                    let gap_us = draw.lognormal(500_000.0, 1.2).min(60e6);
                    turns.push(Turn {
                        input: input as u64 + 1,
                        output: output as u64,
                        gap_us: gap_us as u64,
                    });
                    left -= output;
                }
                trajectories.push((group, turns));
            }
        }
        Self { trajectories }
    }
}

/// What an engine is like.
#[derive(Debug, Clone, Copy)]
pub struct Engine {
    pub degree: u32,
    pub slots: u32,
    pub kv_tokens: u64,
    /// How much slower than the core's table.
    pub slowness: f64,
}

impl Engine {
    fn token_us(&self, batch: usize, context: u64) -> f64 {
        let degree = f64::from(self.degree);
        let company = 32.0 * batch as f64 / degree.powf(0.85) + 0.062 * context as f64 / degree;
        self.slowness * (1_300.0 + 5_200.0 / degree + company)
    }

    fn prefill_us(&self, tokens: u64) -> f64 {
        self.slowness * tokens as f64 / (28_000.0 * f64::from(self.degree).powf(0.85)) * 1e6
    }
}

#[derive(Debug, Clone, Copy)]
struct Request {
    step: u64,
    trajectory: usize,
    context: u64,
    done: f64,
    output: u64,
    priority: i64,
    seq: u64,
    cached: u64,
}

impl Request {
    /// KV that it needs until its end.
    fn kv_tokens(&self) -> u64 {
        self.context + self.output
    }
}

#[derive(Debug)]
struct Server {
    engine: Engine,
    running: Vec<Request>,
    waiting: Vec<Request>,
    /// Cached tokens by trajectory, with the time of last use.
    cache: BTreeMap<usize, (u64, f64)>,
    clock: f64,
    /// The batch stands still until then.
    stalled_until: f64,
}

impl Server {
    fn token_us(&self) -> f64 {
        let context = self.running.iter().map(|r| r.context + r.done as u64).sum();
        self.engine.token_us(self.running.len(), context)
    }

    /// Runs the batch up to `now`; nothing in it ends before.
    fn run_to(&mut self, now: f64) {
        let from = self.clock.max(self.stalled_until.min(now));
        if now > from && !self.running.is_empty() {
            let tokens = (now - from) / self.token_us();
            for request in &mut self.running {
                request.done += tokens;
            }
        }
        self.clock = now;
    }

    fn next_end(&self) -> Option<f64> {
        let left = self
            .running
            .iter()
            .map(|r| r.output as f64 - r.done)
            .min_by(f64::total_cmp)?;
        Some(self.clock.max(self.stalled_until) + left.max(0.0) * self.token_us())
    }

    /// Takes waiting requests in while there are slots and KV for all that run, and puts running ones aside for much
    /// higher ones.
    fn schedule(&mut self) {
        loop {
            self.waiting.sort_by_key(|r| (-r.priority, r.seq));
            let Some(next) = self.waiting.first().copied() else {
                return;
            };
            let held: u64 = self.running.iter().map(Request::kv_tokens).sum();
            if !self.running.is_empty() && held + next.kv_tokens() > self.engine.kv_tokens {
                return;
            }
            if self.running.len() >= self.engine.slots as usize {
                let lowest = (0..self.running.len())
                    .min_by_key(|&i| (self.running[i].priority, u64::MAX - self.running[i].seq));
                let Some(victim) =
                    lowest.filter(|&i| next.priority - self.running[i].priority > 10)
                else {
                    return;
                };
                let mut victim = self.running.swap_remove(victim);
                victim.seq = next.seq + 1;
                self.waiting.push(victim);
            }
            let mut request = self.waiting.remove(0);
            let cached = self
                .cache
                .get(&request.trajectory)
                .map_or(0, |&(tokens, _)| tokens);
            let cached = cached.min(request.context);
            request.cached = cached;
            // What it had generated before it was put aside is computed again.
            let uncached = request.context - cached + request.done as u64;
            self.stalled_until =
                self.stalled_until.max(self.clock) + self.engine.prefill_us(uncached);
            self.remember(request.trajectory, request.context);
            self.running.push(request);
        }
    }

    fn remember(&mut self, trajectory: usize, tokens: u64) {
        self.cache.insert(trajectory, (tokens, self.clock));
        let mut used: u64 = self.cache.values().map(|&(tokens, _)| tokens).sum();
        while used > self.engine.kv_tokens && self.cache.len() > 1 {
            let oldest = self
                .cache
                .iter()
                .min_by(|a, b| a.1.1.total_cmp(&b.1.1))
                .map(|(&t, _)| t)
                .unwrap();
            used -= self.cache.remove(&oldest).map_or(0, |(tokens, _)| tokens);
        }
    }
}

/// What a rollout came to.
#[derive(Debug, Clone, Copy)]
pub struct Outcomes {
    pub makespan_s: f64,
}

/// Runs a workload to its end. `oracle`: predict each trajectory's true remaining length, off by that spread.
pub fn rollout(
    policy: Policy,
    engines: &[Engine],
    workload: &Workload,
    oracle: Option<f64>,
) -> Outcomes {
    let mut core = Core::new(policy);
    let mut draw = Draw(7);
    let mut servers = Vec::new();
    for (i, &engine) in engines.iter().enumerate() {
        let up = WorkerUp {
            worker: i as u64,
            generation: 1,
            degree: engine.degree,
            slots: engine.slots,
            kv_tokens: engine.kv_tokens,
            has_priority: true,
            profile: None,
            link: None,
            weights: 0,
        };
        core.handle(0, Event::WorkerUp(up)).unwrap();
        servers.push(Server {
            engine,
            running: Vec::new(),
            waiting: Vec::new(),
            cache: BTreeMap::new(),
            clock: 0.0,
            stalled_until: 0.0,
        });
    }
    // Arrivals by time; trajectories come within the first two seconds.
    let mut arrivals: BTreeSet<(u64, usize)> = (0..workload.trajectories.len())
        .map(|t| ((draw.uniform() * 2e6) as u64, t))
        .collect();
    let mut at = vec![(0usize, 0u64); workload.trajectories.len()];
    let mut of_step: BTreeMap<u64, usize> = BTreeMap::new();
    let (mut step, mut seq, mut open) = (0, 0, workload.trajectories.len());
    let mut last = 0.0f64;
    while open > 0 {
        let ends = servers
            .iter()
            .enumerate()
            .filter_map(|(i, s)| s.next_end().map(|t| (t, i)));
        let end = ends.min_by(|a, b| a.0.total_cmp(&b.0));
        let arrival = arrivals.first().copied();
        let timer = core.poll_timeout();
        let end_at = end.map_or(f64::INFINITY, |(t, _)| t);
        let arrival_at = arrival.map_or(f64::INFINITY, |(t, _)| t as f64);
        let timer_at = timer.map_or(f64::INFINITY, |t| t as f64);
        let now = end_at.min(arrival_at).min(timer_at).max(last);
        last = now;
        let now_us = now.ceil() as u64;
        for server in &mut servers {
            server.run_to(now);
        }
        if timer_at <= now {
            core.handle_timeout(now_us);
        } else if arrival_at <= now {
            let (_, t) = arrivals.pop_first().unwrap();
            let (turn, context) = at[t];
            let (group, turns) = &workload.trajectories[t];
            let prompt_tokens = context + turns[turn].input;
            step += 1;
            of_step.insert(step, t);
            if let Some(spread) = oracle
                && turn > 0
            {
                let left: u64 = turns[turn..].iter().map(|turn| turn.output).sum();
                let mean = left as f64 * draw.lognormal(1.0, spread);
                core.handle(
                    now_us,
                    Event::Predicted {
                        trajectory: t as u64,
                        mean,
                        sigma: spread,
                        gap_us: None,
                    },
                )
                .unwrap();
            }
            let arrived = StepArrived {
                step,
                trajectory: t as u64,
                group: Some(*group),
                prompt_tokens,
                chain: (0..=2 * turn as u64)
                    .map(|i| t as u64 * 10_000 + i)
                    .collect(),
                pinned_worker: None,
                bound: false,
            };
            core.handle(now_us, Event::StepArrived(arrived)).unwrap();
        } else if let Some((_, i)) = end {
            let server = &mut servers[i];
            let left = |r: &Request| r.output as f64 - r.done;
            let first = (0..server.running.len())
                .min_by(|&a, &b| left(&server.running[a]).total_cmp(&left(&server.running[b])))
                .unwrap();
            let request = server.running.swap_remove(first);
            server.remember(request.trajectory, request.context + request.output);
            let t = request.trajectory;
            at[t] = (at[t].0 + 1, request.context + request.output);
            let turns = &workload.trajectories[t].1;
            if at[t].0 < turns.len() {
                arrivals.insert((now_us + turns[at[t].0 - 1].gap_us, t));
            } else {
                open -= 1;
            }
            let ended = StepEnded {
                step: request.step,
                outcome: Outcome::Done,
                prompt_tokens: request.context,
                output_tokens: request.output,
                cached_tokens: request.cached,
            };
            core.handle(now_us, Event::StepEnded(ended)).unwrap();
        }
        while let Some(action) = core.poll_action() {
            if let Action::Dispatch(dispatch) = action {
                let t = of_step[&dispatch.step];
                let (turn, context) = at[t];
                let turn = workload.trajectories[t].1[turn];
                seq += 2;
                servers[dispatch.worker as usize].waiting.push(Request {
                    step: dispatch.step,
                    trajectory: t,
                    context: context + turn.input,
                    done: 0.0,
                    output: turn.output,
                    priority: dispatch.priority,
                    seq,
                    cached: 0,
                });
            }
        }
        for server in &mut servers {
            server.schedule();
        }
    }
    assert_eq!(core.audit(), Vec::<String>::new());
    Outcomes {
        makespan_s: last / 1e6,
    }
}

/// No schedule ends earlier: the longest trajectory alone on the engine that is best for it, with its gaps.
pub fn lower_bound_s(engines: &[Engine], workload: &Workload) -> f64 {
    let alone = |engine: &Engine, turns: &[Turn]| {
        let mut context = 0;
        let mut us = 0.0;
        for (i, turn) in turns.iter().enumerate() {
            let before = context;
            context += turn.input;
            us += engine.prefill_us(context - before)
                + turn.output as f64 * engine.token_us(1, context);
            context += turn.output;
            us += if i + 1 < turns.len() {
                turn.gap_us as f64
            } else {
                0.0
            };
        }
        us
    };
    let longest = workload
        .trajectories
        .iter()
        .map(|(_, turns)| {
            engines
                .iter()
                .map(|e| alone(e, turns))
                .fold(f64::INFINITY, f64::min)
        })
        .fold(0.0, f64::max);
    longest / 1e6
}
