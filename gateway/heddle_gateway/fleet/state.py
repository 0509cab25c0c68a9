"""The states of a worker and the legal moves between them."""

from enum import StrEnum


class WorkerState(StrEnum):
    """Only ACTIVE and SUSPECT workers are given new steps; a DRAINING one keeps what it has."""

    PROBING = "probing"
    """Known by URL only: not reached yet, or reached and still loading its model."""
    ASIDE = "aside"
    """Serves another model than the fleet does (served_models.py). Asked again now and then."""
    ACTIVE = "active"
    SUSPECT = "suspect"
    """A probe failed; the next ones decide. Still selectable: a busy worker often misses one."""
    DOWN = "down"
    """Was active and is lost. Asked again, with back-off."""
    DRAINING = "draining"
    REMOVED = "removed"


LEGAL_MOVES: dict[WorkerState, frozenset[WorkerState]] = {
    WorkerState.PROBING: frozenset(
        {WorkerState.ASIDE, WorkerState.ACTIVE, WorkerState.DOWN, WorkerState.REMOVED}
    ),
    WorkerState.ASIDE: frozenset(
        {WorkerState.PROBING, WorkerState.ACTIVE, WorkerState.DOWN, WorkerState.REMOVED}
    ),
    WorkerState.ACTIVE: frozenset({WorkerState.SUSPECT, WorkerState.DOWN, WorkerState.DRAINING}),
    WorkerState.SUSPECT: frozenset({WorkerState.ACTIVE, WorkerState.DOWN, WorkerState.DRAINING}),
    WorkerState.DOWN: frozenset(
        {WorkerState.PROBING, WorkerState.ASIDE, WorkerState.ACTIVE, WorkerState.REMOVED}
    ),
    WorkerState.DRAINING: frozenset({WorkerState.REMOVED}),
    WorkerState.REMOVED: frozenset(),
}

TAKING = frozenset({WorkerState.ACTIVE, WorkerState.SUSPECT})
"""States in which a worker is given new steps."""

SERVING = frozenset({WorkerState.ACTIVE, WorkerState.SUSPECT, WorkerState.DRAINING})
"""States in which the byte path may talk to the worker."""

WAITING = frozenset({WorkerState.PROBING, WorkerState.ASIDE, WorkerState.DOWN})
"""States in which it is asked who it is, until it can be taken."""


class IllegalMove(RuntimeError):
    """A fault of the fleet itself: a move that the table does not have."""


def check_move(source: WorkerState, target: WorkerState) -> None:
    if target not in LEGAL_MOVES[source]:
        raise IllegalMove(f"a worker cannot go from {source} to {target}")
