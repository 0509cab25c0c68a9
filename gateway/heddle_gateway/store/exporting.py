"""Rows of the history for a spreadsheet or a script: one a trajectory or one a step, oldest first."""

import json
from collections.abc import AsyncGenerator
from typing import Any

from heddle_contracts.admin import TrajectoryFilter
from sqlalchemy import Select, and_, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from heddle_gateway.store.engine import reading
from heddle_gateway.store.history_reader import conditions
from heddle_gateway.store.tables import steps, trajectories

_INNER = frozenset({"id", "schema_version", "model_at", "worker_at"})
"""Columns that mean nothing outside of the database."""


async def export(
    engine: AsyncEngine, wanted: TrajectoryFilter, *, of_steps: bool
) -> AsyncGenerator[dict[str, Any]]:
    """Times are seconds of the Unix epoch. A trajectory has three sums over its steps, in seconds:
    ``step_seconds`` from arrival to end, ``waited_seconds`` of these before a worker had the step, and
    ``gap_seconds`` between them. Raises StoreError.
    """
    query = _steps(wanted) if of_steps else _trajectories(wanted)
    async with reading(engine) as connection:
        async for row in await connection.stream(query):
            found = dict(row._mapping)
            if of_steps:
                found["tool_names"] = json.loads(found["tool_names"])
            yield found


def _trajectories(wanted: TrajectoryFilter) -> Select[Any]:
    t, s = trajectories.c, steps.c
    sums = (
        select(
            s.trajectory_id,
            s.tenant,
            func.sum(s.ended_at - s.arrived_at).label("step_seconds"),
            func.sum(s.dispatched_at - s.arrived_at).label("waited_seconds"),
            func.sum(s.gap_before_s).label("gap_seconds"),
        )
        .group_by(s.trajectory_id, s.tenant)
        .subquery()
    )
    both = and_(t.trajectory_id == sums.c.trajectory_id, t.tenant == sums.c.tenant)
    return (
        select(
            *(column for column in t if column.name not in _INNER),
            *(sums.c[name] for name in ("step_seconds", "waited_seconds", "gap_seconds")),
        )
        .select_from(trajectories.outerjoin(sums, both))
        .where(*conditions(wanted))
        .order_by(t.first_seen, t.trajectory_id, t.tenant)
    )


def _steps(wanted: TrajectoryFilter) -> Select[Any]:
    t, s = trajectories.c, steps.c
    both = and_(t.trajectory_id == s.trajectory_id, t.tenant == s.tenant)
    return (
        select(*(column for column in s if column.name not in _INNER))
        .select_from(steps.join(trajectories, both))
        .where(*conditions(wanted))
        .order_by(t.first_seen, t.trajectory_id, t.tenant, s.id)
    )
