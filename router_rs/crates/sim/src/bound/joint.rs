//! The longest trajectories and all others' work, in each other's way.
//!
//! Let a schedule end within T, and let N trajectories each have the haste h, in GPU-seconds a second. Busy workers use no
//! more than the GPUs' time, and each of the N spends at most `T - idle` in prefill and decode, idle being its start and its
//! tools. The first of these, and the others times h, add up to
//!
//! ```text
//! Σ_steps (d + h n) (t(b) + κ K)  +  prefill  ≤  G T + h Σ (T - idle)
//! ```
//!
//! for steps of b sequences on d GPUs, n of them of the N, that read K tokens. Without haste a step costs what
//! [`super::work`] says, at least `α b + β K' + d κ K` with `α` the least of `(d t(b) - β C) / b`; and
//! `s(b) = d t(b) - β C - α b` more, where its batch is not the best. With haste it costs `n h (t(b) + κ K)` beyond that. At
//! most b and at most N of the N are in it. So each can be charged `e`, the least over b of
//! `h (t(b) + κ (b-1) c) + s(b) / min(b, N)`, and `h κ` for each token that it reads itself: small batches are theirs to
//! pay for, for all who are in them.
//!
//! Company reads at least c tokens each, since who reads less is charged the rest: every decoded token whose context is
//! below c costs `N h κ` less for each token that it lacks, than it does without haste. A step's prefill and decode are on
//! one worker, so each is taken on the degree where it costs least. What is charged on the left is the same in any schedule,
//! and T follows; any h, N, c and β give a bound, and the highest is looked for.
//!
//! What it forgets, and why it is no higher: nobody decodes while somebody is prefilled; a batch is made of who happens to be
//! there; and a worker stays as it was cut.

use super::Degree;
use super::demand::{Ask, Demand};
use super::search::highest;

/// Trajectories that may be in haste: the longest ones.
const CANDIDATES: usize = 512;
/// Steps with which the price of own context is looked for, and how far above the first guess.
const PRICED: usize = 4096;
const PRICE_RANGE: f64 = 4.0;
/// Contexts that are tried for the company's.
const COMPANIES: usize = 12;
/// Haste of all N together that is tried: from this share of all GPUs to this many times all of them.
const LEAST_HASTE: f64 = 1.0 / 512.0;
const MOST_HASTE: f64 = 64.0;
/// Rounds over all that is tried.
const ROUNDS: usize = 2;

/// What is tried.
#[derive(Debug, Clone, Copy)]
struct Guess {
    /// Haste of all N together, GPU-seconds a second.
    haste: f64,
    /// N.
    count: usize,
    /// Index into the companies.
    company: usize,
    /// Seconds of a token of context by which companies' contexts are charged.
    reading: f64,
}

/// Highest T that was found. `price`: of a token of own context in a step, where each kind of work is for itself.
pub(super) fn seconds(demand: &Demand, degrees: &[Degree], gpus: f64, price: f64) -> f64 {
    let kv = best_price(demand, degrees, price);
    let crowd = Crowd::new(demand, degrees, kv);
    let spread = (MOST_HASTE / LEAST_HASTE).ln();
    let haste = |at: f64| gpus * LEAST_HASTE * (at * spread).exp();
    let readings = degrees.iter().map(|one| one.costs.context_token_s);
    let mut best = Guess {
        haste: haste(0.5),
        count: 1,
        company: 0,
        reading: readings.clone().fold(f64::INFINITY, f64::min),
    };
    let value = |guess: Guess| crowd.seconds(guess, gpus);
    let mut found = value(best);
    let mut better = |best: &mut Guess, guess: Guess| {
        let seconds = value(guess);
        if seconds > found {
            (found, *best) = (seconds, guess);
        }
    };
    for _ in 0..ROUNDS {
        let at = highest(|at| {
            value(Guess {
                haste: haste(at),
                ..best
            })
        });
        let guess = Guess {
            haste: haste(at),
            ..best
        };
        better(&mut best, guess);
        for company in 0..crowd.companies.len() {
            for reading in readings.clone() {
                let guess = Guess {
                    company,
                    reading,
                    ..best
                };
                better(&mut best, guess);
            }
        }
        let counts = std::iter::successors(Some(1), |count| Some(count * 2));
        for count in counts.take_while(|&count| count <= crowd.longest.len()) {
            let at = highest(|at| {
                value(Guess {
                    haste: haste(at),
                    count,
                    ..best
                })
            });
            let guess = Guess {
                haste: haste(at),
                count,
                ..best
            };
            better(&mut best, guess);
        }
    }
    found
}

