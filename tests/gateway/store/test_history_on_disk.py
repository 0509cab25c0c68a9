"""The history queue on a real SQLite file: restarts, locks, a process that is killed."""

import asyncio
import sqlite3
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from heddle_contracts.admin import EndReason, Phase, TrajectoryKey
from heddle_contracts.history import EndedTrajectory
from heddle_contracts.steps import Outcome
from heddle_gateway.store.engine import open_engine
from heddle_gateway.store.history_reader import HistoryReader
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from sqlalchemy.ext.asyncio import AsyncEngine

from .scripted_store import QUICK, accounted, step, until


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = open_engine(str(tmp_path / "history.db"))
    yield engine
    await engine.dispose()


async def test_a_restarted_gateway_goes_on_with_its_trajectories(tmp_path: Path) -> None:
    for start in (0, 3):
        engine = open_engine(str(tmp_path / "history.db"))
        writer = HistoryWriter(StepWriter(engine), HistoryLimits(**QUICK))
        await writer.start()
        for number in range(start, start + 3):
            writer.put(step(number))
        await writer.close()
        await engine.dispose()
    engine = open_engine(str(tmp_path / "history.db"))
    [[found]] = [page async for page in HistoryReader(engine).recent(0.0, 10)]
    assert (found.steps, found.outcomes, found.output_tokens) == (6, {Outcome.DONE: 6}, 42)
    await engine.dispose()


async def test_a_lock_held_by_another_process_delays_history_and_nothing_else(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    store = StepWriter(engine)
    assert await store.write([step(0)], []) == "written"
    hold = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read(); c.close()"
    )
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", hold, str(tmp_path / "history.db"), stdin=PIPE, stdout=PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    writer = HistoryWriter(store, HistoryLimits(**QUICK))
    await writer.start()
    for number in range(1, 100):
        writer.put(step(number))
    await until(lambda: writer.stats().failed_writes >= 1, timeout_s=10)
    # Readers are not in the writer's way, nor the lock in theirs.
    assert len((await HistoryReader(engine).steps(TrajectoryKey("", "t"), None, 200)).items) == 1
    assert "locked" in (writer.stats().last_error or "")
    await holder.communicate(b"")
    assert await writer.flush(10)
    assert len((await HistoryReader(engine).steps(TrajectoryKey("", "t"), None, 200)).items) == 100
    assert accounted(writer.stats())
    await writer.close()


FILLS_UNTIL_KILLED = """
import asyncio, sys
from heddle_contracts.steps import Outcome, StepRecord
from heddle_gateway.store.engine import open_engine
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter

async def main():
    writer = HistoryWriter(StepWriter(open_engine(sys.argv[1])), HistoryLimits(batch=50, linger_s=0.001))
    await writer.start()
    number = 0
    while True:
        for _ in range(20):
            writer.put(StepRecord(
                trajectory_id=f"t{number % 7}", tenant="", source="header", dialect="chat", step=number // 7,
                outcome=Outcome.DONE, output_tokens=1, arrived_at=1.0, ended_at=2.0,
            ))
            number += 1
        print(writer.stats().written, flush=True)
        await asyncio.sleep(0.001)

asyncio.run(main())
"""


@pytest.mark.system
async def test_a_process_killed_in_a_flush_loses_the_unwritten_only(tmp_path: Path) -> None:
    """Each batch is there wholly or not at all, and the totals agree with the rows."""
    path = str(tmp_path / "history.db")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FILLS_UNTIL_KILLED, path, stdout=PIPE
    )
    assert process.stdout is not None
    acknowledged = 0
    async with asyncio.timeout(60):
        while acknowledged < 2000:
            acknowledged = int(await process.stdout.readline())
        process.kill()
        # The last line may be cut off.
        for line in (await process.stdout.read()).split(b"\n")[:-1]:
            acknowledged = int(line)
        await process.wait()
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT count(*) FROM steps").fetchone()[0]
        sums = database.execute("SELECT sum(done), sum(output_tokens) FROM trajectories").fetchone()
        gaps = database.execute(
            "SELECT trajectory_id FROM steps GROUP BY trajectory_id HAVING max(step) + 1 <> count(*)"
        ).fetchall()
    assert rows >= acknowledged >= 2000
    assert sums == (rows, rows)
    assert gaps == []


async def test_ends_and_steps_share_a_batch(engine: AsyncEngine) -> None:
    writer = HistoryWriter(StepWriter(engine), HistoryLimits(**QUICK))
    await writer.start()
    writer.put(step())
    writer.put(EndedTrajectory("", "t", EndReason.EXPIRED, 2000.0))
    assert await writer.flush(5)
    [found] = await HistoryReader(engine).trajectory("t")
    assert (found.phase, found.ended_at) == (Phase.EXPIRED, 2000.0)
    await writer.close()
