//! Trajectories: phases, their legal moves, and what is known of each.
//!
//! Invariants: the phase follows from the tally of live steps; `ranked` trajectories, and only they, are in the
//! ranking of active ones and in the `homed` ranking of a valid home.

use std::ops::Deref;

use serde::Serialize;

use crate::estimate::Prediction;
use crate::migration::Claim;
use crate::step::{StepState, Tally};
use crate::{GroupId, Micros, StepId, TrajectoryId, WorkerId};

/// Where a trajectory stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Known, no step yet taken in.
    Created,
    /// At least one step is held and none is at a worker.
    Waiting,
    /// At least one step is at a worker.
    Running,
    /// An aborted step has not ended yet; later ones wait for it.
    Aborting,
    /// No live step.
    InToolGap,
    /// No live step, and its KV is on the way to another worker.
    Migrating,
    /// Its owner said that it is over.
    Finished,
    /// Idle beyond the TTL.
    Expired,
}

impl Phase {
    /// All phases, in the order of the counts in `stats`.
    pub const ALL: [Self; 8] = [
        Self::Created,
        Self::Waiting,
        Self::Running,
        Self::Aborting,
        Self::InToolGap,
        Self::Migrating,
        Self::Finished,
        Self::Expired,
    ];

    /// The legal moves.
    pub const fn moves(self) -> &'static [Self] {
        match self {
            Self::Created => &[Self::Waiting, Self::Running, Self::InToolGap],
            Self::Waiting => &[
                Self::Running,
                Self::Aborting,
                Self::InToolGap,
                Self::Migrating,
            ],
            Self::Running => &[Self::Waiting, Self::Aborting, Self::InToolGap],
            Self::Aborting => &[
                Self::Waiting,
                Self::Running,
                Self::InToolGap,
                Self::Migrating,
            ],
            Self::InToolGap => &[
                Self::Waiting,
                Self::Running,
                Self::Aborting,
                Self::Migrating,
                Self::Finished,
                Self::Expired,
            ],
            Self::Migrating => &[
                Self::Waiting,
                Self::Running,
                Self::InToolGap,
                Self::Finished,
                Self::Expired,
            ],
            Self::Finished | Self::Expired => &[],
        }
    }

    /// True when the table allows the move.
    pub fn may_become(self, to: Self) -> bool {
        self.moves().contains(&to)
    }

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Aborting => "aborting",
            Self::InToolGap => "in_tool_gap",
            Self::Migrating => "migrating",
            Self::Finished => "finished",
            Self::Expired => "expired",
        }
    }

    /// The phase that a set of live steps makes, of a trajectory whose KV is on the way or is not.
    pub fn of(tally: &Tally, moving: bool) -> Self {
        let at_worker = [
            StepState::Dispatched,
            StepState::Streaming,
            StepState::Withdrawn,
        ];
        if at_worker.iter().any(|state| tally.count(*state) > 0) {
            Self::Running
        } else if tally.count(StepState::Aborting) > 0 {
            Self::Aborting
        } else if tally.held() > 0 {
            Self::Waiting
        } else if moving {
            Self::Migrating
        } else {
            Self::InToolGap
        }
    }
}

/// A worker's life in which a trajectory's KV lies there. Void when the worker was lost since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// The worker.
    pub worker: WorkerId,
    /// The life of the worker, see [`crate::worker::Worker::life`].
    pub life: u64,
}

/// Live steps of a trajectory by arrival. Mostly there is one, which lies in the trajectory itself: memory of its own would be
/// one more line to wait for at every event.
#[derive(Debug, Clone)]
pub enum LiveSteps {
    /// At most one.
    One(Option<StepId>),
    /// Two or more.
    Many(Vec<StepId>),
}

impl Default for LiveSteps {
    fn default() -> Self {
        Self::One(None)
    }
}

impl LiveSteps {
    /// Adds the latest step.
    pub fn push(&mut self, id: StepId) {
        match self {
            Self::One(one @ None) => *one = Some(id),
            Self::One(Some(first)) => *self = Self::Many(vec![*first, id]),
            Self::Many(ids) => ids.push(id),
        }
    }

    /// Takes a step out.
    pub fn remove(&mut self, id: StepId) {
        match self {
            Self::One(one) => *one = one.filter(|&one| one != id),
            Self::Many(ids) => {
                ids.retain(|&live| live != id);
                if let &mut [last] = ids.as_mut_slice() {
                    *self = Self::One(Some(last));
                }
            }
        }
    }
}

impl Deref for LiveSteps {
    type Target = [StepId];

    fn deref(&self) -> &[StepId] {
        match self {
            Self::One(one) => one.as_slice(),
            Self::Many(ids) => ids,
        }
    }
}

