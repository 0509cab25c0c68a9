//! A trajectory as identity sees it: its turns, and what its next request will show of them.
//!
//! Invariants: the last turn is the one begun last; all that is kept of a conversation is bounded, whatever its
//! length.

use std::sync::Arc;

use crate::attempt::Attempt;
use crate::history::History;

/// A conversation's number in the book; handed out once.
pub(crate) type Id = u64;

/// Turns of a conversation that a repeat is looked for among: agents with one id make parallel calls.
pub(crate) const RECENT_TURNS: usize = 4;

/// Where the attempts at a turn stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnState {
    /// One is with a worker.
    Running,
    /// Answered. The client may still have lost the answer, and repeat.
    Done,
    /// Failed, or given up by the client.
    Broken,
}

/// One step, told by its history.
#[derive(Debug)]
pub(crate) struct Turn {
    pub history: History,
    pub step: u64,
    pub state: TurnState,
    pub in_flight: u32,
    /// When it began or ended last, monotonic seconds.
    pub changed_at: f64,
    /// Hashes of its answers and of their call ids, which a later request may show.
    pub shows: Vec<u64>,
    /// The attempt that began or failed last.
    pub attempt: Attempt,
    /// Its answer had begun when it failed.
    pub begun: bool,
    /// The index's own: its keys of this turn's answers.
    pub filed: Vec<u64>,
    /// The index's own: lengths of this turn's answers, text dialects.
    pub lengths: Vec<usize>,
}

impl Turn {
    pub fn new(history: History, step: u64, attempt: Attempt) -> Self {
        Self {
            history,
            step,
            state: TurnState::Running,
            in_flight: 0,
            changed_at: 0.0,
            shows: Vec::new(),
            attempt,
            begun: false,
            filed: Vec::new(),
            lengths: Vec::new(),
        }
    }

    /// Broken in a way that SDKs repeat by themselves, and say so.
    pub fn may_be_marked(&self) -> bool {
        self.state == TurnState::Broken && !self.begun
    }

    /// The same, by an SDK that marks its calls and has not repeated this one as often as it does.
    pub fn will_be_marked(&self) -> bool {
        self.may_be_marked() && matches!(self.attempt, Attempt::First | Attempt::Repeat)
    }

    /// Whether a request that shows `hashes` shows an answer of this turn.
    pub fn is_shown_in(&self, hashes: &[u64]) -> bool {
        self.shows.iter().any(|shown| hashes.contains(shown))
    }
}

/// One trajectory.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub tenant: Arc<str>,
    pub trajectory_id: Arc<str>,
    /// Tenant and model as a number.
    pub scope: u64,
    /// The first history's key; none: nothing to recognise it by.
    pub opening: Option<u64>,
    pub group_id: Option<Arc<str>>,
    pub sample: Option<u64>,
    pub parent_id: Option<Arc<str>>,
    /// The latest, at most [`RECENT_TURNS`].
    pub turns: Vec<Turn>,
    pub steps: u64,
    pub segment: u64,
    pub last_seen: f64,
    pub in_flight: u32,
    /// The index holds it.
    pub known: bool,
    /// The index's own: keys of what it is known by.
    pub evidence: Vec<u64>,
    /// The index's own: keys of how the lines of its last answer start.
    pub anchors: Vec<u64>,
}

impl Conversation {
    /// One of which only the name is known.
    pub fn new(tenant: &str, trajectory_id: Arc<str>) -> Self {
        Self {
            tenant: tenant.into(),
            trajectory_id,
            scope: 0,
            opening: None,
            group_id: None,
            sample: None,
            parent_id: None,
            turns: Vec::new(),
            steps: 0,
            segment: 0,
            last_seen: 0.0,
            in_flight: 0,
            known: false,
            evidence: Vec::new(),
            anchors: Vec::new(),
        }
    }

    /// The turn begun last. Every known conversation has one.
    pub fn turn(&self) -> Option<&Turn> {
        self.turns.last()
    }

    /// The turn of this step, while it is among the recent ones.
    pub fn turn_of(&mut self, step: u64) -> Option<&mut Turn> {
        self.turns.iter_mut().rev().find(|turn| turn.step == step)
    }

    /// Whether its next request is what comes next.
    pub fn waits(&self) -> bool {
        self.in_flight == 0
            && self
                .turn()
                .is_some_and(|turn| turn.state == TurnState::Done)
    }

    /// When its last turn began or ended.
    pub fn changed_at(&self) -> f64 {
        self.turn().map_or(0.0, |turn| turn.changed_at)
    }
}

/// What a request is to its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first of a new conversation.
    New,
    /// The next step: its history extends the last one's, or stands beside it.
    Next,
    /// The next step, on a history that was compacted or rolled back: a new segment.
    Rewritten,
    /// A step that is known already, by its number.
    Repeat(u64),
}
