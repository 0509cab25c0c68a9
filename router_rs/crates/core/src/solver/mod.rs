//! Who goes where, and on how many GPUs: arrays of predicted lengths in, a plan out.
//!
//! A plan cuts the trajectories, ranked longest first, into one group a worker; its makespan is the
//! largest cost of a group. Three solvers find it: [`SolverKind::Dp`] (paper arXiv 2603.28101
//! §5.2), [`SolverKind::Anneal`] (§6.2) and [`SolverKind::Exact`] (parametric search). What a group
//! costs is a [`cost::GroupCost`]: `size_only` is the paper's premise, `simulated` executes the
//! group in closed form.
//!
//! Invariants, held by tests against brute force over all set partitions and all worker multisets:
//! every trajectory is in exactly one group; groups are consecutive ranks; degrees never sum to
//! more than the GPUs given; `exact` is optimal for its cost over all such plans (its docs name the
//! one exception), and over *all* set partitions when the cost is `size_only`.
//!
//! No clock, no threads, no randomness beyond the seed in the request.

mod anneal;
mod balance;
pub mod cost;
mod exact;
mod expected_max;
mod lattice;
mod presorted_dp;
mod prng;
pub mod profile;
mod ranking;
mod simulated_cost;
mod size_only_cost;

use thiserror::Error;

pub use anneal::Cooling;
use cost::GroupCost;
use lattice::Stock;
pub use profile::Profile;
use ranking::Ranking;
use simulated_cost::SimulatedCost;
use size_only_cost::SizeOnlyCost;

/// Which algorithm makes the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SolverKind {
    /// Presorted dynamic programming, workers by MP degree, highest first (paper §5.2). Without
    /// fixed workers: at the best homogeneous degree.
    Dp,
    /// Simulated annealing over the MP degrees with presorted placement inside (paper §6.2,
    /// Algorithm 2).
    Anneal,
    /// Parametric search: partition and degrees at once, optimal, then balanced lexicographically.
    /// Fixed workers are taken in any order unless they are very many of many degrees (then highest
    /// degree first).
    Exact,
}

impl SolverKind {
    /// The solvers by their names.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("dp", Self::Dp),
        ("anneal", Self::Anneal),
        ("exact", Self::Exact),
    ];
}

/// What a group costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostKind {
    /// `longest x T x F(size)`, the paper's premise.
    SizeOnly,
    /// The group executed on the worker: slots, KV capacity, prefill, tool gaps, uncertainty.
    Simulated,
}

impl CostKind {
    /// The costs by their names.
    pub const NAMES: [(&'static str, Self); 2] = [
        ("size_only", Self::SizeOnly),
        ("simulated", Self::Simulated),
    ];
}

/// What is known of the trajectories beyond their lengths. All rates are per predicted output
/// token, so that a longer trajectory is longer in every respect; what is left at zero is not
/// assumed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Workload {
    /// Tokens a trajectory holds in the KV cache now.
    pub context_tokens: f64,
    /// Tokens of it that must be prefilled first (not resident on the worker).
    pub cold_tokens: f64,
    /// New prompt tokens (tool results) that come with each output token.
    pub input_per_output: f64,
    /// Seconds of tool gap that come with each output token.
    pub tool_seconds_per_output: f64,
}

/// One planning problem.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Predicted remaining output tokens, one a trajectory, any order.
    pub lengths: &'a [f64],
    /// Standard deviation of each prediction in tokens; empty when unknown (taken as zero).
    pub sigmas: &'a [f64],
    /// GPUs that the workers may occupy together.
    pub gpus: u32,
    /// MP degrees a worker may have.
    pub degrees: &'a [u32],
    /// Fixed workers by MP degree (placement only); empty lets the solver choose.
    pub workers: &'a [u32],
    /// Which algorithm.
    pub solver: SolverKind,
    /// Which cost.
    pub cost: CostKind,
    /// What else is known of the trajectories.
    pub workload: Workload,
    /// `Dp`: merge trajectories shorter than this many tokens into blocks that stay together (paper
    /// §5.2); zero merges none.
    pub aggregate_below: f64,
    /// `Anneal`: seed of its generator.
    pub seed: u64,
    /// `Anneal`: its temperature schedule.
    pub cooling: Cooling,
}

