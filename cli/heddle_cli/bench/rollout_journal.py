"""What the decision core's journal says of a rollout: what was predicted, what that changed, which KV moved.

A journal is JSON lines of (now, event). Trajectories that were announced have handles in the order of the
announcement.
"""

import json
import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from heddle_cli.exit_codes import CommandFailed, Exit

MICROSECONDS: Final = 1e6
Told = tuple[float, float]
"""Mean and sigma of a remaining length."""

_COUNTED: Final = {
    "predicted": "predictions",
    "install_plan": "plans",
    "migration_landed": "moves_landed",
    "migration_failed": "moves_failed",
}


@dataclass(frozen=True, slots=True)
class Shares:
    """A plan's shares of the ranks. Real seconds. ``since_first_s``: from the first step to its coming into
    force, 0 where it was before; ``ttl_s``: for how long they hold, 0 where those in force go; ``partition``:
    (worker's handle, trajectories), longest first.
    """

    since_first_s: float
    ttl_s: float
    partition: Sequence[tuple[int, int]]


@dataclass(slots=True)
class JournalSummary:
    """Counts of events. ``re_ranks``: predictions that gave a trajectory another place among all that are
    predicted. ``told``: of each announced trajectory, what was known of it before each of its steps.
    ``shares``: what came into force of plans, in order.
    """

    events: int = 0
    predictions: int = 0
    re_ranks: int = 0
    plans: int = 0
    moves_landed: int = 0
    moves_failed: int = 0
    told: list[list[Told]] = field(default_factory=list)
    shares: list[Shares] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """The counts alone."""
        names = ("events", "predictions", "re_ranks", "plans", "moves_landed", "moves_failed")
        return {name: getattr(self, name) for name in names}


class _Ranks:
    """Places among all that are predicted, by the mean, with no regard to who began when."""

    def __init__(self) -> None:
        self._means: dict[int, float] = {}
        self._sorted: list[float] = []

    def tell(self, trajectory: int, mean: float) -> bool:
        """Whether this gives it another place."""
        before = self.forget(trajectory)
        after = bisect_left(self._sorted, mean)
        self._means[trajectory] = mean
        insort(self._sorted, mean)
        return before is not None and before != after

    def forget(self, trajectory: int) -> int | None:
        """Its place, if it had one."""
        mean = self._means.pop(trajectory, None)
        if mean is None:
            return None
        place = bisect_left(self._sorted, mean)
        del self._sorted[place]
        return place


def summarise(path: Path) -> JournalSummary:
    """Raises CommandFailed where the journal cannot be read."""
    try:
        with path.open("rb") as lines:
            next(lines)  # the header
            return _summary(json.loads(line) for line in lines if line.strip())
    except (OSError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise CommandFailed(Exit.FAILED, f"{path}: is no journal of a rollout: {error!r}") from error


def _summary(entries: Any) -> JournalSummary:
    found = JournalSummary()
    ranks = _Ranks()
    places: dict[int, int] = {}
    latest: dict[int, Told] = {}
    first_us: int | None = None
    for entry in entries:
        event = entry.get("event")
        if event is None:
            continue
        found.events += 1
        [(kind, fields)] = event.items()
        if (name := _COUNTED.get(kind)) is not None:
            setattr(found, name, getattr(found, name) + 1)
        if kind in ("predicted", "trajectory_expected"):
            trajectory, mean, sigma = fields["trajectory"], fields["mean"], fields["sigma"]
            if mean is None or sigma is None:
                continue  # refused by the core
            if kind == "trajectory_expected" and trajectory not in places:
                places[trajectory] = len(places)
                found.told.append([])
            latest[trajectory] = mean, sigma
            found.re_ranks += ranks.tell(trajectory, mean) and kind == "predicted"
        elif kind == "install_plan":
            since = 0 if first_us is None else entry["now"] - first_us
            found.shares.append(_shares(fields, since / MICROSECONDS))
        elif kind == "step_arrived":
            if first_us is None:
                first_us = entry["now"]
            place = places.get(fields["trajectory"])
            if place is not None:
                found.told[place].append(latest[fields["trajectory"]])
        elif kind == "trajectory_finished":
            ranks.forget(fields["trajectory"])
    return found


def _shares(plan: Mapping[str, Any], since_first_s: float) -> Shares:
    held_ms = plan.get("ttl_ms")
    partition = [(share["worker"], share["size"]) for share in plan["partition"]]
    return Shares(since_first_s, math.inf if held_ms is None else held_ms / 1000, partition)
