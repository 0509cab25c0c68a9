//! What came of a run. Everything is derived from what was written down of each trajectory, step and worker.

use heddle_core::counters::Counters;
use heddle_core::migration::{MoveState, Totals as MoveTotals};
use serde::Serialize;

use crate::engine::Totals;
use crate::workload::Workload;

/// Moments at which the number of active trajectories is reported.
const SAMPLES: usize = 200;
/// Classes of length in which holds are reported: tenths of the trajectories, shortest first.
const CLASSES: usize = 10;

/// What was written down of one trajectory. Times are seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Trace {
    /// When it began.
    pub began_at: f64,
    /// When its last step ended; none if it never did.
    pub ended_at: Option<f64>,
    /// A worker refused it: it needs more KV than there is.
    pub refused: bool,
    /// Output tokens that it was given.
    pub output: u64,
    /// Time its steps were held by the core.
    pub held_s: f64,
    /// Longest hold of one of its steps.
    pub longest_hold_s: f64,
    /// Time its steps waited for a place in a batch, holds included.
    pub queued_s: f64,
    /// Time from first to last tokens.
    pub decode_s: f64,
    /// What that would have been alone on the same workers.
    pub decode_alone_s: f64,
    /// Context tokens computed that had been computed before, on another worker or before they were evicted.
    pub recomputed: u64,
    /// Attempts that were lost with their worker.
    pub lost_attempts: u64,
}

/// One step on a worker. Times are seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Stay {
    /// Index of the worker.
    pub worker: usize,
    /// Index of the trajectory.
    pub trajectory: usize,
    /// Number of the step, from 0.
    pub step: usize,
    /// When it was admitted to a batch.
    pub from_s: f64,
    /// When its last token was there.
    pub to_s: f64,
}

/// What was written down of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WorkerTrace {
    /// MP degree.
    pub degree: u32,
    /// What it did, over all its lives.
    pub totals: Totals,
    /// Most KV tokens that requests needed at once.
    pub most_kv_used: u64,
    /// KV tokens that it has.
    pub kv_tokens: u64,
    /// Cached tokens that were evicted.
    pub evicted: u64,
}

/// What was written down of all transfers that landed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Carried {
    /// Tokens that went over the network.
    pub tokens: u64,
    /// Seconds of all of them together.
    pub seconds: f64,
}

/// Moves of KV.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Migrations {
    /// Asked for.
    pub requested: u64,
    /// Transfers that began.
    pub started: u64,
    /// Transfers that were complete.
    pub landed: u64,
    /// Of these: in the tool gap, before the next step came.
    pub hidden: u64,
    /// Steps that waited for a transfer.
    pub waited_for: u64,
    /// Refused by a worker, or lost with it.
    pub failed: u64,
    /// Not wanted any more.
    pub cancelled: u64,
    /// Not complete in time.
    pub expired: u64,
    /// Landed ones whose next step found the KV, and did not.
    pub found: u64,
    /// See `found`.
    pub not_found: u64,
    /// KV tokens that went over the network.
    pub tokens: u64,
    /// Seconds of all transfers together.
    pub seconds: f64,
}

impl Migrations {
    fn new(of: &MoveTotals, carried: Carried) -> Self {
        let ended = |state| {
            let place = MoveState::ENDS.iter().position(|&end| end == state);
            place.map_or(0, |place| of.ended[place])
        };
        Self {
            requested: of.requested,
            started: of.started,
            landed: ended(MoveState::Landed),
            hidden: of.hidden,
            waited_for: of.waits,
            failed: ended(MoveState::Failed),
            cancelled: ended(MoveState::Cancelled),
            expired: ended(MoveState::Expired),
            found: of.found,
            not_found: of.not_found,
            tokens: carried.tokens,
            seconds: carried.seconds,
        }
    }
}

/// Holds of the trajectories of one class of length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HoldClass {
    /// Most output tokens in this class.
    pub output_tokens_up_to: u64,
    /// Mean time that a trajectory was held, all steps together.
    pub mean_s: f64,
    /// Longest hold of one step.
    pub longest_s: f64,
}

/// The whole report. Times are seconds of modelled time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// End of the last trajectory.
    pub makespan_s: f64,
    /// Output tokens a second until then.
    pub tokens_per_s: f64,
    /// MP degrees of the workers.
    pub degrees: Vec<u32>,
    /// Trajectories.
    pub trajectories: usize,
    /// Steps.
    pub steps: usize,
    /// Trajectories that need more KV than a worker has.
    pub refused_trajectories: usize,
    /// Output tokens.
    pub output_tokens: u64,
    /// Time the trajectory with the most output waited for places in batches.
    pub queue_s_longest: f64,
    /// The same for the trajectory that ended last.
    pub queue_s_last: f64,
    /// Mean over the longest hundredth.
    pub queue_s_longest_percent: f64,
    /// Mean over all.
    pub queue_s_mean: f64,
    /// Decode time over what it would have been alone, all tokens together.
    pub interference: f64,
    /// The same for the trajectory with the most output.
    pub interference_longest: f64,
    /// Tokens prefilled.
    pub prefilled_tokens: u64,
    /// Prompt tokens found in caches.
    pub cached_tokens: u64,
    /// Tokens computed again: moved, evicted, preempted or retracted.
    pub recomputed_tokens: u64,
    /// Sequences that engines set back for a better one.
    pub preemptions: u64,
    /// Sequences that engines set back for lack of KV.
    pub retractions: u64,
    /// Trajectories that got another home; their context is computed again there.
    pub moves: u64,
    /// Trajectories that got another home and their KV with it.
    pub migrations: Migrations,
    /// Held steps that another worker took from a queue.
    pub stolen: u64,
    /// Attempts lost with their workers.
    pub lost_attempts: u64,
    /// Steps that the core rejected; the agent tried again.
    pub rejects: u64,
    /// Holds by length, shortest first.
    pub holds: Vec<HoldClass>,
    /// (seconds, trajectories that have begun and not ended).
    pub active: Vec<(f64, usize)>,
    /// When each trajectory ended, by index; none if it did not.
    pub completion_s: Vec<Option<f64>>,
    /// Output tokens of each trajectory.
    pub lengths: Vec<u64>,
    /// The workers.
    pub workers: Vec<WorkerTrace>,
    /// When each step ran where; only if it was asked for.
    pub timeline: Vec<Stay>,
    /// Digest of all the core's actions in order: equal for equal decisions.
    pub digest: String,
    /// Plans that were made on the way and put in force.
    pub plans_on_the_way: u64,
    /// Events that the core took in.
    pub events: u64,
}

