//! The group executed, in closed form.
//!
//! A worker runs its group longest first, all trajectories there from the start. A trajectory alternates between decoding and tool gaps of
//! γ seconds an output token; with k of them alive the mean decode batch b solves `b (t(b) + γ) = k t(b)`, and each advances one token
//! every `τ(k) = t(b) + γ` seconds, t being the profile's step time at the context already held. At most A are alive at a time:
//! as many as keep all slots busy, and as the KV capacity holds (a trajectory keeps its KV through its gaps).
//!
//! * **Drain.** If all k <= A: as the shorter ones end, the rest run faster: `Σ_j (L_j - L_{j+1}) τ(j)`. This is exact for a worker whose step time
//!   depends on the batch alone.
//! * **Turns.** If k > A, the A longest run and the others fill the places of those that end, so the batch stays full until step s*,
//!   where the places freed have absorbed the others' tokens: s* τ(A), then the drain of what is longer than s*.
//! * **Uncertainty.** The longest is as long as the longest of the group is *expected* to be ([`super::expected_max`]).
//! * **Context and prefill.** KV read because contexts grow costs κ (1 + ρ) L² / 2 a trajectory, tool results cost ρ L / prefill rate. A
//!   trajectory pays its own in full and the others' as far as it is decoding at the same time (its duty, t / (t + γ)).
//! * **Throughput.** It never takes less than all work at the best throughput, context and prefill in full.
//!
//! So (design: "a group's cost is not its longest member alone") cost = max(longest path in its company, work / throughput), infinite if
//! the longest trajectory's context outgrows the KV capacity. It never falls when a member joins at either end; each term is so:
//! τ rises and k / τ(k) does not fall, A only shrinks with longer members, and sums only grow. O(log n) an evaluation, by prefix sums.

use super::cost::GroupCost;
use super::expected_max::ExpectedMax;
use super::profile::{DegreeProfile, StepProfile};
use super::{Profile, SolveError, Workload};

/// Seconds a token of each of k live trajectories, τ(k), as straight lines between knots (two an octave).
struct Pace {
    knots: Vec<Knot>,
    /// Largest k: more would only queue for slots.
    most_alive: usize,
    kv_tokens: f64,
    /// κ (1 + ρ) / 2: seconds a squared token of length.
    growth: f64,
    /// Seconds a token of length spent on prefilling tool results.
    prefill: f64,
    /// Seconds a trajectory spent on prefilling what it holds already.
    cold: f64,
}

/// τ at `alive`, and its slope from the knot before.
struct Knot {
    alive: usize,
    tau: f64,
    slope: f64,
}

impl Pace {
    fn new(steps: &StepProfile, workload: &Workload) -> Self {
        let gap = workload.tool_seconds_per_output;
        let at = |batch: f64| steps.step_seconds(batch, workload.context_tokens);
        let slots = f64::from(steps.slots);
        // As many as keep every slot busy on average.
        let most_alive = (slots * (1.0 + gap / at(slots))).max(1.0) as usize;
        let tau = |alive: usize| {
            // Bisection on the batch; `batch (1 + γ / t(batch))` rises with the batch because throughput does.
            let (mut low, mut high) = (0.0, slots.min(alive as f64));
            for _ in 0..60 {
                let batch = f64::midpoint(low, high);
                if batch * (1.0 + gap / at(batch)) < alive as f64 { low = batch } else { high = batch }
            }
            at(high) + gap
        };
        let mut knots: Vec<Knot> = Vec::new();
        let mut alive = 1;
        loop {
            // Rounding may not break what the profile holds: τ never falls, k / τ(k) never falls.
            let seconds = match knots.last() {
                None => tau(alive),
                Some(last) => tau(alive).max(last.tau).min(last.tau * alive as f64 / last.alive as f64),
            };
            let slope = knots.last().map_or(seconds, |last| (seconds - last.tau) / (alive - last.alive) as f64);
            knots.push(Knot { alive, tau: seconds, slope });
            if alive >= most_alive {
                break;
            }
            alive = (alive + 1).max(alive * 3 / 2).min(most_alive);
        }
        let grown = 1.0 + workload.input_per_output;
        Self {
            knots,
            most_alive,
            kv_tokens: steps.kv_tokens,
            growth: steps.seconds_per_context_token * grown / 2.0,
            prefill: workload.input_per_output / steps.prefill_tokens_per_second,
            cold: workload.cold_tokens / steps.prefill_tokens_per_second,
        }
    }

    fn tau(&self, alive: usize) -> f64 {
        let knot = &self.knots[self.knots.partition_point(|knot| knot.alive < alive)];
        knot.tau - knot.slope * (knot.alive - alive) as f64
    }
}

/// Prefix sums over ranked lengths: `at[i]` is the sum over ranks below i.
struct Prefix(Vec<f64>);

impl Prefix {
    fn new(values: impl Iterator<Item = f64>) -> Self {
        let mut sum = 0.0;
        Self(std::iter::once(0.0).chain(values.map(|value| {
            sum += value;
            sum
        })).collect())
    }

    fn over(&self, from: usize, to: usize) -> f64 {
        self.0[to] - self.0[from]
    }
}

