"""Running totals of a trajectory over one batch of ended steps, and the upsert that adds them to the table.

Every column is a sum, a minimum, a maximum, "the first that is known" or "the newest that is known", so
batches may come in any order and the same total results. A batch must come once: its step rows and its totals
share a transaction.
"""

from collections.abc import Iterable
from typing import Any

from heddle_contracts.steps import Outcome
from sqlalchemy import ColumnElement, and_, bindparam, case, func, or_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert

from heddle_gateway.store.tables import trajectories

SUMMED = ("prompt_tokens", "cached_tokens", "output_tokens", *(outcome.value for outcome in Outcome))
# Set once by identity; the first value that is known stays.
FIRST_KNOWN = ("group_id", "sample", "parent_id")
# Of the newest step that knew it (one that was rejected knows no worker). Its time stands beside it: without
# that, a step that knows nothing could make an older value look newer.
NEWEST_KNOWN = {"model": "model_at", "worker": "worker_at"}
COLUMNS = (
    "trajectory_id",
    "tenant",
    "source",
    "steps",
    "segments",
    "first_seen",
    "last_seen",
    *FIRST_KNOWN,
    *NEWEST_KNOWN,
    *NEWEST_KNOWN.values(),
    *SUMMED,
)


class Totals:
    """One row of `trajectories`, for the steps added so far. Attributes are `COLUMNS`."""

    __slots__ = COLUMNS

    def __init__(self, step: Any) -> None:
        self.trajectory_id = step.trajectory_id
        self.tenant = step.tenant
        self.source = step.source
        self.steps = 0
        self.segments = 1
        self.first_seen = step.arrived_at
        self.last_seen = step.ended_at
        self.group_id = self.sample = self.parent_id = None
        self.model = self.model_at = self.worker = self.worker_at = None
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.done = self.aborted = self.worker_lost = self.client_error = self.worker_error = 0
        self.rejected = self.timed_out = 0

    def add(self, step: Any) -> None:
        """Adds an object with the attributes of StepRecord."""
        ended_at = step.ended_at
        self.steps = max(self.steps, step.step + 1)
        self.segments = max(self.segments, step.segment + 1)
        self.first_seen = min(self.first_seen, step.arrived_at)
        self.last_seen = max(self.last_seen, ended_at)
        self.prompt_tokens += step.prompt_tokens
        self.cached_tokens += step.cached_tokens
        self.output_tokens += step.output_tokens
        outcome = step.outcome
        setattr(self, outcome, getattr(self, outcome) + 1)
        if self.group_id is None:
            self.group_id = step.group_id
        if self.sample is None:
            self.sample = step.sample
        if self.parent_id is None:
            self.parent_id = step.parent_id
        if step.model is not None and (self.model_at is None or ended_at >= self.model_at):
            self.model, self.model_at = step.model, ended_at
        if step.worker is not None and (self.worker_at is None or ended_at >= self.worker_at):
            self.worker, self.worker_at = step.worker, ended_at


def totals_of(ended_steps: Iterable[Any]) -> list[Totals]:
    """The totals of each trajectory among the steps, in order of key.

    The order matters on PostgreSQL: two writers that lock the same rows in one order cannot deadlock.
    """
    found: dict[tuple[str, str], Totals] = {}
    for step in ended_steps:
        key = (step.trajectory_id, step.tenant)
        total = found.get(key)
        if total is None:
            total = found[key] = Totals(step)
        total.add(step)
    return [found[key] for key in sorted(found)]


def upsert_totals(dialect: str) -> Insert:
    """The statement that adds one row of totals; ``dialect`` is SQLAlchemy's name, sqlite or postgresql."""
    insert = postgresql.insert(trajectories) if dialect == "postgresql" else sqlite.insert(trajectories)
    insert = insert.values({name: bindparam(name) for name in COLUMNS})
    old, new = trajectories.c, insert.excluded
    changes: dict[str, ColumnElement[Any]] = {name: old[name] + new[name] for name in SUMMED}
    for name in FIRST_KNOWN:
        changes[name] = func.coalesce(old[name], new[name])
    for name, at in NEWEST_KNOWN.items():
        # NULL is not newer than anything, and anything is newer than NULL.
        newer = and_(new[at].is_not(None), or_(old[at].is_(None), new[at] >= old[at]))
        changes[name] = case((newer, new[name]), else_=old[name])
        changes[at] = case((newer, new[at]), else_=old[at])
    for name in ("steps", "segments", "last_seen"):
        changes[name] = case((new[name] > old[name], new[name]), else_=old[name])
    changes["first_seen"] = case(
        (new["first_seen"] < old["first_seen"], new["first_seen"]), else_=old["first_seen"]
    )
    return insert.on_conflict_do_update(index_elements=["trajectory_id", "tenant"], set_=changes)
