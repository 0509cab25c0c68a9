//! Moving a trajectory's KV to another worker in its tool gap: one file a variant, one table.
//!
//! A [`Migration`] names a target; whether and when the transfer begins is the ledger's: [`ledger`] has every move from
//! request to end, [`scheduling`] starts them (longest trajectories first, no worker in two transfers at once, never
//! under a running step), `asking` takes in a person's wish, `settling` takes in how they ended, `meeting` decides for a step that arrives in mid-move,
//! `link` is what is known of a worker's transfers. The home of a trajectory is the only owner of its KV: it changes when
//! a move has landed, and by nothing else here.
//!
//! Off where fewer than two workers announce a link.

mod asking;
mod audit;
mod ledger;
mod link;
mod meeting;
mod never;
mod on_rank_change;
mod scheduling;
mod settling;
mod when_worth_it;

use serde::{Deserialize, Serialize};

pub use ledger::{Asker, Claim, Ledger, Move, MoveState, Totals};
pub use link::Link;

use crate::WorkerId;
use crate::placement::{Ask, Memory, Placement, Scene};
use crate::worker::Worker;

/// The variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationKind {
    /// KV stays where it was computed.
    Never,
    /// The trajectory follows its rank (the paper's rule).
    OnRankChange,
    /// It follows the placement where what is gained is more than what the transfer costs.
    WhenWorthIt,
}

impl MigrationKind {
    /// The variant behind the name.
    pub const fn variant(self) -> &'static dyn Migration {
        match self {
            Self::Never => &never::Never,
            Self::OnRankChange => &on_rank_change::OnRankChange,
            Self::WhenWorthIt => &when_worth_it::WhenWorthIt,
        }
    }
}

/// What a rule of migration may look at. The candidates of the scene are the workers that a transfer could go to, and the
/// home where that takes steps.
#[derive(Clone, Copy)]
pub struct Outlook<'a> {
    /// Workers, ranks, plan.
    pub scene: &'a Scene<'a>,
    /// The trajectory, with what a transfer costs it.
    pub ask: &'a Ask<'a>,
    /// Where its KV is.
    pub home: &'a Worker,
    /// The placement in force.
    pub placement: &'static dyn Placement,
}

/// A rule of migration.
pub trait Migration: Sync {
    /// False where it never moves anything under this placement.
    fn moves(&self, _placement: &dyn Placement) -> bool {
        true
    }

    /// The worker that the trajectory's KV should be moved to; none to leave it where it is.
    fn target(&self, outlook: &Outlook<'_>, memory: &mut Memory) -> Option<WorkerId>;
}
