"""What history keeps beside ended steps: the ends of trajectories, plans, ended moves of KV."""

from collections.abc import Sequence
from dataclasses import dataclass

from heddle_contracts.admin import EndReason
from heddle_contracts.migrations import Move
from heddle_contracts.planning import Plan


@dataclass(frozen=True, slots=True)
class EndedTrajectory:
    """A trajectory the gateway has forgotten. ``ended_at``: seconds of the Unix epoch."""

    tenant: str
    trajectory_id: str
    reason: EndReason
    ended_at: float


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan when it was kept, or put in force (again). ``lengths``: those it was made for, where they were
    given.
    """

    plan: Plan
    lengths: Sequence[float] = ()


HistoryRecord = EndedTrajectory | PlanRecord | Move
"""What `HistoryWriter` takes that is no step. A move is recorded once, when it has ended."""
