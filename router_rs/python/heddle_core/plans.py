"""What ``solve`` takes and gives, as types."""

from typing import Literal, TypedDict

SolverName = Literal["dp", "anneal", "exact"]
CostName = Literal["size_only", "simulated"]


class PlannedWorker(TypedDict):
    """One worker of a plan: indices into ``lengths``, longest first; cost in seconds."""

    degree: int
    members: list[int]
    cost: float


class SolvedPlan(TypedDict):
    """Workers in the order of the ranks they take, longest trajectories first; ``seconds`` is the time to
    solve.
    """

    makespan: float
    gpus_used: int
    seconds: float
    workers: list[PlannedWorker]
