"""What a step may go through, and what each ending means.

Invariant: ENDED has no way out, so a second ending is an error and not a second count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from heddle_contracts.steps import Outcome


class StepPhase(StrEnum):
    """Where a step stands, seen from the client's side. (A StrEnum hashes in C; it is looked up often.)"""

    ARRIVED = "arrived"
    DISPATCHED = "dispatched"
    ANSWERING = "answering"
    ENDED = "ended"


LEGAL_MOVES: Final[Mapping[StepPhase, frozenset[StepPhase]]] = {
    StepPhase.ARRIVED: frozenset({StepPhase.DISPATCHED, StepPhase.ENDED}),
    # Again DISPATCHED: the next attempt, while no byte of an answer has reached the client.
    StepPhase.DISPATCHED: frozenset({StepPhase.DISPATCHED, StepPhase.ANSWERING, StepPhase.ENDED}),
    StepPhase.ANSWERING: frozenset({StepPhase.ENDED}),
    StepPhase.ENDED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Ending:
    """``whole``: the worker's answer was complete. ``blames``: whose fault it is, if anybody's."""

    whole: bool
    blames: Literal["nobody", "client", "worker", "fleet"]


ENDINGS: Final[Mapping[Outcome, Ending]] = {
    Outcome.DONE: Ending(whole=True, blames="nobody"),
    Outcome.ABORTED: Ending(whole=False, blames="client"),
    Outcome.CLIENT_ERROR: Ending(whole=True, blames="client"),
    Outcome.WORKER_ERROR: Ending(whole=False, blames="worker"),
    Outcome.WORKER_LOST: Ending(whole=False, blames="worker"),
    Outcome.TIMED_OUT: Ending(whole=False, blames="worker"),
    Outcome.REJECTED: Ending(whole=False, blames="fleet"),
}