/// What the report is made from.
pub(crate) struct Findings<'a> {
    pub workload: &'a Workload,
    pub traces: &'a [Trace],
    pub workers: Vec<WorkerTrace>,
    pub timeline: Vec<Stay>,
    pub counters: &'a Counters,
    pub moves: &'a MoveTotals,
    pub carried: Carried,
    pub plans_on_the_way: u64,
    pub digest: String,
}

impl Report {
    pub(crate) fn new(findings: Findings<'_>) -> Self {
        let Findings {
            workload,
            traces,
            workers,
            timeline,
            counters,
            moves,
            carried,
            plans_on_the_way,
            digest,
        } = findings;
        let n = traces.len();
        let makespan = traces
            .iter()
            .filter_map(|trace| trace.ended_at)
            .fold(0.0, f64::max);
        let output: u64 = traces.iter().map(|trace| trace.output).sum();
        let lengths: Vec<u64> = workload
            .scripts()
            .iter()
            .map(crate::Script::output)
            .collect();
        let mut by_length: Vec<usize> = (0..n).collect();
        by_length.sort_by_key(|&i| (lengths[i], i));
        let longest = by_length.last().map_or(Trace::default(), |&i| traces[i]);
        let last = traces.iter().max_by(|a, b| {
            a.ended_at
                .unwrap_or(0.0)
                .total_cmp(&b.ended_at.unwrap_or(0.0))
        });
        let top = &by_length[n - n.div_ceil(100)..];
        let queued = |of: &[usize]| {
            of.iter().map(|&i| traces[i].queued_s).sum::<f64>() / of.len().max(1) as f64
        };
        let decode: f64 = traces.iter().map(|trace| trace.decode_s).sum();
        let alone: f64 = traces.iter().map(|trace| trace.decode_alone_s).sum();
        let sum =
            |of: fn(&Totals) -> u64| workers.iter().map(|worker| of(&worker.totals)).sum::<u64>();
        Self {
            makespan_s: makespan,
            tokens_per_s: ratio(output as f64, makespan),
            degrees: workers.iter().map(|worker| worker.degree).collect(),
            trajectories: n,
            steps: workload.steps(),
            refused_trajectories: traces.iter().filter(|trace| trace.refused).count(),
            output_tokens: output,
            queue_s_longest: longest.queued_s,
            queue_s_last: last.map_or(0.0, |trace| trace.queued_s),
            queue_s_longest_percent: queued(top),
            queue_s_mean: queued(&by_length),
            interference: ratio(decode, alone),
            interference_longest: ratio(longest.decode_s, longest.decode_alone_s),
            prefilled_tokens: sum(|totals| totals.prefilled),
            cached_tokens: sum(|totals| totals.cached),
            recomputed_tokens: sum(|totals| totals.prefilled_again)
                + traces.iter().map(|trace| trace.recomputed).sum::<u64>(),
            preemptions: sum(|totals| totals.preempted),
            retractions: sum(|totals| totals.retracted),
            moves: counters.moves,
            migrations: Migrations::new(moves, carried),
            stolen: counters.stolen,
            lost_attempts: traces.iter().map(|trace| trace.lost_attempts).sum(),
            rejects: counters.rejected,
            holds: hold_classes(traces, &lengths, &by_length),
            active: active_over_time(traces, makespan),
            completion_s: traces.iter().map(|trace| trace.ended_at).collect(),
            lengths,
            workers,
            timeline,
            digest,
            plans_on_the_way,
            events: counters.events,
        }
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

fn hold_classes(traces: &[Trace], lengths: &[u64], by_length: &[usize]) -> Vec<HoldClass> {
    let size = by_length.len().div_ceil(CLASSES).max(1);
    by_length
        .chunks(size)
        .map(|class| HoldClass {
            output_tokens_up_to: class.last().map_or(0, |&i| lengths[i]),
            mean_s: class.iter().map(|&i| traces[i].held_s).sum::<f64>() / class.len() as f64,
            longest_s: class
                .iter()
                .map(|&i| traces[i].longest_hold_s)
                .fold(0.0, f64::max),
        })
        .collect()
}

fn active_over_time(traces: &[Trace], makespan: f64) -> Vec<(f64, usize)> {
    let sorted = |mut times: Vec<f64>| {
        times.sort_unstable_by(f64::total_cmp);
        times
    };
    let began = sorted(traces.iter().map(|trace| trace.began_at).collect());
    let ended = sorted(traces.iter().filter_map(|trace| trace.ended_at).collect());
    (0..=SAMPLES)
        .map(|i| {
            // In this order, so that the last one is the makespan itself.
            let at = makespan * (i as f64 / SAMPLES as f64);
            let running = began.partition_point(|&time| time <= at);
            let over = ended.partition_point(|&time| time <= at);
            (at, running.saturating_sub(over))
        })
        .collect()
}
