"""Running totals of a trajectory over one batch of ended steps, and the upsert that adds them to the table.

Every column is a sum, a minimum, a maximum or "the newest that is known", so batches may come in any order
and the same total results. (A batch itself must come once: sums are not idempotent; the step rows and the
totals share a transaction.)
"""

from collections.abc import Iterable
from typing import Any

from heddle_contracts.steps import Outcome
from sqlalchemy import ColumnElement, and_, case, func, or_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert

from heddle_gateway.store.tables import trajectories

SUMMED = ("prompt_tokens", "cached_tokens", "output_tokens", *(outcome.value for outcome in Outcome))
# Set once by identity; the first value that is known stays.
FIRST_KNOWN = ("group_id", "sample", "parent_id")
# Of the newest step that knew it (one that was rejected knows no worker). Its time stands beside it: without
# that, a step that knows nothing could make an older value look newer.
NEWEST_KNOWN = {"model": "model_at", "worker": "worker_at"}


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
                **dict.fromkeys(NEWEST_KNOWN.values()),
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
        total["last_seen"] = max(total["last_seen"], row["ended_at"])
        for name, at in NEWEST_KNOWN.items():
            if row[name] is not None and (total[at] is None or row["ended_at"] >= total[at]):
                total[name], total[at] = row[name], row["ended_at"]
    return [found[key] for key in sorted(found)]


def upsert_totals(dialect: str) -> Insert:
    """The statement that adds rows of `totals_of`; ``dialect`` is SQLAlchemy's name, sqlite or postgresql."""
    insert = postgresql.insert(trajectories) if dialect == "postgresql" else sqlite.insert(trajectories)
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
