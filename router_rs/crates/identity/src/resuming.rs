//! Steps that run when another process takes up the book: they go on under their numbers.

use crate::book::{Book, BookError, name_of, scope_of};
use crate::claim::{Claim, Identity, Phase, Request, Verdict};
use crate::conversation::Kind;
use crate::history::History;

/// What the process that began a step decided of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Under {
    /// Its number.
    pub step: u64,
    /// Its segment.
    pub segment: u64,
}

impl Book {
    /// A step that runs, under the number it has; as [`resolve`](Self::resolve) and
    /// [`step_started`](Self::step_started) would have decided it in the process that began it. The request names its
    /// trajectory (`told`), whoever recognised it. Of one that is known already, a step of this number and history goes
    /// on; else it is begun, and the trajectory counts on from there.
    ///
    /// # Errors
    /// None: the claim is new.
    pub fn resume(&mut self, request: &Request<'_>, under: Under) -> Result<Identity, BookError> {
        let told = request.told;
        let named = told.trajectory_id.unwrap_or_default();
        let history = History::of(request.scan);
        let scope = scope_of(
            request.tenant,
            request.scan.model.as_deref().unwrap_or_default(),
        );
        if !self.by_name.contains_key(&name_of(request.tenant, named)) {
            let mut fresh = self.fresh(request.tenant, named.to_owned(), scope, &history);
            if under.step > 0 {
                // The opening was another request's.
                fresh.opening = None;
            }
            self.file(fresh);
        }
        let id = self.by_name[&name_of(request.tenant, named)];
        let mut kind = Kind::Next;
        if let Some(conversation) = self.conversations.get_mut(&id) {
            let begun = under.step < conversation.steps;
            conversation.segment = conversation.segment.max(under.segment);
            if begun {
                kind = Kind::Repeat(under.step);
            } else {
                conversation.steps = under.step;
            }
        }
        let claim = Claim {
            verdict: Verdict::from(kind),
            history,
            attempt: request.attempt,
            received_at: request.received_at,
            conversation: id,
            turn: under.step,
            fresh: None,
            phase: Phase::Resolved,
        };
        let known = self.conversations.get(&id);
        let mut identity = Identity::new(claim, kind, known, None, &told);
        self.step_started(&mut identity)?;
        Ok(identity)
    }
}
