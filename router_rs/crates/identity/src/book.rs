//! All that identity remembers: which request is which step of which trajectory.
//!
//! Invariants: `resolve` decides and changes nothing, `step_started` makes it so, `step_ended` is called once for
//! each start; a conversation with a step in flight is never dropped for its age.

use std::collections::HashMap;
use std::sync::Arc;

use heddle_wire::{Answer, Unit, hash};

use crate::claim::{Claim, Identity, Phase, Request, Verdict};
use crate::conversation::{Conversation, Id, Kind, Turn, TurnState};
use crate::history::History;
use crate::holders::LinkedMap;
use crate::index::Index;
use crate::matching::{self, Conversations, Seen};
use crate::past::OWN_GROUP;
use crate::turns::{begin_turn, learn, move_turn, place};

/// What bounds a book.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Conversations kept.
    pub capacity: usize,
    /// Seconds without a request after which one is dropped.
    pub idle_ttl_s: f64,
}

/// A call that does not follow the one before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    /// A second start.
    #[error("step {step} of {trajectory_id} has started before")]
    StartedBefore {
        /// The step's number.
        step: u64,
        /// Whose it is.
        trajectory_id: Arc<str>,
    },
    /// An end without a start, or a second one.
    #[error("step {step} of {trajectory_id} is not running")]
    NotRunning {
        /// The step's number.
        step: u64,
        /// Whose it is.
        trajectory_id: Arc<str>,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Book {
    pub(crate) limits: Limits,
    pub(crate) conversations: Conversations,
    pub(crate) by_name: HashMap<Box<str>, Id>,
    /// Samples ever begun of an opening; bounded like the conversations.
    pub(crate) samples: LinkedMap<u64, u64>,
    pub(crate) index: Index,
    next_id: Id,
}

impl Book {
    /// An empty one.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            conversations: Conversations::default(),
            by_name: HashMap::new(),
            samples: LinkedMap::default(),
            index: Index::default(),
            next_id: 0,
        }
    }

    /// Conversations kept.
    pub fn len(&self) -> usize {
        self.conversations.len()
    }

    /// Whether it has never been used, or all is forgotten.
    pub fn is_empty(&self) -> bool {
        self.conversations.is_empty()
    }

    /// Keys of the index: what bounds its memory.
    pub fn keys_held(&self) -> usize {
        self.index.size()
    }

    pub(crate) fn new_number(&mut self) -> Id {
        self.next_id += 1;
        self.next_id
    }
}

// ------------------------------------------------------------------------------------------- one request

impl Book {
    /// Whose step it is. `new_id` names a new trajectory that nobody named.
    pub fn resolve(&self, request: &Request<'_>, new_id: impl FnOnce() -> String) -> Identity {
        let told = request.told;
        let scan = request.scan;
        let scope = scope_of(request.tenant, scan.model.as_deref().unwrap_or_default());
        let history = History::of(scan);
        let (source, found) = match told.trajectory_id {
            Some(named) => {
                let known = self.by_name.get(&name_of(request.tenant, named));
                let placed = known.and_then(|id| {
                    let conversation = self.conversations.get(id)?;
                    Some((place(conversation, request, &history), *id))
                });
                (None, placed)
            }
            None => match self.find(request, scope, history) {
                Some(found) => (Some(found.source), Some((found.kind, found.id))),
                None if history.unit == Unit::Opaque => (Some("anonymous"), None),
                None => (Some("history-new"), None),
            },
        };
        let known = found.and_then(|(kind, id)| Some((kind, id, self.conversations.get(&id)?)));
        let (kind, conversation, fresh) = if let Some((kind, id, _)) = known {
            (kind, id, None)
        } else {
            let trajectory_id = told.trajectory_id.map_or_else(new_id, str::to_owned);
            let fresh = self.fresh(request.tenant, trajectory_id, scope, &history);
            (Kind::New, 0, Some(Box::new(fresh)))
        };
        let claim = Claim {
            verdict: Verdict::from(kind),
            history,
            attempt: request.attempt,
            received_at: request.received_at,
            conversation,
            turn: if let Kind::Repeat(step) = kind {
                step
            } else {
                0
            },
            fresh,
            phase: Phase::Resolved,
        };
        Identity::new(claim, kind, known.map(|(_, _, known)| known), source, &told)
    }

