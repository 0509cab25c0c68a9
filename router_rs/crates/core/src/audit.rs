//! Everything that is kept beside the live sets, computed again from them and compared.

use std::collections::BTreeMap;

use crate::machine::Core;
use crate::step::{StepState, Tally};
use crate::timer::Timer;
use crate::trajectory::Phase;
use crate::worker::{Queued, WorkerState};
use crate::{StepId, WorkerId};

#[derive(Default)]
struct Seen {
    seats: BTreeMap<WorkerId, usize>,
    queued: BTreeMap<WorkerId, usize>,
    homed: BTreeMap<WorkerId, (usize, u64, u64, u64)>,
    applicants: usize,
    unplaced: usize,
    phases: [u64; Phase::ALL.len()],
    members: BTreeMap<u64, u32>,
    ranked: (usize, u64),
    gap_timers: usize,
    hold_timers: usize,
}

impl Core {
    /// What does not hold of the state; empty when all is well. Looks at everything: for tests, and for idle time.
    pub fn audit(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut seen = Seen::default();
        for id in self.trajectories.sorted_ids() {
            self.audit_trajectory(id, &mut seen, &mut faults);
        }
        for id in self.steps.sorted_ids() {
            self.audit_step(id, &mut seen, &mut faults);
        }
        self.audit_workers(&seen, &mut faults);
        self.audit_whole(&seen, &mut faults);
        faults
    }

    fn audit_trajectory(&self, id: u64, seen: &mut Seen, faults: &mut Vec<String>) {
        let Some(trajectory) = self.trajectories.get(id) else {
            return;
        };
        let mut fault = |what: String| faults.push(format!("trajectory {id}: {what}"));
        seen.phases[trajectory.phase as usize] += 1;
        let mut tally = Tally::default();
        for &step in trajectory.live.iter() {
            match self.steps.get(step) {
                Some(step) if step.trajectory == id => tally.enter(step.state),
                _ => fault(format!("live step {step} is not its own")),
            }
        }
        if tally != trajectory.tally {
            fault(format!("tally {:?} of steps {tally:?}", trajectory.tally));
        }
        if trajectory.phase_now() != trajectory.phase {
            fault(format!("phase {:?} of steps {tally:?}", trajectory.phase));
        }
        if trajectory.finishing && tally.total() == 0 {
            fault("finished, without a live step, and still known".into());
        }
        seen.gap_timers += usize::from(trajectory.gap_timer.is_some());
        let in_gap = tally.open() == 0;
        if in_gap != trajectory.gap_since.is_some() {
            fault(format!(
                "gap since {:?} with {} open steps",
                trajectory.gap_since,
                tally.open()
            ));
        }
        if let Some(since) = trajectory.gap_since {
            let last = since.saturating_add(self.remembered(trajectory));
            match trajectory.gap_timer {
                Some(at) if at <= last.max(self.now) => {}
                other => fault(format!("in its gap since {since}, timer at {other:?}")),
            }
        }
        if !in_gap && !trajectory.ranked {
            fault("has open steps and is not ranked".into());
        }
        if trajectory.ranked {
            seen.ranked.0 += 1;
            seen.ranked.1 += trajectory.remaining;
            if !self.active.contains(id, trajectory.remaining) {
                fault(format!(
                    "not ranked with {} remaining",
                    trajectory.remaining
                ));
            }
        }
        match self.home_of(trajectory) {
            Some(home) if trajectory.ranked => {
                let entry = seen.homed.entry(home.id).or_default();
                *entry = (
                    entry.0 + 1,
                    entry.1 + trajectory.remaining,
                    entry.2 + trajectory.committed,
                    entry.3 + if in_gap { trajectory.committed } else { 0 },
                );
                if !home.homed.contains(id, trajectory.remaining)
                    || !home.holders.contains(id, trajectory.committed)
                {
                    fault(format!("not at home on worker {}", home.id));
                }
            }
            _ if trajectory.ranked && trajectory.home.is_some() => {}
            _ if trajectory.committed > 0 => fault("has KV counted without a home".into()),
            _ => {}
        }
        if let Some(group) = trajectory.group {
            *seen.members.entry(group).or_default() += 1;
        }
    }