/// Cost of groups executed longest first; see the module.
pub(super) struct SimulatedCost<'a> {
    lengths: &'a [f64],
    expected_max: ExpectedMax<'a>,
    sums: Prefix,
    squares: Prefix,
    workload: Workload,
    paces: Vec<Pace>,
}

impl<'a> SimulatedCost<'a> {
    pub(super) fn new(
        lengths: &'a [f64],
        sigmas: &'a [f64],
        profile: &Profile,
        degrees: &[u32],
        workload: &Workload,
    ) -> Result<Self, SolveError> {
        let paces = degrees
            .iter()
            .map(|&degree| match profile.degree(degree)? {
                DegreeProfile::Steps(steps) => Ok(Pace::new(steps, workload)),
                DegreeProfile::Factors { .. } => Err(SolveError::Profile {
                    field: format!("degrees.{degree}"),
                    problem: "has only T and F; the simulated cost needs batches, step_seconds and slots. Use such a profile, or \
                              the size_only cost"
                        .to_owned(),
                }),
            })
            .collect::<Result<_, SolveError>>()?;
        Ok(Self {
            lengths,
            expected_max: ExpectedMax::new(lengths, sigmas),
            sums: Prefix::new(lengths.iter().copied()),
            squares: Prefix::new(lengths.iter().map(|length| length * length)),
            workload: *workload,
            paces,
        })
    }

    /// Mean KV tokens that ranks `from..to` hold together over their lives.
    fn held(&self, from: usize, to: usize) -> f64 {
        self.workload.context_tokens * (to - from) as f64
            + f64::midpoint(1.0, self.workload.input_per_output) * self.sums.over(from, to)
    }

    /// How many of `head..tail`, longest first, are alive at a time at most.
    fn alive(&self, pace: &Pace, head: usize, tail: usize) -> usize {
        let most = pace.most_alive.min(tail - head);
        if self.held(head, head + most) <= pace.kv_tokens {
            return most;
        }
        let (mut fits, mut fails) = (1, most);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.held(head, head + middle) <= pace.kv_tokens { fits = middle } else { fails = middle }
        }
        fits
    }

    /// Seconds until ranks `head..head + alive` have run from token `from` to their ends, the first one to `longest`; those shorter than
    /// `from` are over.
    fn drain(&self, pace: &Pace, head: usize, alive: usize, from: f64, longest: f64) -> f64 {
        let first = &pace.knots[0];
        let mut seconds = first.tau * (longest - from).max(0.0);
        let mut before = first.alive;
        for knot in &pace.knots[1..] {
            if before >= alive {
                break;
            }
            let to = knot.alive.min(alive);
            seconds += knot.slope * (self.sums.over(head + before, head + to) - (to - before) as f64 * from);
            before = to;
        }
        seconds
    }

    /// Step at which the last of the waiting tokens find a place, and how many of the `alive` longest are longer than that.
    fn full_until(&self, head: usize, tail: usize, alive: usize) -> (f64, usize) {
        let waiting = self.sums.over(head + alive, tail);
        // Places freed until the j-th longest (from 0) ends, by those after it.
        let freed = |j: usize| {
            (alive - j) as f64 * self.lengths[head + j] - self.sums.over(head + j, head + alive)
        };
        let (mut low, mut high) = (0, alive - 1);
        // Smallest j with freed(j) <= waiting; freed(alive - 1) is zero.
        while low < high {
            let middle = low + (high - low) / 2;
            if freed(middle) <= waiting { high = middle } else { low = middle + 1 }
        }
        let step = (waiting + self.sums.over(head + low, head + alive)) / (alive - low) as f64;
        (step, low)
    }
}

impl GroupCost for SimulatedCost<'_> {
    fn ranks(&self) -> usize {
        self.lengths.len()
    }

    fn shapes(&self) -> usize {
        self.paces.len()
    }

    fn cost(&self, shape: usize, head: usize, tail: usize) -> f64 {
        if head == tail {
            return 0.0;
        }
        let pace = &self.paces[shape];
        let grown = 1.0 + self.workload.input_per_output;
        if self.workload.context_tokens + grown * self.lengths[head] > pace.kv_tokens {
            return f64::INFINITY;
        }
        let size = tail - head;
        let alive = self.alive(pace, head, tail);
        let longest = self.expected_max.of(head, tail);
        let decode = if alive == size {
            self.drain(pace, head, size, 0.0, longest)
        } else {
            let (full_until, longer) = self.full_until(head, tail, alive);
            full_until * pace.tau(alive) + self.drain(pace, head, longer, full_until, longest)
        };
        let work = self.sums.over(head, tail);
        let squares = self.squares.over(head, tail);
        let gap = self.workload.tool_seconds_per_output;
        // Of the company without regard to KV: with it, a longer member could lower the duty.
        let tau = pace.tau(size.min(pace.most_alive));
        let duty = (tau - gap) / tau;
        let own = pace.growth * longest * longest + pace.prefill * longest;
        let head_length = self.lengths[head];
        let others = pace.growth * (squares - head_length * head_length).max(0.0) + pace.prefill * (work - head_length).max(0.0);
        let cold = pace.cold * size as f64;
        let path = decode + own + duty * others + cold;
        let most = if alive < size { alive } else { pace.most_alive };
        let throughput = work * pace.tau(most) / most as f64 + pace.growth * squares + pace.prefill * work + cold;
        path.max(throughput)
    }
}
