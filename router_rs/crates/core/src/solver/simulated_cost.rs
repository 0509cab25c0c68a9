//! The group executed, in closed form.
//!
//! A worker runs its group longest first, all trajectories there from the start. A trajectory
//! alternates between decoding and tool gaps of γ seconds an output token; with x of them alive the
//! mean decode batch b solves `b (t(b) + γ) = x t(b)`, and each advances one token every `τ(x) =
//! t(b) + γ` seconds, t being the profile's step time at the context already held. At most A are
//! alive at a time: as many as keep all slots busy, and as the KV capacity holds (a trajectory
//! keeps its KV through its gaps).
//!
//! * **Decode.** W tokens in all, L of them the longest's, advance in `K = max(L, W / A)` rounds of
//!   W / K trajectories on average: K τ(W / K) seconds. So the longest pays for its company, and a
//!   full worker for its work at the throughput A / τ(A). Where the step time is affine in the
//!   batch, as it is within a few per cent below the compute bound, this is exact whatever the
//!   order.
//! * **Uncertainty.** L is how long the longest of the group is *expected* to be
//!   ([`super::expected_max`]).
//! * **Context and prefill.** KV read because contexts grow costs κ (1 + ρ) L² / 2 a trajectory,
//!   tool results cost ρ L / prefill rate. A trajectory pays its own in full and the others' as far
//!   as it is decoding at the same time (its duty, t / (t + γ)); the worker pays all.
//!
//! So cost = max(longest path in its company, work / throughput), as the design asks; infinite if
//! the longest trajectory's context outgrows the KV capacity. It never falls when a member joins or
//! gets longer: τ rises and x / τ(x) does not fall, so `K τ(W / K)` rises in K and in W; A only
//! shrinks with longer members; sums only grow. O(log n) an evaluation, by prefix sums.

use super::cost::GroupCost;
use super::expected_max::ExpectedMax;
use super::profile::{DegreeProfile, StepProfile};
use super::{Profile, SolveError, Workload};

/// Seconds a token of each of x live trajectories, τ(x), as straight lines between knots (two an
/// octave).
struct Pace {
    /// (x, τ(x)), x rising from 1 to `most_alive`.
    knots: Vec<(f64, f64)>,
    /// Largest x: more would only queue for slots.
    most_alive: f64,
    kv_tokens: f64,
    /// κ (1 + ρ) / 2: seconds a squared token of length.
    growth: f64,
    /// Seconds a token of length spent on prefilling tool results.
    prefill: f64,
    /// Seconds a trajectory spent on prefilling what it holds already.
    cold: f64,
}

impl Pace {
    fn new(steps: &StepProfile, workload: &Workload) -> Self {
        let gap = workload.tool_seconds_per_output;
        let at = |batch: f64| steps.step_seconds(batch, workload.context_tokens);
        let slots = f64::from(steps.slots);
        // As many as keep every slot busy on average.
        let most_alive = slots * (1.0 + gap / at(slots));
        let tau = |alive: f64| {
            // Bisection on the batch; `batch (1 + γ / t(batch))` rises with the batch because
            // throughput does.
            let (mut low, mut high) = (0.0, slots.min(alive));
            for _ in 0..60 {
                let batch = f64::midpoint(low, high);
                if batch * (1.0 + gap / at(batch)) < alive {
                    low = batch;
                } else {
                    high = batch;
                }
            }
            at(high) + gap
        };
        let mut knots = vec![(1.0, tau(1.0))];
        let mut alive = 1.0;
        while alive < most_alive {
            let (before, seconds) = knots[knots.len() - 1];
            alive = (alive + 1.0).max((1.5 * alive).floor()).min(most_alive);
            // Rounding may not break what the profile holds: τ never falls, x / τ(x) never falls.
            knots.push((alive, tau(alive).max(seconds).min(seconds * alive / before)));
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

    fn tau(&self, alive: f64) -> f64 {
        let right = self.knots.partition_point(|&(at, _)| at < alive);
        if right == 0 || right == self.knots.len() {
            return self.knots[right.saturating_sub(1)].1;
        }
        let ((x0, t0), (x1, t1)) = (self.knots[right - 1], self.knots[right]);
        t0 + (t1 - t0) * ((alive - x0) / (x1 - x0))
    }
}

/// Prefix sums over ranked lengths: `at[i]` is the sum over ranks below i.
struct Prefix(Vec<f64>);

impl Prefix {
    fn new(values: impl Iterator<Item = f64>) -> Self {
        let mut sum = 0.0;
        Self(
            std::iter::once(0.0)
                .chain(values.map(|value| {
                    sum += value;
                    sum
                }))
                .collect(),
        )
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

    /// How many of `head..tail`, longest first, can be alive at a time: as the slots allow where
    /// their KV fits together, else as many as fit, at least one.
    fn most_alive(&self, pace: &Pace, head: usize, tail: usize) -> f64 {
        if self.held(head, tail) <= pace.kv_tokens {
            return pace.most_alive;
        }
        let (mut fits, mut fails) = (head + 1, tail);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.held(head, middle) <= pace.kv_tokens {
                fits = middle;
            } else {
                fails = middle;
            }
        }
        pace.most_alive.min((fits - head) as f64)
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
        let first = self.lengths[head];
        if self.workload.context_tokens + (1.0 + self.workload.input_per_output) * first
            > pace.kv_tokens
        {
            return f64::INFINITY;
        }
        let size = (tail - head) as f64;
        let (work, squares) = (self.sums.over(head, tail), self.squares.over(head, tail));
        let most = self.most_alive(pace, head, tail);
        let longest = self.expected_max.of(head, tail);
        let cold = pace.cold * size;

        let rounds = longest.max(work / most);
        let decode = if rounds > 0.0 {
            rounds * pace.tau(work / rounds)
        } else {
            0.0
        };
        // The duty of the company without regard to KV: with it, a longer member could lower it.
        let tau = pace.tau(size.min(pace.most_alive));
        let duty = (tau - self.workload.tool_seconds_per_output) / tau;
        let own = pace.growth * longest * longest + pace.prefill * longest;
        let others = pace.growth * (squares - first * first).max(0.0)
            + pace.prefill * (work - first).max(0.0);
        let path = decode + own + duty * others + cold;

        let throughput =
            work * pace.tau(most) / most + pace.growth * squares + pace.prefill * work + cold;
        path.max(throughput)
    }
}
