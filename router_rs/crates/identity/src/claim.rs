//! What is asked of identity, and what it answers.

use std::sync::Arc;

use heddle_wire::Scan;

use crate::attempt::Attempt;
use crate::conversation::{Conversation, Id, Kind};
use crate::history::History;

/// One request.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Whose it is: trajectories of two tenants never meet.
    pub tenant: &'a str,
    /// What it holds.
    pub scan: &'a Scan,
    /// The bytes that `scan` read.
    pub body: &'a [u8],
    /// Of which attempt its SDK says it is.
    pub attempt: Attempt,
    /// Monotonic seconds.
    pub received_at: f64,
    /// What it says of its trajectory.
    pub told: Told<'a>,
}

/// What a request says of its trajectory by headers, path, key or body fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told<'a> {
    /// The trajectory's name.
    pub trajectory_id: Option<&'a str>,
    /// Its group's name.
    pub group_id: Option<&'a str>,
    /// Its number in the group.
    pub sample: Option<u64>,
    /// Whose sub-agent it is.
    pub parent_id: Option<&'a str>,
    /// This is its last step.
    pub is_final: bool,
}

/// Which step of which trajectory a request is.
#[derive(Debug)]
pub struct Identity {
    /// The trajectory.
    pub trajectory_id: Arc<str>,
    /// The rule that fired; `None`: the request named the trajectory.
    pub source: Option<&'static str>,
    /// Its group: samples of one prompt.
    pub group_id: Option<Arc<str>>,
    /// Its number in the group.
    pub sample: Option<u64>,
    /// Whose sub-agent it is.
    pub parent_id: Option<Arc<str>>,
    /// This is its last step.
    pub is_final: bool,
    /// From 0.
    pub step: u64,
    /// Grows by one each time the history was rewritten.
    pub segment: u64,
    /// What the book decided.
    pub claim: Claim,
}

/// What `resolve` decided and `step_started` makes true.
#[derive(Debug)]
pub struct Claim {
    /// What the request is to its conversation.
    pub verdict: Verdict,
    /// The request's history.
    pub history: History,
    pub(crate) attempt: Attempt,
    pub(crate) received_at: f64,
    pub(crate) conversation: Id,
    /// The step of the turn that is repeated; then of the one begun.
    pub(crate) turn: u64,
    /// A new one, until it starts.
    pub(crate) fresh: Option<Box<Conversation>>,
    pub(crate) phase: Phase,
}

/// [`Kind`] without the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first step of a new conversation.
    New,
    /// The next step.
    Next,
    /// The next step, in a new segment.
    Rewritten,
    /// A step that is known.
    Repeat,
}

/// How far a claim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Resolved,
    Running,
    /// Its client hung up, and its end is still to be told.
    Left,
    Ended,
}

impl From<Kind> for Verdict {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::New => Self::New,
            Kind::Next => Self::Next,
            Kind::Rewritten => Self::Rewritten,
            Kind::Repeat(_) => Self::Repeat,
        }
    }
}

impl Identity {
    /// `known`, or what the claim holds of a new one.
    pub(crate) fn new(
        claim: Claim,
        kind: Kind,
        known: Option<&Conversation>,
        source: Option<&'static str>,
        told: &Told<'_>,
    ) -> Identity {
        // One of the two is there.
        let fresh = claim.fresh.as_deref();
        let conversation = known.or(fresh);
        let own_group = conversation.and_then(|one| one.group_id.clone());
        let same_group = told
            .group_id
            .is_none_or(|group| own_group.as_deref() == Some(group));
        let own_sample = conversation
            .and_then(|one| one.sample)
            .filter(|_| same_group);
        let steps = conversation.map_or(0, |one| one.steps);
        Identity {
            trajectory_id: conversation.map_or_else(|| "".into(), |one| one.trajectory_id.clone()),
            source,
            group_id: told.group_id.map(Arc::from).or(own_group),
            sample: told.sample.or(own_sample),
            parent_id: told
                .parent_id
                .map(Arc::from)
                .or_else(|| conversation.and_then(|one| one.parent_id.clone())),
            is_final: told.is_final,
            step: if let Kind::Repeat(step) = kind {
                step
            } else {
                steps
            },
            segment: conversation.map_or(0, |one| one.segment) + u64::from(kind == Kind::Rewritten),
            claim,
        }
    }
}
