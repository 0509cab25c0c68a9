"""The network to PostgreSQL drops what is sent: no connection breaks, and no answer comes."""

import asyncio
from pathlib import Path
from typing import Any

from heddle_gateway.store.engine import open_engine
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.store.tables import steps
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from sqlalchemy import select

from tests.gateway.store.scripted_store import step

from .relay import Relay

WAIT_S = 30.0
PATIENCE_S = 0.5


async def test_history_goes_on_over_a_new_connection_and_writes_each_record_once(
    own_postgresql: Any, tmp_path: Path
) -> None:
    location = own_postgresql.new_database()
    async with Relay(own_postgresql.port) as relay:
        engine = open_engine(location.replace(f":{own_postgresql.port}/", f":{relay.port}/"))
        writer = StepWriter(engine, patience_s=PATIENCE_S)
        limits = HistoryLimits(batch=50, spill_folder=tmp_path, longest_retry_s=0.1)
        history = HistoryWriter(writer, limits)
        await history.start()
        for number in range(50):
            history.put(step(number))
        assert await history.flush(WAIT_S)
        # Its answers are lost, so that it is not known whether what is under way was written.
        relay.cut(towards=False)
        for number in range(50, 150):
            history.put(step(number))
        async with asyncio.timeout(WAIT_S):
            while "took more than" not in (history.stats().last_error or ""):  # noqa: ASYNC110  a server's time
                await asyncio.sleep(0.01)
        relay.heal()
        assert await history.flush(WAIT_S)
        stats = history.stats()
        await history.close()
        async with engine.connect() as connection:
            found = list((await connection.execute(select(steps.c.step).order_by(steps.c.step))).scalars())
        await engine.dispose()
    assert stats.failed_writes > 0
    assert (stats.dropped, stats.refused) == (0, 0)
    assert found == list(range(150)), "each once"


async def test_a_slow_server_gets_more_time_with_each_try(own_postgresql: Any) -> None:
    engine = open_engine(own_postgresql.new_database())
    writer = StepWriter(engine, patience_s=0.05)
    assert await writer.prepare()
    async with engine.begin() as holder:
        await holder.exec_driver_sql("LOCK TABLE steps IN ACCESS EXCLUSIVE MODE")
        took = []
        for _ in range(3):
            began = asyncio.get_running_loop().time()
            assert await writer.write([step(1)], [], "one") == "unavailable"
            took.append(asyncio.get_running_loop().time() - began)
    for bound, seconds in zip((0.05, 0.1, 0.2), took, strict=True):
        assert seconds >= bound
    assert await writer.write([step(1)], [], "one") == "written"
    await engine.dispose()
