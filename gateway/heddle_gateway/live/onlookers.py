"""What onlookers are told of the core's actions."""

from typing import TYPE_CHECKING, Final

from heddle_contracts.planning import EventKind
from heddle_core import CancelMigration, Dispatch, Expire, Migrate, Reject, Withdraw

from heddle_gateway.live.decision_feed import DecisionFeed
from heddle_gateway.live.directory import LiveTrajectory

if TYPE_CHECKING:
    from heddle_core import Action

KINDS: Final[dict[type, EventKind]] = {
    Dispatch: EventKind.DISPATCH,
    Reject: EventKind.REJECT,
    Withdraw: EventKind.WITHDRAW,
    Migrate: EventKind.MIGRATE,
    CancelMigration: EventKind.CANCEL_MIGRATION,
    Expire: EventKind.EXPIRE,
}
FACTS: Final = (
    "step",
    "generation",
    "level",
    "priority",
    "attempt",
    "status",
    "reason",
    "migration",
    "tokens",
)
"""Fields of an action that are shown as they are, where it has them."""


def show(feed: DecisionFeed, action: "Action", live: LiveTrajectory | None) -> None:
    """``live``: the trajectory that the action is about. Its worker is named by id here."""
    worker = getattr(action, "worker", None)
    feed.publish(
        KINDS[type(action)],
        trajectory_id=live.trajectory_id if live is not None else None,
        worker=None if worker is None else str(worker),
        **{name: getattr(action, name) for name in FACTS if hasattr(action, name)},
    )