    fn audit_step(&self, id: StepId, seen: &mut Seen, faults: &mut Vec<String>) {
        let Some(step) = self.steps.get(id) else {
            return;
        };
        let mut fault = |what: String| faults.push(format!("step {id}: {what}"));
        let listed = self
            .trajectories
            .get(step.trajectory)
            .is_some_and(|t| t.live.contains(&id));
        if !listed {
            fault("its trajectory does not know it".into());
        }
        seen.hold_timers += usize::from(step.hold_timer.is_some());
        let queued = Queued {
            key: step.key,
            step: id,
        };
        let at_queue = step.queued_at.and_then(|worker| self.workers.get(worker));
        if (step.state == StepState::HeldSlot) != step.queued_at.is_some() {
            fault(format!(
                "{:?} and queued at {:?}",
                step.state, step.queued_at
            ));
        }
        match step.state {
            StepState::Arrived => fault("was left where it arrived".into()),
            StepState::HeldAdmission => {
                seen.applicants += 1;
                if !self.applicants.contains(&queued) {
                    fault("is no applicant".into());
                }
            }
            StepState::HeldNoWorker => {
                seen.unplaced += 1;
                if !self.unplaced.contains(&id) {
                    fault("is not among the unplaced".into());
                }
            }
            StepState::HeldSlot => match at_queue {
                Some(worker)
                    if worker.queue.contains(&queued) && worker.state != WorkerState::Down =>
                {
                    *seen.queued.entry(worker.id).or_default() += 1;
                }
                _ => fault(format!(
                    "is in no queue of a living worker ({:?})",
                    step.queued_at
                )),
            },
            _ => {}
        }
        let must_be_bounded = match step.state {
            StepState::HeldPredecessor
            | StepState::HeldAdmission
            | StepState::HeldNoWorker
            | StepState::HeldMigration => true,
            StepState::HeldSlot => self.policy.order.variant().may_starve() && !step.overdue,
            _ => false,
        };
        if must_be_bounded && step.hold_timer.is_none() {
            fault(format!("{:?} without a bound", step.state));
        }
        if step.hold_timer.is_some() && !StepState::HELD.contains(&step.state) {
            fault(format!("{:?} with a hold timer", step.state));
        }
        let needs_attempt = matches!(
            step.state,
            StepState::Dispatched | StepState::Streaming | StepState::Withdrawn
        );
        if needs_attempt && step.attempt.is_none() {
            fault(format!("{:?} without an attempt", step.state));
        }
        if let Some(attempt) = step.attempt.filter(|attempt| attempt.seated) {
            let seat = crate::worker::Seat {
                level: attempt.level,
                seq: std::cmp::Reverse(attempt.seq),
                step: id,
            };
            *seen.seats.entry(attempt.worker).or_default() += 1;
            let worker = self.workers.get(attempt.worker);
            if !worker.is_some_and(|w| w.running.contains(&seat) || w.preempted.contains(&seat)) {
                fault(format!("has no seat on worker {}", attempt.worker));
            }
            if worker.is_some_and(|w| w.generation != attempt.generation) {
                fault("is seated on another generation".into());
            }
            if !matches!(
                step.state,
                StepState::Dispatched | StepState::Streaming | StepState::Aborting
            ) {
                fault(format!("{:?} with a seat", step.state));
            }
        } else if matches!(step.state, StepState::Dispatched | StepState::Streaming) {
            fault(format!("{:?} without a seat", step.state));
        }
    }

