"""The plans that were made, by version, and which of them is in force.

Invariants: versions grow and are never used twice; at most one plan is current; the oldest go first, but
never the current one; a plan's state follows from the book and the time and is not stored in it.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Literal

from heddle_contracts.planning import Plan

CAPACITY: Final = 32

State = Literal["candidate", "current", "replaced", "expired"]


class PlanBook:
    """Times: seconds of the Unix epoch."""

    def __init__(self) -> None:
        self._plans: OrderedDict[int, Plan] = OrderedDict()
        self._lengths: dict[int, array[float]] = {}
        self._been_current: set[int] = set()
        self._last_version = 0
        self._current: int | None = None

    def __len__(self) -> int:
        return len(self._plans)

    def keep(self, plan: Plan, lengths: Sequence[float] = ()) -> Plan:
        """The plan with its version. ``lengths``: those it was made for, where they were given."""
        self._last_version += 1
        kept = plan.model_copy(update={"version": self._last_version})
        self._plans[self._last_version] = kept
        if lengths:
            self._lengths[self._last_version] = array("d", lengths)
        while len(self._plans) > CAPACITY:
            oldest = next(version for version in self._plans if version != self._current)
            del self._plans[oldest]
            self._been_current.discard(oldest)
            self._lengths.pop(oldest, None)
        return kept

    def get(self, version: int, now: float) -> Plan | None:
        plan = self._plans.get(version)
        return plan.model_copy(update={"state": self._state(plan, now)}) if plan is not None else None

    def lengths(self, version: int) -> Sequence[float]:
        """Those that a plan was made for; empty for a plan of what was live."""
        return self._lengths.get(version, ())

    def current(self, now: float) -> Plan | None:
        """The plan in force; one that has expired is not, whether or not that was noticed."""
        plan = self.in_force
        return self.get(plan.version or 0, now) if plan is not None and now < plan.expires_at else None

    @property
    def in_force(self) -> Plan | None:
        """The plan that was put in force last and not taken out since."""
        return self._plans.get(self._current) if self._current is not None else None

    def newest_first(self, now: float) -> list[Plan]:
        found = [self.get(version, now) for version in reversed(self._plans)]
        return [plan for plan in found if plan is not None]

    def put_in_force(self, version: int, expires_at: float) -> Plan:
        """Raises KeyError for a version that is not kept."""
        plan = self._plans[version] = self._plans[version].model_copy(update={"expires_at": expires_at})
        self._current = version
        self._been_current.add(version)
        return plan

    def take_out_of_force(self) -> None:
        self._current = None

    def _state(self, plan: Plan, now: float) -> State:
        if plan.version == self._current and now < plan.expires_at:
            return "current"
        if now >= plan.expires_at:
            return "expired"
        return "replaced" if plan.version in self._been_current else "candidate"