    fn find(&self, request: &Request<'_>, scope: u64, history: History) -> Option<matching::Match> {
        matching::find(&Seen {
            index: &self.index,
            conversations: &self.conversations,
            scan: request.scan,
            body: request.body,
            scope,
            history,
            attempt: request.attempt,
            received_at: request.received_at,
        })
    }

    pub(crate) fn fresh(
        &self,
        tenant: &str,
        trajectory_id: String,
        scope: u64,
        history: &History,
    ) -> Conversation {
        let opening = (history.unit != Unit::Opaque).then(|| history.key(scope));
        Conversation {
            scope,
            opening,
            group_id: opening.map(|opening| format!("{OWN_GROUP}{opening:016x}").into()),
            sample: opening.map(|opening| self.samples.get(&opening).copied().unwrap_or(0)),
            ..Conversation::new(tenant, trajectory_id.into())
        }
    }

    /// What `resolve` decided is so from now on. Call it before another request is resolved.
    ///
    /// # Errors
    /// A second call.
    pub fn step_started(&mut self, identity: &mut Identity) -> Result<(), BookError> {
        let claim = &mut identity.claim;
        if claim.phase != Phase::Resolved {
            return Err(BookError::StartedBefore {
                step: identity.step,
                trajectory_id: identity.trajectory_id.clone(),
            });
        }
        claim.phase = Phase::Running;
        let now = claim.received_at;
        if let Some(fresh) = claim.fresh.take() {
            claim.conversation = self.file(*fresh);
        }
        let id = claim.conversation;
        self.see(id, now);
        let Some(conversation) = self.conversations.get_mut(&id) else {
            return Ok(());
        };
        conversation.group_id.clone_from(&identity.group_id);
        conversation.sample = identity.sample;
        conversation.parent_id.clone_from(&identity.parent_id);
        conversation.segment = identity.segment;
        conversation.in_flight += 1;
        let opening = conversation.opening.filter(|_| !conversation.known);
        if claim.verdict != Verdict::Repeat {
            claim.turn = conversation.steps;
            let turn = Turn::new(claim.history, claim.turn, claim.attempt);
            begin_turn(&mut self.index, id, conversation, turn);
        }
        let step = claim.turn;
        if let Some(turn) = conversation.turn_of(step) {
            turn.attempt = claim.attempt;
            turn.in_flight += 1;
        }
        move_turn(
            &mut self.index,
            id,
            conversation,
            step,
            TurnState::Running,
            now,
        );
        if let Some(opening) = opening.filter(|_| step == 0) {
            self.count_sample(opening);
        }
        Ok(())
    }

    /// Files a new conversation; where one of that name was begun meanwhile, that one stands for it.
    pub(crate) fn file(&mut self, fresh: Conversation) -> Id {
        let name = name_of(&fresh.tenant, &fresh.trajectory_id);
        if let Some(id) = self.by_name.get(&name) {
            return *id;
        }
        let id = self.new_number();
        self.by_name.insert(name, id);
        self.conversations.insert(id, fresh);
        id
    }

    /// The conversation is the one seen last. Drops what is too old or too many.
    fn see(&mut self, id: Id, now: f64) {
        if let Some(conversation) = self.conversations.to_back(&id) {
            conversation.last_seen = now;
        }
        // Two at a time keep up with one added; the rest of a backlog waits for later calls.
        for _ in 0..2 {
            let Some((&oldest, conversation)) = self.conversations.front() else {
                return;
            };
            let is_old = now - conversation.last_seen > self.limits.idle_ttl_s;
            if self.conversations.len() <= self.limits.capacity && !is_old {
                return;
            }
            if conversation.in_flight > 0 || oldest == id {
                self.conversations.to_back(&oldest);
            } else {
                self.drop(oldest);
            }
        }
    }