    fn audit_workers(&self, seen: &Seen, faults: &mut Vec<String>) {
        for worker in self.workers.iter() {
            let id = worker.id;
            let mut fault = |what: String| faults.push(format!("worker {id}: {what}"));
            let seats = seen.seats.get(&id).copied().unwrap_or(0);
            if seats != worker.seats() {
                fault(format!("{} seats, {seats} steps on them", worker.seats()));
            }
            let queued = seen.queued.get(&id).copied().unwrap_or(0);
            if queued != worker.queue.len() {
                fault(format!(
                    "{} queued, {queued} steps know of it",
                    worker.queue.len()
                ));
            }
            let (count, weight, committed, idle) = seen.homed.get(&id).copied().unwrap_or_default();
            if (count, weight) != (worker.homed.len(), worker.homed.total_weight()) {
                fault(format!(
                    "{} at home, {count} trajectories know of it",
                    worker.homed.len()
                ));
            }
            if idle != worker.idle {
                fault(format!("{} KV tokens idle, {idle} in gaps", worker.idle));
            }
            if (count, committed) != (worker.holders.len(), worker.committed()) {
                fault(format!(
                    "{} KV tokens of {} counted, {committed} of {count} committed",
                    worker.committed(),
                    worker.holders.len()
                ));
            }
            if worker.state == WorkerState::Down && worker.load() + worker.homed.len() > 0 {
                fault("is down and has steps or trajectories".into());
            }
            let bound = worker.slots as usize + self.policy.backlog as usize;
            let waits = self.paused || self.timers.gatherings.at(id).is_some();
            if worker.seats() < bound && !worker.queue.is_empty() && !waits {
                fault("has a free slot and a queue".into());
            }
            if !worker.preempted.is_empty() && worker.running.len() < worker.slots as usize {
                fault("has a free slot and a preempted step".into());
            }
        }
    }

    fn audit_whole(&self, seen: &Seen, faults: &mut Vec<String>) {
        let mut compare = |what: &str, kept: u64, found: u64| {
            if kept != found {
                faults.push(format!("{what}: {kept} kept, {found} found"));
            }
        };
        compare(
            "applicants",
            self.applicants.len() as u64,
            seen.applicants as u64,
        );
        compare("unplaced", self.unplaced.len() as u64, seen.unplaced as u64);
        compare(
            "queued",
            self.queued as u64,
            seen.queued.values().sum::<usize>() as u64,
        );
        compare("ranked", self.active.len() as u64, seen.ranked.0 as u64);
        compare("ranked tokens", self.active.total_weight(), seen.ranked.1);
        for phase in Phase::ALL {
            compare(
                phase.name(),
                self.phases[phase as usize],
                seen.phases[phase as usize],
            );
        }
        let ended: u64 = self.counters.ended.iter().sum();
        compare(
            "arrived",
            self.counters.arrived,
            ended + self.steps.len() as u64,
        );
        compare("illegal moves", self.counters.illegal_moves, 0);
        for (group, members) in self.groups.members() {
            compare(
                "members of a group",
                u64::from(members),
                u64::from(seen.members.get(&group).copied().unwrap_or(0)),
            );
        }
        if !self.workers.is_consistent() {
            faults.push("fleet: what is derived from the workers differs".into());
        }
        if !self.timers.is_consistent() {
            faults.push("timers: the indices differ".into());
        }
        let count = |kind: fn(Timer) -> bool| self.timers.iter().filter(|t| kind(t.1)).count();
        let gaps = count(|timer| matches!(timer, Timer::Gap(_)));
        let holds = count(|timer| matches!(timer, Timer::Hold(_)));
        for (armed, known, of) in [
            (gaps, seen.gap_timers, "gap timers, trajectories"),
            (holds, seen.hold_timers, "hold timers, steps"),
        ] {
            if armed != known {
                faults.push(format!("{armed} {of} know of {known}"));
            }
        }
        for (at, timer) in self.timers.iter() {
            let known = match timer {
                Timer::Hold(id) => {
                    let step = self.steps.get(id);
                    step.is_some_and(|step| step.hold_timer == Some(at))
                }
                Timer::Gap(id) => {
                    let trajectory = self.trajectories.get(id);
                    trajectory.is_some_and(|trajectory| trajectory.gap_timer == Some(at))
                }
                Timer::Move(migration) => self.ledger.get(migration).is_some(),
                Timer::PlanExpiry => self.plan.is_some(),
                Timer::Room => !self.applicants.is_empty(),
                Timer::Gathering(id) => {
                    (self.workers.get(id)).is_some_and(|worker| !worker.queue.is_empty())
                }
            };
            if !known {
                faults.push(format!("{timer:?} is armed for nothing"));
            }
        }
        if !self.touched.is_empty() {
            faults.push("the core is not settled".into());
        }
        if let Some(head) = self.applicants.first()
            && self.may_enter(head.step)
        {
            faults.push(format!("applicant {} fits and is held", head.step));
        }
        faults.extend(self.audit_moves());
        faults.extend(self.memory.prefixes.audit());
    }
}
