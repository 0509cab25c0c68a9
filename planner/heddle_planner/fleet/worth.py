"""Whether other MP degrees pay for the restarts they take. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from heddle_contracts.fleet import HostStatus
from heddle_contracts.worker_profile import WorkerProfile
from heddle_core import CostName

from heddle_planner.fleet.shape import Reshaping, reshape
from heddle_planner.plan_lengths import Lengths, Problem, plan_lengths

UNKNOWN_START_S: Final = 120.0
"""What a start is taken to cost where no host has measured one."""


@dataclass(frozen=True, slots=True)
class Worth:
    """Planned makespans of the lengths, seconds; ``restart_s``: what the starts take, one after the other."""

    now_s: float
    then_s: float
    restart_s: float

    @property
    def pays(self) -> bool:
        return self.now_s > self.then_s + self.restart_s

    def __str__(self) -> str:
        return (
            f"planned makespan {self.now_s:.0f} s as it is, {self.then_s:.0f} s then; "
            f"the restarts take {self.restart_s:.0f} s"
        )


def best_shape(
    hosts: Mapping[str, HostStatus],
    lengths: Lengths,
    profile: WorkerProfile,
    allowed: tuple[int, ...],
    floor: float,
) -> tuple[Reshaping, Worth | None]:
    """The moves to the degrees that suit these lengths best, and what they are worth; None where nothing runs
    yet. ``allowed``: degrees that may be used. Raises ShapeError, ValueError.
    """
    gpus = sum(one.gpus for one in hosts.values())
    usable = tuple(one for one in allowed if one in profile.degrees)
    cost: CostName = "simulated" if profile.has_steps else "size_only"
    best = plan_lengths(lengths, Problem(profile, gpus, usable, cost=cost))
    moves = reshape(hosts, [group["degree"] for group in best["workers"]], floor)
    if not moves.before:
        return moves, None
    now = plan_lengths(lengths, Problem(profile, gpus, usable, cost=cost, workers=moves.before))
    measured = [
        engine.started_in_s
        for one in hosts.values()
        for engine in one.engines
        if engine.started_in_s is not None
    ]
    start_s = max(measured, default=UNKNOWN_START_S)
    return moves, Worth(now["makespan"], best["makespan"], start_s * moves.starts)
