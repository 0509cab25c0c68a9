"""Running totals of a trajectory over one batch of ended steps, and the upsert that adds them to the table.

Every column is a sum, a minimum, a maximum or "the newest that is known", so batches may come in any order
and the same total results. (A batch itself must come once: sums are not idempotent; the step rows and the
totals share a transaction.)
"""

from collections.abc import Iterable
from typing import Any

from heddle_contracts.steps import Outcome
from sqlalchemy import ColumnElement, case, func
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert

from heddle_gateway.store.tables import trajectories

SUMMED = ("prompt_tokens", "cached_tokens", "output_tokens", *(outcome.value for outcome in Outcome))
# Set once by identity; the first value that is known stays.
FIRST_KNOWN = ("group_id", "sample", "parent_id")
# Of the step that ended last; a step that never reached a worker says nothing of the worker.
NEWEST_KNOWN = ("model", "worker")


def totals_of(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row of `trajectories` per trajectory among the step rows, in order of key.

    The order matters on PostgreSQL: two writers that lock the same rows in one order cannot deadlock.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["trajectory_id"], row["tenant"])
        total = found.get(key)
        if total is None:
            total = found[key] = {
                "trajectory_id": row["trajectory_id"],
                "tenant": row["tenant"],
                "source": row["source"],
                "steps": 0,
                "segments": 1,
                "first_seen": row["arrived_at"],
                "last_seen": row["ended_at"],
                **dict.fromkeys(SUMMED, 0),
                **dict.fromkeys(FIRST_KNOWN),
                **dict.fromkeys(NEWEST_KNOWN),
            }
        total["steps"] = max(total["steps"], row["step"] + 1)
        total["segments"] = max(total["segments"], row["segment"] + 1)
        total[row["outcome"]] += 1
        total["prompt_tokens"] += row["prompt_tokens"]
        total["cached_tokens"] += row["cached_tokens"]
        total["output_tokens"] += row["output_tokens"]
        total["first_seen"] = min(total["first_seen"], row["arrived_at"])
        for name in FIRST_KNOWN:
            if total[name] is None:
                total[name] = row[name]
        newest = row["ended_at"] >= total["last_seen"]
        for name in NEWEST_KNOWN:
            if row[name] is not None and (newest or total[name] is None):
                total[name] = row[name]
        if newest:
            total["last_seen"] = row["ended_at"]
    return [found[key] for key in sorted(found)]


def upsert_totals(dialect: str) -> Insert:
    """The statement that adds rows of `totals_of`; ``dialect`` is SQLAlchemy's name, sqlite or postgresql."""
    insert = postgresql.insert(trajectories) if dialect == "postgresql" else sqlite.insert(trajectories)
    old, new = trajectories.c, insert.excluded
    is_newer: ColumnElement[bool] = new["last_seen"] >= old["last_seen"]
    changes: dict[str, ColumnElement[Any]] = {name: old[name] + new[name] for name in SUMMED}
    for name in FIRST_KNOWN:
        changes[name] = func.coalesce(old[name], new[name])
    for name in NEWEST_KNOWN:
        changes[name] = case(
            (is_newer, func.coalesce(new[name], old[name])), else_=func.coalesce(old[name], new[name])
        )
    for name in ("steps", "segments", "last_seen"):
        changes[name] = case((new[name] > old[name], new[name]), else_=old[name])
    changes["first_seen"] = case(
        (new["first_seen"] < old["first_seen"], new["first_seen"]), else_=old["first_seen"]
    )
    return insert.on_conflict_do_update(index_elements=["trajectory_id", "tenant"], set_=changes)
