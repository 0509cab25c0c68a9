"""Removes what is old: trajectories that nobody has gone on with for long, each wholly with all its steps;
plans whose time is over; moves of KV. The newest plan of each namespace stays: versions are counted from it.

Works beside a running gateway: a few hundred rows a transaction, so that its writer never waits long
for a lock. A trajectory that goes on in the meantime is left alone. SQLite's file keeps its size and fills up
again; PostgreSQL's autovacuum does the same.
"""

import time
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Table, and_, delete, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncEngine

from heddle_gateway.store.engine import STORE_FAULTS, StoreError, one_line
from heddle_gateway.store.tables import migrations, plans, spill_segments, steps, trajectories

BATCH = 200
"""Trajectories, plans or moves in one transaction."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, or would be."""

    trajectories: int = 0
    steps: int = 0
    plans: int = 0
    migrations: int = 0


async def prune(engine: AsyncEngine, older_than_s: float, *, dry_run: bool = False) -> Pruned:
    """Removes trajectories last seen, plans made and over, and moves ended more than ``older_than_s`` seconds
    ago.

    Raises ValueError for a negative age, StoreError when the database cannot be read or written; what was
    removed until then stays removed.
    """
    if not older_than_s >= 0:
        raise ValueError(f"older_than: {older_than_s} is not an age in seconds")
    before = time.time() - older_than_s
    try:
        if dry_run:
            return await _count(engine, before)
        return await _remove(engine, before)
    except STORE_FAULTS as fault:
        raise StoreError(f"the history database cannot be pruned: {one_line(fault)}") from fault


async def _count(engine: AsyncEngine, before: float) -> Pruned:
    t, s = trajectories.c, steps.c
    old = trajectories.join(steps, and_(t.trajectory_id == s.trajectory_id, t.tenant == s.tenant))
    async with engine.connect() as connection:
        found = await connection.scalar(
            select(func.count()).select_from(trajectories).where(t.last_seen < before)
        )
        rows = await connection.scalar(select(func.count()).select_from(old).where(t.last_seen < before))
        kept = await connection.scalar(select(func.count()).select_from(plans).where(_over(before)))
        ended = select(func.count()).select_from(migrations).where(migrations.c.ended_at < before)
        return Pruned(found or 0, rows or 0, kept or 0, await connection.scalar(ended) or 0)


def _over(before: float) -> ColumnElement[bool]:
    """Plans that can go."""
    same = plans.alias()
    newest = select(func.max(same.c.version)).where(same.c.namespace == plans.c.namespace).scalar_subquery()
    return and_(plans.c.made_at < before, plans.c.expires_at < before, plans.c.version < newest)


async def _remove(engine: AsyncEngine, before: float) -> Pruned:
    t, s = trajectories.c, steps.c
    oldest = (
        select(t.trajectory_id, t.tenant)
        .where(t.last_seen < before)
        .order_by(t.last_seen)
        .limit(BATCH)
        # PostgreSQL: a trajectory that is written right now goes on, so it is not old.
        .with_for_update(skip_locked=True)
    )
    key = tuple_(t.trajectory_id, t.tenant)
    # The first statement writes: SQLite refuses a transaction that reads first if another has written.
    remove = delete(trajectories).where(key.in_(oldest)).returning(t.trajectory_id, t.tenant)
    removed = Pruned()
    while True:
        async with engine.begin() as connection:
            gone = [tuple(row) for row in await connection.execute(remove)]
            of_those = delete(steps).where(tuple_(s.trajectory_id, s.tenant).in_(gone))
            rows = (await connection.execute(of_those)).rowcount if gone else 0
        removed = replace(removed, trajectories=removed.trajectories + len(gone), steps=removed.steps + rows)
        if len(gone) < BATCH:
            break
    kept = await _remove_rows(engine, plans, _over(before))
    moves = await _remove_rows(engine, migrations, migrations.c.ended_at < before)
    async with engine.begin() as connection:
        # Their files were removed right after they were read.
        await connection.execute(delete(spill_segments).where(spill_segments.c.read_at < before))
    return replace(removed, plans=kept, migrations=moves)


async def _remove_rows(engine: AsyncEngine, table: Table, old: ColumnElement[bool]) -> int:
    """Removes what is ``old``, a batch a transaction; how many rows that were."""
    keys = table.primary_key.columns
    batch = select(*keys).where(old).limit(BATCH)
    remove = delete(table).where(tuple_(*keys).in_(batch))
    removed = 0
    while True:
        async with engine.begin() as connection:
            rows = (await connection.execute(remove)).rowcount
        removed += rows
        if rows < BATCH:
            return removed