/// One agent run.
#[derive(Debug, Clone)]
pub struct Trajectory {
    /// Handle.
    pub id: TrajectoryId,
    /// Where it stands.
    pub phase: Phase,
    /// Its group.
    pub group: Option<GroupId>,
    /// Live steps by arrival.
    pub live: LiveSteps,
    /// Live steps by state.
    pub tally: Tally,
    /// Where its KV lies or will lie.
    pub home: Option<Home>,
    /// Context tokens that were computed at home, as far as is known.
    pub resident_tokens: u64,
    /// Weights with which they were computed.
    pub resident_weights: u64,
    /// The move that is wanted or under way.
    pub claim: Option<Claim>,
    /// Tokens that were moved to its home since its last step.
    pub moved: Option<u64>,
    /// Prompt and answer of the last step.
    pub context_tokens: u64,
    /// Announced, and no step of it has come yet.
    pub expected: bool,
    /// Output tokens of ended steps.
    pub generated: u64,
    /// Ended steps that a worker answered.
    pub steps: u32,
    /// Steps that were given a worker: the turns it has had.
    pub turns: u64,
    /// The last prediction.
    pub prediction: Option<Prediction>,
    /// Its whole length as first predicted, in tokens.
    pub foretold: Option<f32>,
    /// What its end, as far as it is over, has said of predictions.
    pub verdict: Option<f32>,
    /// Expected output tokens still to come; the key in the rankings.
    pub remaining: u64,
    /// Changes of its group's statistics that the estimate has taken in.
    pub lessons: u64,
    /// Counts as active.
    pub ranked: bool,
    /// KV tokens counted for it at home.
    pub committed: u64,
    /// Predicted length of its tool gaps, in microseconds.
    pub gap_expected: Option<Micros>,
    /// Since when it has had no live step.
    pub gap_since: Option<Micros>,
    /// When its gap timer fires, if it is armed; kept here because it is looked at in every gap.
    pub gap_timer: Option<Micros>,
    /// Length with which it went into the statistics of ended trajectories, when it was taken for ended.
    pub counted_as: Option<u64>,
    /// To be forgotten when its last live step has ended.
    pub finishing: bool,
}

impl Trajectory {
    /// A trajectory that was just seen for the first time.
    pub fn new(id: TrajectoryId, group: Option<GroupId>) -> Self {
        Self {
            id,
            phase: Phase::Created,
            group,
            live: LiveSteps::default(),
            tally: Tally::default(),
            home: None,
            resident_tokens: 0,
            resident_weights: 0,
            claim: None,
            moved: None,
            context_tokens: 0,
            expected: false,
            generated: 0,
            steps: 0,
            turns: 0,
            prediction: None,
            foretold: None,
            verdict: None,
            remaining: 0,
            lessons: 0,
            ranked: false,
            committed: 0,
            gap_expected: None,
            gap_since: None,
            gap_timer: None,
            counted_as: None,
            finishing: false,
        }
    }

    /// How much of the KV counted for it lies idle: all of it in its tool gap.
    pub(crate) fn idle_part(&self, committed: u64) -> u64 {
        if self.gap_since.is_some() {
            committed
        } else {
            0
        }
    }

    /// KV tokens that it needs: its context, and in a step the answer to come.
    pub fn footprint(&self, answer: u64) -> u64 {
        let answer = if self.tally.open() > 0 { answer } else { 0 };
        self.context_tokens + answer
    }

    /// The phase that its steps and its move make.
    pub fn phase_now(&self) -> Phase {
        Phase::of(&self.tally, self.claim.is_some_and(|claim| claim.moving))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_steps_keep_the_order_of_arrival() {
        let mut live = LiveSteps::default();
        for id in [5, 3, 9] {
            live.push(id);
        }
        live.remove(4);
        assert_eq!(*live, [5, 3, 9]);
        live.remove(5);
        assert_eq!(*live, [3, 9]);
        live.remove(9);
        assert_eq!(*live, [3]);
        live.push(1);
        assert_eq!(*live, [3, 1]);
        live.remove(1);
        live.remove(3);
        assert!(live.is_empty());
    }

    #[test]
    fn ends_are_final_and_reached_only_without_live_steps() {
        for phase in Phase::ALL {
            for end in [Phase::Finished, Phase::Expired] {
                let idle = matches!(phase, Phase::InToolGap | Phase::Migrating);
                assert_eq!(phase.may_become(end), idle, "{phase:?} to {end:?}");
                assert!(!end.may_become(phase));
            }
            assert!(!phase.may_become(phase) && !phase.may_become(Phase::Created));
        }
    }
}
