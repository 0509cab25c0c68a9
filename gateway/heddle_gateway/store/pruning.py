"""Removes trajectories that nobody has gone on with for long: each wholly, with all its steps.

Works beside a running gateway: a few hundred trajectories a transaction, so that its writer never waits long
for a lock. A trajectory that goes on in the meantime is left alone. SQLite's file keeps its size and fills up
again; PostgreSQL's autovacuum does the same.
"""

import time
from dataclasses import dataclass

from sqlalchemy import and_, delete, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncEngine

from heddle_gateway.store.engine import STORE_FAULTS, StoreError, one_line
from heddle_gateway.store.tables import spill_segments, steps, trajectories

BATCH = 200
"""Trajectories in one transaction."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, or would be."""

    trajectories: int
    steps: int


async def prune(engine: AsyncEngine, older_than_s: float, *, dry_run: bool = False) -> Pruned:
    """Removes trajectories last seen more than ``older_than_s`` seconds ago.

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
    return Pruned(found or 0, rows or 0)


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
    removed = Pruned(0, 0)
    while True:
        async with engine.begin() as connection:
            gone = [tuple(row) for row in await connection.execute(remove)]
            of_those = delete(steps).where(tuple_(s.trajectory_id, s.tenant).in_(gone))
            rows = (await connection.execute(of_those)).rowcount if gone else 0
        removed = Pruned(removed.trajectories + len(gone), removed.steps + rows)
        if len(gone) < BATCH:
            break
    async with engine.begin() as connection:
        # Their files were removed right after they were read.
        await connection.execute(delete(spill_segments).where(spill_segments.c.read_at < before))
    return removed