/// One worker of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedWorker {
    /// MP degree.
    pub degree: u32,
    /// Indices into `Request::lengths`, longest first. Empty only when a fixed worker is too slow
    /// to help.
    pub members: Vec<u32>,
    /// Seconds the group takes.
    pub cost: f64,
}

/// The workers in the order of the ranks they take, longest trajectories first.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Largest cost of a worker, seconds.
    pub makespan: f64,
    /// Sum of the workers' degrees.
    pub gpus_used: u32,
    /// The workers.
    pub workers: Vec<PlannedWorker>,
}

/// Why a problem has no plan. The text names the field and what would help.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SolveError {
    /// Nothing to place.
    #[error("lengths: empty; give at least one predicted length")]
    NoLengths,
    /// A length or sigma that is no finite number >= 0.
    #[error("{field}[{index}]: {value} is not a finite number of tokens >= 0")]
    BadNumber {
        /// `lengths`, `sigmas` or a field of the workload.
        field: &'static str,
        /// Position in the array.
        index: usize,
        /// What stood there.
        value: f64,
    },
    /// `sigmas` has another length than `lengths`.
    #[error("sigmas: {sigmas} values for {lengths} lengths; give one for each or none")]
    SigmaCount {
        /// Number of sigmas.
        sigmas: usize,
        /// Number of lengths.
        lengths: usize,
    },
    /// More than 2^32 - 1 trajectories.
    #[error("lengths: {0} values; at most 4294967295 can be ranked")]
    TooManyLengths(usize),
    /// No degree given or degree zero.
    #[error("degrees: {0}; give MP degrees >= 1, for example 1,2,4,8")]
    BadDegrees(&'static str),
    /// The profile lacks a degree.
    #[error("degrees: the profile has no MP degree {degree}; it has {available:?}")]
    DegreeNotInProfile {
        /// Degree asked for.
        degree: u32,
        /// Degrees there are.
        available: Vec<u32>,
    },
    /// Not even one worker fits.
    #[error("gpus: {gpus} GPUs hold no worker; the smallest degree allowed is {smallest}")]
    TooFewGpus {
        /// GPUs given.
        gpus: u32,
        /// Smallest degree.
        smallest: u32,
    },
    /// Fixed workers need more GPUs than given.
    #[error(
        "workers: their degrees sum to {sum}, more than the {gpus} GPUs given; raise gpus or drop a worker"
    )]
    WorkersExceedGpus {
        /// Sum of degrees.
        sum: u64,
        /// GPUs given.
        gpus: u32,
    },
    /// The profile does not fit its format.
    #[error("profile: {field}: {problem}")]
    Profile {
        /// Path in the profile, such as `degrees.8.F[3]`.
        field: String,
        /// What is wrong and what is wanted.
        problem: String,
    },
    /// Some trajectory fits no allowed worker.
    #[error(
        "no plan: a trajectory of {longest} tokens ends with a context of {context} tokens, more KV than any allowed worker \
         holds; allow a larger degree or more GPUs"
    )]
    DoesNotFit {
        /// Longest predicted length.
        longest: f64,
        /// Its context at the end.
        context: f64,
    },
}

