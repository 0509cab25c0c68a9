"""The plans in memory, by version, and which of them is in force.

Invariants: versions grow and are never used twice; at most one plan is current; the oldest go first, but
never the current one, nor one that was just fetched from history; a plan's state follows from the book and
the time and is not stored in it.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Final, Literal

from heddle_contracts.planning import ActivatedBy, Plan

CAPACITY: Final = 32

State = Literal["candidate", "current", "replaced", "expired"]


class PlanBook:
    """Times: seconds of the Unix epoch."""

    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}
        self._lengths: dict[int, array[float]] = {}
        self.last_version = 0
        """The highest that was given."""
        self.on_change: Callable[[], None] = lambda: None
        self._current: int | None = None

    def __len__(self) -> int:
        return len(self._plans)

    def keep(self, plan: Plan, lengths: Sequence[float] = ()) -> Plan:
        """The plan with its version. ``lengths``: those it was made for, where they were given."""
        kept = plan.model_copy(update={"version": self.last_version + 1})
        self.admit(kept, lengths)
        return kept

    def admit(self, plan: Plan, lengths: Sequence[float] = ()) -> None:
        """Takes in a plan that has its version; those to come are counted from there on."""
        assert plan.version is not None, "a dry run is not kept"
        self.last_version = max(self.last_version, plan.version)
        self._plans[plan.version] = plan
        if lengths:
            self._lengths[plan.version] = array("d", lengths)
        while len(self._plans) > CAPACITY:
            oldest = min(self._plans.keys() - {self._current, plan.version})
            del self._plans[oldest]
            self._lengths.pop(oldest, None)
        self.on_change()

    def get(self, version: int, now: float) -> Plan | None:
        plan = self._plans.get(version)
        return self.seen(plan, now) if plan is not None else None

    def seen(self, plan: Plan, now: float) -> Plan:
        """A plan, from here or from history, with its state at this time."""
        return plan.model_copy(update={"state": self._state(plan, now)})

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
        return [self.seen(plan, now) for _, plan in sorted(self._plans.items(), reverse=True)]

    def put_in_force(self, version: int, expires_at: float, at: float, by: ActivatedBy) -> Plan:
        """``at``, ``by``: when and by whom. Raises KeyError for a version that is not in memory."""
        facts = {"expires_at": expires_at, "activated_at": at, "activated_by": by}
        plan = self._plans[version] = self._plans[version].model_copy(update=facts)
        self._current = version
        self.on_change()
        return plan

    def take_out_of_force(self) -> None:
        self._current = None
        self.on_change()

    def _state(self, plan: Plan, now: float) -> State:
        if plan.version == self._current and now < plan.expires_at:
            return "current"
        if now >= plan.expires_at:
            return "expired"
        return "replaced" if plan.activated_at is not None else "candidate"