/// The price of own context at which steps cost most when each is as a whole on one degree; `near`: a first guess.
fn best_price(demand: &Demand, degrees: &[Degree], near: f64) -> f64 {
    let stride = demand.asks.len().div_ceil(PRICED).max(1);
    let cost = |share: f64| {
        let rates = rates(degrees, share * PRICE_RANGE * near);
        let asks = demand.asks.iter().step_by(stride);
        asks.map(|ask| base(ask, &rates)).sum()
    };
    PRICE_RANGE * near * highest(cost)
}

/// What a degree takes at a price of own context, without haste.
struct Rate<'a> {
    degree: &'a Degree,
    kv: f64,
    /// A decoded token, without the context that it reads.
    token: f64,
}

fn rates(degrees: &[Degree], kv: f64) -> Vec<Rate<'_>> {
    let each = degrees.iter().map(|degree| {
        let paid = kv * degree.kv_tokens / degree.gpus;
        Rate {
            degree,
            kv,
            token: degree.gpus * degree.costs.least_token_s(degree.slots, paid),
        }
    });
    each.collect()
}

impl Rate<'_> {
    /// GPU-seconds of a step without haste.
    fn of(&self, ask: &Ask) -> f64 {
        let costs = &self.degree.costs;
        self.degree.gpus * (self.compute_s(ask) + costs.context_token_s * ask.read)
            + self.token * ask.decoded
            + self.kv * ask.own_read()
    }

    /// Seconds of computing its prompt, beside what a prefill batch takes anyhow.
    fn compute_s(&self, ask: &Ask) -> f64 {
        let costs = &self.degree.costs;
        ask.new * costs.prefill_token_s + ask.pairs * costs.prefill_pair_s
    }

    /// What haste adds to a decoded token beside its own reading: `e` of the module's text.
    fn token_in_haste(&self, haste: f64, count: usize, company_s: f64) -> f64 {
        let Degree {
            gpus,
            costs,
            slots,
            kv_tokens,
        } = self.degree;
        let most = count as f64;
        let lines = costs.lines(*slots);
        let at = |batch: f64, seconds: f64| {
            let wasted = gpus * seconds - self.kv * kv_tokens - self.token * batch;
            haste * (seconds + (batch - 1.0) * company_s) + wasted / batch.min(most)
        };
        let least = lines.map(|line| {
            let on = |batch: f64| at(batch, line.at_none + line.slope * batch);
            // Up to N there may be a valley, past it all is straight.
            let over = gpus * line.at_none - self.kv * kv_tokens;
            let along = haste * (line.slope + company_s);
            let valley = if over > 0.0 && along > 0.0 {
                (over / along).sqrt()
            } else {
                line.first
            };
            let last = line.last.min(most).max(line.first);
            [line.first, valley.clamp(line.first, last), last, line.last]
                .into_iter()
                .map(on)
                .fold(f64::INFINITY, f64::min)
        });
        least.fold(f64::INFINITY, f64::min)
    }
}

fn base(ask: &Ask, rates: &[Rate<'_>]) -> f64 {
    let each = rates.iter().map(|rate| rate.of(ask));
    each.fold(f64::INFINITY, f64::min)
}

/// Everybody, and among them the longest.
struct Crowd<'a> {
    demand: &'a Demand,
    rates: Vec<Rate<'a>>,
    /// GPU-seconds of everything without haste.
    all: f64,
    /// GPU-seconds without haste of the longest trajectories, which are named by index.
    longest: Vec<(usize, f64)>,
    /// Contexts, and tokens that decoded ones are below them, all together.
    companies: Vec<(f64, f64)>,
}

