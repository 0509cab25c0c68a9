//! Looking in: what the admin API, metrics and tests read. Nothing here decides.

use crate::event::Outcome;
use crate::machine::Core;
use crate::migration::{Ledger, MoveState};
use crate::step::StepState;
use crate::trajectory::Phase;
use crate::worker::WorkerState;
use crate::{GroupId, Micros, StepId, TrajectoryId, WorkerId};

/// A live step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepView {
    /// Handle.
    pub step: StepId,
    /// Where it stands.
    pub state: StepState,
    /// When it arrived.
    pub arrived_at: Micros,
    /// Worker that it runs on or is queued for.
    pub worker: Option<WorkerId>,
    /// Priority level that the engine knows.
    pub level: Option<u8>,
    /// Attempts so far.
    pub attempts: u32,
    /// The engine is believed to have put it aside.
    pub preempted: bool,
}

/// A trajectory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrajectoryView {
    /// Handle.
    pub trajectory: TrajectoryId,
    /// Where it stands.
    pub phase: Phase,
    /// Its group.
    pub group: Option<GroupId>,
    /// Position among the active ones, 0 for the longest; absent while it is dormant.
    pub rank: Option<usize>,
    /// Expected output tokens still to come.
    pub remaining: u64,
    /// Output tokens so far.
    pub generated: u64,
    /// Answered steps so far.
    pub steps: u32,
    /// Prompt and answer of the last step.
    pub context_tokens: u64,
    /// Where its KV lies.
    pub home: Option<WorkerId>,
    /// How much of it, as far as is known.
    pub resident_tokens: u64,
    /// Since when it has had no live step.
    pub gap_since: Option<Micros>,
    /// Live steps by arrival.
    pub live: Vec<StepView>,
}

/// A worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// Handle.
    pub worker: WorkerId,
    /// Its generation.
    pub generation: u64,
    /// Where it stands.
    pub state: WorkerState,
    /// Model-parallel degree.
    pub degree: u32,
    /// Requests the engine runs at once.
    pub slots: u32,
    /// Steps believed to run there.
    pub running: usize,
    /// Steps believed to be put aside by the engine.
    pub preempted: usize,
    /// Held steps placed there.
    pub queued: usize,
    /// Active trajectories at home there.
    pub homed: usize,
    /// Their expected output tokens still to come.
    pub homed_remaining: u64,
    /// KV capacity in tokens; 0 when unknown.
    pub kv_tokens: u64,
    /// KV tokens counted for them.
    pub kv_committed: u64,
    /// KV tokens in use by its last report.
    pub kv_used: u64,
    /// It could not be reached and is avoided until then.
    pub suspect_until: Option<Micros>,
    /// How much slower than its profile it is believed to be.
    pub speed_scale: f64,
    /// It can send and receive KV.
    pub can_migrate: bool,
    /// Believed microseconds per token of a sequence that runs alone, scale included.
    pub token_us: f64,
    /// What each sequence of the batch adds to it.
    pub token_us_per_seq: f64,
    /// What each token of context in the batch adds to it.
    pub token_us_per_context_token: f64,
    /// Believed prompt tokens per second.
    pub prefill_tokens_per_s: f64,
}

/// What planning needs of one active trajectory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActiveView {
    /// Handle.
    pub trajectory: TrajectoryId,
    /// Expected output tokens still to come.
    pub remaining: u64,
    /// Spread of the logarithm of that length, where a prediction says it.
    pub sigma: Option<f64>,
    /// Prompt and answer of its last step.
    pub context_tokens: u64,
    /// Output tokens of its ended steps.
    pub generated: u64,
    /// The worker its KV lies on.
    pub home: Option<WorkerId>,
}

impl Core {
    /// All active trajectories, by handle.
    pub fn active_views(&self) -> Vec<ActiveView> {
        let ids = self.trajectories.sorted_ids();
        ids.into_iter()
            .filter_map(|id| self.trajectories.get(id))
            .filter(|trajectory| trajectory.ranked)
            .map(|trajectory| ActiveView {
                trajectory: trajectory.id,
                remaining: trajectory.remaining,
                sigma: trajectory.prediction.map(|said| said.length.sigma),
                context_tokens: trajectory.context_tokens,
                generated: trajectory.generated,
                home: self.home_of(trajectory).map(|worker| worker.id),
            })
            .collect()
    }

    /// A trajectory, if it is known.
    pub fn trajectory_view(&self, id: TrajectoryId) -> Option<TrajectoryView> {
        let trajectory = self.trajectories.get(id)?;
        let live = trajectory
            .live
            .iter()
            .filter_map(|&step| self.step_view(step))
            .collect();
        Some(TrajectoryView {
            trajectory: id,
            phase: trajectory.phase,
            group: trajectory.group,
            rank: trajectory
                .ranked
                .then(|| self.active.before(id, trajectory.remaining).count),
            remaining: trajectory.remaining,
            generated: trajectory.generated,
            steps: trajectory.steps,
            context_tokens: trajectory.context_tokens,
            home: self.home_of(trajectory).map(|worker| worker.id),
            resident_tokens: self.resident_tokens(trajectory),
            gap_since: trajectory.gap_since,
            live,
        })
    }