    fn count_sample(&mut self, opening: u64) {
        *self.samples.entry(opening).or_insert(0) += 1;
        self.samples.to_back(&opening);
        if self.samples.len() > self.limits.capacity {
            self.samples.pop_front();
        }
    }

    /// The client hung up, and the engine is still being told. A repeat that comes meanwhile, marked or not, is a
    /// repeat. [`step_ended`](Self::step_ended) follows.
    ///
    /// # Errors
    /// The step never started or has ended before.
    pub fn client_left(
        &mut self,
        identity: &mut Identity,
        answer: Option<&Answer>,
        now: f64,
    ) -> Result<(), BookError> {
        self.step_ended(identity, false, answer, now)?;
        identity.claim.phase = Phase::Left;
        Ok(())
    }

    /// The step is over; `done`: the answer is whole.
    ///
    /// # Errors
    /// The step never started or has ended before.
    pub fn step_ended(
        &mut self,
        identity: &mut Identity,
        done: bool,
        answer: Option<&Answer>,
        now: f64,
    ) -> Result<(), BookError> {
        let claim = &mut identity.claim;
        match claim.phase {
            Phase::Running => claim.phase = Phase::Ended,
            Phase::Left => {
                claim.phase = Phase::Ended;
                return Ok(());
            }
            Phase::Resolved | Phase::Ended => {
                return Err(BookError::NotRunning {
                    step: identity.step,
                    trajectory_id: identity.trajectory_id.clone(),
                });
            }
        }
        let (id, step) = (claim.conversation, claim.turn);
        // A forgotten one has nothing to keep.
        let Some(conversation) = self.conversations.to_back(&id) else {
            return Ok(());
        };
        conversation.last_seen = now;
        conversation.in_flight -= 1;
        let turn = conversation.turn_of(step);
        let is_filed = turn.as_ref().is_some_and(|turn| !turn.filed.is_empty());
        let breaks = turn.is_some_and(|turn| {
            turn.in_flight -= 1;
            turn.state == TurnState::Running && turn.in_flight == 0
        });
        if let Some(answer) = answer
            && (done || !is_filed)
        {
            // Of a broken answer the client may keep what it has.
            learn(
                &mut self.index,
                id,
                conversation,
                step,
                claim.history.unit,
                answer,
            );
        }
        if done {
            move_turn(
                &mut self.index,
                id,
                conversation,
                step,
                TurnState::Done,
                now,
            );
        } else if breaks {
            move_turn(
                &mut self.index,
                id,
                conversation,
                step,
                TurnState::Broken,
                now,
            );
            if let Some(turn) = conversation.turn_of(step) {
                turn.attempt = claim.attempt;
                turn.begun = answer.is_some_and(|answer| !answer.answer_hashes.is_empty());
            }
        }
        Ok(())
    }

    /// The trajectory is over: a later request under this id, or with its history, begins a new one. Unknown ids
    /// are fine.
    pub fn forget(&mut self, tenant: &str, trajectory_id: &str) {
        if let Some(id) = self.by_name.get(&name_of(tenant, trajectory_id)) {
            self.drop(*id);
        }
    }

    fn drop(&mut self, id: Id) {
        if let Some(mut conversation) = self.conversations.remove(&id) {
            self.by_name
                .remove(&name_of(&conversation.tenant, &conversation.trajectory_id));
            if conversation.known {
                self.index.remove(id, &mut conversation);
            }
        }
    }
}

/// The tenant and model as a number.
pub(crate) fn scope_of(tenant: &str, model: &str) -> u64 {
    hash::fold([
        hash::bytes(tenant.as_bytes()),
        hash::bytes(model.as_bytes()),
    ])
}

/// The name of a tenant's trajectory.
pub(crate) fn name_of(tenant: &str, trajectory_id: &str) -> Box<str> {
    // A tenant is hex digits, so that the first blank ends it.
    let mut name = String::with_capacity(tenant.len() + 1 + trajectory_id.len());
    name.push_str(tenant);
    name.push(' ');
    name.push_str(trajectory_id);
    name.into_boxed_str()
}