impl<'a> Crowd<'a> {
    fn new(demand: &'a Demand, degrees: &'a [Degree], kv: f64) -> Self {
        let rates = rates(degrees, kv);
        let common = rates.iter().map(|rate| {
            let costs = &rate.degree.costs;
            let pairs = demand.common_pairs * costs.prefill_pair_s;
            rate.degree.gpus * (demand.common * costs.prefill_token_s + pairs)
        });
        let mut all = common.fold(f64::INFINITY, f64::min);
        let mut longest: Vec<(f64, usize, f64)> = Vec::with_capacity(demand.trajectories.len());
        for (index, (steps, idle_s)) in demand.trajectories.iter().enumerate() {
            let asks = &demand.asks[steps.clone()];
            let cost: f64 = asks.iter().map(|ask| base(ask, &rates)).sum();
            let decoded: f64 = asks.iter().map(|ask| ask.decoded).sum();
            let fastest = degrees.iter().map(|one| one.costs.step_s(1, 0));
            let alone = idle_s + decoded * fastest.fold(f64::INFINITY, f64::min);
            all += cost;
            longest.push((alone, index, cost));
        }
        longest.sort_by(|a, b| b.0.total_cmp(&a.0));
        longest.truncate(CANDIDATES);
        let largest = demand
            .asks
            .iter()
            .map(Ask::last_context)
            .fold(0.0, f64::max);
        let companies = (0..=COMPANIES).map(|at| {
            let share = at as f64 / COMPANIES as f64;
            let context = demand.least_context + share * (largest - demand.least_context);
            let below = demand.asks.iter().map(|ask| ask.below(context)).sum();
            (context, below)
        });
        Self {
            companies: companies.collect(),
            demand,
            all,
            longest: longest
                .iter()
                .map(|&(_, index, cost)| (index, cost))
                .collect(),
            rates,
        }
    }

    /// T by one guess.
    fn seconds(&self, guess: Guess, gpus: f64) -> f64 {
        let Guess { count, reading, .. } = guess;
        let haste = guess.haste / count as f64;
        let (context, below) = self.companies[guess.company];
        let extras: Vec<f64> = self
            .rates
            .iter()
            .map(|rate| {
                let own = rate.degree.costs.context_token_s;
                // What is charged for a company below its context, and what it reads, are together least here.
                let company_s = if own < reading {
                    own * context
                } else {
                    reading * context + (own - reading) * self.demand.least_context
                };
                rate.token_in_haste(haste, count, company_s)
            })
            .collect();
        let mut gains: Vec<f64> = self
            .longest
            .iter()
            .map(|&(index, cost)| {
                let (steps, idle_s) = &self.demand.trajectories[index];
                let asks = &self.demand.asks[steps.clone()];
                let in_haste: f64 = asks
                    .iter()
                    .map(|ask| self.in_haste(ask, haste, &extras))
                    .sum();
                in_haste - cost + haste * idle_s
            })
            .collect();
        gains.sort_by(|a, b| b.total_cmp(a));
        let gain: f64 = gains.iter().take(count).sum();
        let charged = guess.haste * reading * below;
        (self.all - charged + gain) / (gpus + guess.haste)
    }

    fn in_haste(&self, ask: &Ask, haste: f64, extras: &[f64]) -> f64 {
        let each = self.rates.iter().zip(extras).map(|(rate, extra)| {
            let costs = &rate.degree.costs;
            let own_s =
                costs.prefill_fixed_s + rate.compute_s(ask) + costs.context_token_s * ask.read;
            rate.of(ask) + extra * ask.decoded + haste * own_s
        });
        each.fold(f64::INFINITY, f64::min)
    }
}