    /// Moves of KV: those that have not ended, and what came of the others.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// A live step.
    pub fn step_view(&self, id: StepId) -> Option<StepView> {
        let step = self.steps.get(id)?;
        let preempted = step.attempt.is_some_and(|attempt| {
            self.workers
                .get(attempt.worker)
                .is_some_and(|w| w.preempted.iter().any(|seat| seat.step == id))
        });
        Some(StepView {
            step: id,
            state: step.state,
            arrived_at: step.arrived_at,
            worker: step
                .attempt
                .map(|attempt| attempt.worker)
                .or(step.queued_at),
            level: step.attempt.map(|attempt| attempt.level),
            attempts: step.attempts,
            preempted,
        })
    }

    /// All workers by id.
    pub fn worker_views(&self) -> Vec<WorkerView> {
        self.workers
            .iter()
            .map(|worker| WorkerView {
                worker: worker.id,
                generation: worker.generation,
                state: worker.state,
                degree: worker.degree,
                slots: worker.slots,
                running: worker.running.len(),
                preempted: worker.preempted.len(),
                queued: worker.queue.len(),
                homed: worker.homed.len(),
                homed_remaining: worker.homed.total_weight(),
                kv_tokens: worker.kv_tokens,
                kv_committed: worker.committed(),
                kv_used: worker.kv_used(),
                suspect_until: (worker.suspect_until > self.now).then_some(worker.suspect_until),
                speed_scale: worker.belief.scale(),
                can_migrate: worker.link.is_some(),
                token_us: worker.belief.token_us(0.0, 0.0),
                token_us_per_seq: worker.belief.token_us(1.0, 0.0)
                    - worker.belief.token_us(0.0, 0.0),
                token_us_per_context_token: worker.belief.token_us(0.0, 1.0)
                    - worker.belief.token_us(0.0, 0.0),
                prefill_tokens_per_s: 1e9 / worker.belief.prefill_us(1000),
            })
            .collect()
    }

    /// Numbers by name: what is the case now, and totals (`*_total`).
    pub fn stats(&self) -> Vec<(String, u64)> {
        let mut stats: Vec<(String, u64)> = Vec::with_capacity(48);
        let mut put = |name: &str, value: u64| stats.push((name.to_owned(), value));
        put("trajectories", self.trajectories.len() as u64);
        put("trajectories_active", self.active.len() as u64);
        for phase in Phase::ALL {
            put(
                &format!("trajectories_{}", phase.name()),
                self.phases[phase as usize],
            );
        }
        put("steps_live", self.steps.len() as u64);
        put("steps_held_admission", self.applicants.len() as u64);
        put("steps_held_slot", self.queued as u64);
        put("steps_held_no_worker", self.unplaced.len() as u64);
        put("dispatch_paused", u64::from(self.paused));
        put("predictions_in_use", u64::from(self.trust.holds()));
        put("workers_linked", self.workers.links() as u64);
        let at_worker = |of: fn(&crate::worker::Worker) -> usize| {
            self.workers.iter().map(of).sum::<usize>() as u64
        };
        put("steps_at_worker", at_worker(crate::worker::Worker::seats));
        put(
            "steps_preempted",
            at_worker(|worker| worker.preempted.len()),
        );
        for state in [
            WorkerState::Active,
            WorkerState::Draining,
            WorkerState::Down,
        ] {
            let count = self
                .workers
                .iter()
                .filter(|worker| worker.state == state)
                .count();
            put(&format!("workers_{}", state.name()), count as u64);
        }
        put("timers", self.timers.len() as u64);
        put("transfers", self.ledger.transfers().count() as u64);
        put("transfers_requested", self.ledger.requests().count() as u64);
        put("groups", self.groups.len() as u64);
        put(
            "plan_version",
            self.plan.as_ref().map_or(0, |plan| plan.version),
        );
        put("journal_truncated", u64::from(self.journal_is_truncated()));
        let (counters, moves) = (self.counters(), &self.ledger.totals);
        for (state, &ended) in MoveState::ENDS.into_iter().zip(&moves.ended) {
            put(&format!("migrations_{}_total", state.name()), ended);
        }
        for outcome in Outcome::ALL {
            put(
                &format!("steps_{}_total", outcome.name()),
                counters.ended[outcome as usize],
            );
        }
        for (name, value) in [
            ("events_total", counters.events),
            ("steps_arrived_total", counters.arrived),
            ("steps_adopted_total", counters.adopted),
            ("steps_ended_total", counters.ended.iter().sum()),
            ("dispatches_total", counters.dispatched),
            ("rejects_total", counters.rejected),
            ("attempts_failed_total", counters.attempts_failed),
            ("withdrawals_total", counters.withdrawn),
            ("preemptions_total", counters.preemptions),
            ("moves_total", counters.moves),
            ("set_aside_total", counters.set_aside),
            ("migrations_requested_total", moves.requested),
            ("migrations_started_total", moves.started),
            ("migrations_hidden_total", moves.hidden),
            ("migrations_waited_for_total", moves.waits),
            ("migrations_found_total", moves.found),
            ("migrations_not_found_total", moves.not_found),
            ("migrated_tokens_total", moves.tokens),
            ("stolen_total", counters.stolen),
            ("holds_expired_total", counters.holds_expired),
            ("trajectories_forgotten_total", counters.expired),
            ("stale_events_total", counters.stale_events),
            ("refused_events_total", counters.refused_events),
            ("clock_backwards_total", counters.clock_backwards),
            ("illegal_moves_total", counters.illegal_moves),
        ] {
            put(name, value);
        }
        stats
    }
}