/// Solves one planning problem. Time: see `benches/solver.rs`.
///
/// # Errors
/// [`SolveError`] names the field that does not fit.
pub fn solve(request: &Request<'_>, profile: &Profile) -> Result<Plan, SolveError> {
    let degrees = checked_degrees(request, profile)?;
    let ranking = Ranking::new(request.lengths, request.sigmas)?;
    let workload = checked_workload(&request.workload)?;
    match request.cost {
        CostKind::SizeOnly => {
            let cost = SizeOnlyCost::new(&ranking.lengths, profile, &degrees, &workload)?;
            plan(request, &degrees, &ranking, &cost)
        }
        CostKind::Simulated => {
            let cost = SimulatedCost::new(
                &ranking.lengths,
                &ranking.sigmas,
                profile,
                &degrees,
                &workload,
            )?;
            plan(request, &degrees, &ranking, &cost)
        }
    }
}

fn plan<C: GroupCost>(
    request: &Request<'_>,
    degrees: &[u32],
    ranking: &Ranking,
    cost: &C,
) -> Result<Plan, SolveError> {
    let stock = Stock::new(request.gpus, degrees, request.workers)?;
    let placed = match request.solver {
        SolverKind::Exact => exact::solve(cost, stock),
        SolverKind::Anneal => anneal::solve(cost, &stock, degrees, request.seed, request.cooling),
        SolverKind::Dp => {
            let cuts = ranking.cuts(request.aggregate_below);
            presorted_dp::solve(cost, &stock, &cuts)
        }
    };
    let Some(mut placed) = placed else {
        let longest = ranking.lengths[0];
        let workload = &request.workload;
        return Err(SolveError::DoesNotFit {
            longest,
            context: workload.context_tokens + longest * (1.0 + workload.input_per_output),
        });
    };
    balance::occupy_idle(cost, &mut placed);
    let mut workers: Vec<PlannedWorker> = placed
        .groups
        .iter()
        .map(|group| PlannedWorker {
            degree: degrees[group.shape],
            members: ranking.order[group.head..group.tail].to_vec(),
            cost: cost.cost(group.shape, group.head, group.tail),
        })
        .collect();
    if !request.workers.is_empty() {
        let empty = placed.idle.left_over(degrees).into_iter();
        workers.extend(empty.map(|degree| PlannedWorker {
            degree,
            members: Vec::new(),
            cost: 0.0,
        }));
    }
    Ok(Plan {
        makespan: workers.iter().map(|worker| worker.cost).fold(0.0, f64::max),
        gpus_used: workers.iter().map(|worker| worker.degree).sum(),
        workers,
    })
}

/// The allowed degrees, highest first, each once, each in the profile. A fixed worker allows its
/// own degree.
fn checked_degrees(request: &Request<'_>, profile: &Profile) -> Result<Vec<u32>, SolveError> {
    let wanted = if request.workers.is_empty() {
        request.degrees
    } else {
        request.workers
    };
    let mut degrees = wanted.to_vec();
    degrees.sort_unstable_by(|a, b| b.cmp(a));
    degrees.dedup();
    let Some(&smallest) = degrees.last() else {
        return Err(SolveError::BadDegrees("none given"));
    };
    if smallest == 0 {
        return Err(SolveError::BadDegrees("0 is no MP degree"));
    }
    for &degree in &degrees {
        if !profile.has(degree) {
            return Err(SolveError::DegreeNotInProfile {
                degree,
                available: profile.degrees(),
            });
        }
    }
    if request.workers.is_empty() {
        degrees.retain(|&degree| degree <= request.gpus);
        if degrees.is_empty() {
            return Err(SolveError::TooFewGpus {
                gpus: request.gpus,
                smallest,
            });
        }
    }
    Ok(degrees)
}

fn checked_workload(workload: &Workload) -> Result<Workload, SolveError> {
    for (field, value) in [
        ("context_tokens", workload.context_tokens),
        ("cold_tokens", workload.cold_tokens),
        ("input_per_output", workload.input_per_output),
        ("tool_seconds_per_output", workload.tool_seconds_per_output),
    ] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(SolveError::BadNumber {
                field,
                index: 0,
                value,
            });
        }
    }
    Ok(*workload)
}
