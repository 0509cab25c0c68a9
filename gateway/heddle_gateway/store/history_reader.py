"""Reads history for the admin API: pages of trajectories, one trajectory, its steps."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from heddle_contracts.admin import (
    Phase,
    StepPage,
    TrajectoryFilter,
    TrajectoryKey,
    TrajectorySort,
    TrajectorySummary,
)
from heddle_contracts.steps import Outcome, StepRecord
from sqlalchemy import ColumnElement, Row, Select, and_, func, not_, or_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from heddle_gateway.store.engine import reading
from heddle_gateway.store.tables import steps, trajectories

RECENT_PAGE: Final = 2000

Position = tuple[float, str, str]
"""Where a page ends: (value of the sort key, trajectory id, tenant)."""

_t = trajectories.c
# A step that ended after the trajectory did opens it again: the agent went on.
_ENDED = and_(_t.ended_at.is_not(None), _t.last_seen <= _t.ended_at)


class HistoryReader:
    """The read side of history. Every method raises StoreError when the database cannot be read."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def page(
        self, wanted: TrajectoryFilter, sort: TrajectorySort, after: Position | None, limit: int
    ) -> list[TrajectorySummary]:
        """Up to ``limit`` trajectories beyond ``after`` in the order of ``sort``."""
        query = select(trajectories).where(*conditions(wanted))
        column = _t[sort.field]
        if after is not None:
            value, trajectory_id, tenant = after
            beyond = column < value if sort.descending else column > value
            tied = or_(
                _t.trajectory_id > trajectory_id,
                and_(_t.trajectory_id == trajectory_id, _t.tenant > tenant),
            )
            query = query.where(or_(beyond, and_(column == value, tied)))
        first = column.desc() if sort.descending else column.asc()
        return await self._summaries(query.order_by(first, _t.trajectory_id, _t.tenant).limit(limit))

    async def trajectory(self, trajectory_id: str, tenant: str | None = None) -> list[TrajectorySummary]:
        """The trajectories of this id: one per tenant that used it."""
        query = select(trajectories).where(_t.trajectory_id == trajectory_id).order_by(_t.tenant)
        if tenant is not None:
            query = query.where(_t.tenant == tenant)
        return await self._summaries(query)

    async def totals(self, keys: Sequence[TrajectoryKey]) -> dict[TrajectoryKey, TrajectorySummary]:
        """Those of the given trajectories that have ended steps."""
        ids = sorted({key.trajectory_id for key in keys})
        wanted = set(keys)
        found = await self._summaries(select(trajectories).where(_t.trajectory_id.in_(ids)))
        return {summary.key: summary for summary in found if summary.key in wanted}

    async def steps(self, key: TrajectoryKey, after: int | None, limit: int) -> StepPage:
        """Ended steps of a trajectory in the order they were written, beyond row ``after``."""
        query = (
            select(steps)
            .where(steps.c.trajectory_id == key.trajectory_id, steps.c.tenant == key.tenant)
            .order_by(steps.c.id)
            .limit(limit + 1)
        )
        if after is not None:
            query = query.where(steps.c.id > after)
        async with reading(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        more = len(rows) > limit
        return StepPage(
            items=[_record_of(row) for row in rows[:limit]], next_after=rows[limit - 1].id if more else None
        )

    async def recent(self, since: float, limit: int) -> AsyncIterator[list[TrajectorySummary]]:
        """Trajectories seen since then and not ended, newest first, by pages: what a new process takes up."""
        query = select(trajectories).where(_t.last_seen >= since, not_(_ENDED))
        async with reading(self._engine) as connection:
            rows = await connection.stream(query.order_by(_t.last_seen.desc()).limit(limit))
            async for page in rows.partitions(RECENT_PAGE):
                yield [_summary_of(row) for row in page]

    async def _summaries(self, query: Select[Any]) -> list[TrajectorySummary]:
        async with reading(self._engine) as connection:
            return [_summary_of(row) for row in await connection.execute(query)]


def conditions(wanted: TrajectoryFilter) -> list[ColumnElement[bool]]:
    """Of the table of trajectories."""
    found: list[ColumnElement[bool]] = [
        column == value
        for column, value in (
            (_t.model, wanted.model),
            (_t.worker, wanted.worker),
            (_t.group_id, wanted.group),
            (_t.source, wanted.source),
            (_t.tenant, wanted.tenant),
        )
        if value is not None
    ]
    if wanted.since is not None:
        found.append(_t.last_seen >= wanted.since)
    if wanted.prefix:
        # Not LIKE: SQLite's ignores case.
        found.append(func.substr(_t.trajectory_id, 1, len(wanted.prefix)) == wanted.prefix)
    match wanted.phase:
        case None:
            pass
        case Phase.FINISHED | Phase.EXPIRED:
            found += [_ENDED, _t.end_reason == wanted.phase.value]
        case Phase.DORMANT:
            found.append(not_(_ENDED))
        case _:
            raise ValueError(f"history knows no trajectory in phase {wanted.phase}: ask the live view")
    return found


def _summary_of(row: Row[Any]) -> TrajectorySummary:
    ended = row.ended_at is not None and row.last_seen <= row.ended_at
    counts = {outcome: getattr(row, outcome.value) for outcome in Outcome}
    return TrajectorySummary(
        trajectory_id=row.trajectory_id,
        tenant=row.tenant,
        group_id=row.group_id,
        sample=row.sample,
        parent_id=row.parent_id,
        source=row.source,
        model=row.model,
        phase=Phase(row.end_reason) if ended else Phase.DORMANT,
        worker=row.worker,
        steps=row.steps,
        segments=row.segments,
        outcomes={outcome: count for outcome, count in counts.items() if count},
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        first_seen=row.first_seen,
        last_seen=row.last_seen,
        ended_at=row.ended_at if ended else None,
    )


def _record_of(row: Row[Any]) -> StepRecord:
    fields = dict(row._mapping)
    del fields["id"]
    fields["tool_names"] = tuple(json.loads(fields["tool_names"]))
    return StepRecord(**fields)
