"""PostgreSQL goes away under the writer: nothing is lost within the bound, what is beyond it is counted."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.admin import WriterState
from heddle_gateway.store.engine import open_engine
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.store.tables import steps
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from .scripted_store import step

pytestmark = pytest.mark.services

WAIT_S = 60.0


@pytest.fixture
async def engine(own_postgresql: Any) -> AsyncIterator[AsyncEngine]:
    engine = open_engine(own_postgresql.new_database())
    yield engine
    await engine.dispose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  a server is waited for
            await asyncio.sleep(0.01)


async def in_outage(history: HistoryWriter) -> None:
    await until(lambda: history.stats().state is WriterState.BACKING_OFF)


async def written(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as connection:
        return list((await connection.execute(select(steps.c.step).order_by(steps.c.step))).scalars())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_an_outage_costs_no_record(
    own_postgresql: Any, engine: AsyncEngine, tmp_path: Path, how: int
) -> None:
    limits = HistoryLimits(capacity=400, batch=50, spill_folder=tmp_path, longest_retry_s=0.2)
    history = HistoryWriter(StepWriter(engine), limits)
    await history.start()
    for number in range(100):
        history.put(step(number))
    assert await history.flush(WAIT_S)
    own_postgresql.stop(how)
    # More than the queue holds: the rest is spilled.
    for number in range(100, 1100):
        history.put(step(number))
        if number % 100 == 0:
            # Room for the next hundred.
            await until(lambda: history.stats().queued <= limits.capacity - 100)
    assert history.stats().spilled > 0
    own_postgresql.start()
    assert await history.flush(WAIT_S)
    stats = history.stats()
    await history.close()
    assert stats.failed_writes > 0
    assert await written(engine) == list(range(1100)), "each once"
    assert (stats.dropped, stats.refused) == (0, 0)


async def test_beyond_the_bound_records_are_dropped_and_counted(
    own_postgresql: Any, engine: AsyncEngine
) -> None:
    history = HistoryWriter(StepWriter(engine), HistoryLimits(capacity=50, longest_retry_s=0.2))
    await history.start()
    history.put(step(0))
    assert await history.flush(WAIT_S)
    own_postgresql.stop()
    for number in range(1, 201):
        history.put(step(number))
    await in_outage(history)
    assert history.stats().dropped == 150
    own_postgresql.start()
    assert await history.flush(WAIT_S)
    assert await written(engine) == list(range(51))
    await history.close()
