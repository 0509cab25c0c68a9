"""Whether other MP degrees pay for the restarts they take. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from heddle_contracts.fleet import HostStatus
from heddle_contracts.worker_profile import WorkerProfile
from heddle_core import CostName

from heddle_planner.fleet.shape import Reshaping, ShapeError, reshape
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


def _fit(degrees: Sequence[int], hosts: Mapping[str, HostStatus]) -> bool:
    """Whether engines of these degrees have room on the hosts, each on one of them."""
    room = [one.gpus for one in hosts.values()]
    for degree in sorted(degrees, reverse=True):
        place = min(
            (at for at, left in enumerate(room) if left >= degree), key=room.__getitem__, default=None
        )
        if place is None:
            return False
        room[place] -= degree
    return True


def best_shape(
    hosts: Mapping[str, HostStatus],
    lengths: Lengths,
    profile: WorkerProfile,
    allowed: tuple[int, ...],
    floor: float,
) -> tuple[Reshaping, Worth | None]:
    """The moves to the degrees that suit these lengths best, and what they are worth; None where nothing runs
    yet. ``allowed``: degrees that may be used; those that do not fit on these hosts, alone or beside each
    other, are left out. Raises ShapeError, ValueError.
    """
    largest = max((one.gpus for one in hosts.values()), default=0)
    usable = tuple(one for one in allowed if one in profile.degrees and one <= largest)
    if not usable:
        raise ShapeError(
            f"--allowed: none of {', '.join(map(str, allowed))} is in the profile and fits on a host;"
            f" the largest has {largest} GPUs"
        )
    # What is left of a host beside engines of the smallest degree is of no use.
    gpus = sum(one.gpus // min(usable) * min(usable) for one in hosts.values())
    cost: CostName = "simulated" if profile.has_steps else "size_only"
    while True:
        best = plan_lengths(lengths, Problem(profile, gpus, usable, cost=cost))
        wanted = [group["degree"] for group in best["workers"]]
        if len(usable) == 1 or _fit(wanted, hosts):
            break
        usable = tuple(one for one in usable if one != max(wanted))
    moves = reshape(hosts, wanted, floor)
    if not moves.before:
        return moves, None
    now = plan_lengths(lengths, Problem(profile, sum(moves.before), usable, cost=cost, workers=moves.before))
    measured = [
        engine.started_in_s
        for one in hosts.values()
        for engine in one.engines
        if engine.started_in_s is not None
    ]
    start_s = max(measured, default=UNKNOWN_START_S)
    return moves, Worth(now["makespan"], best["makespan"], start_s * moves.starts)
