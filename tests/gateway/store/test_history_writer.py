"""The history queue: bounded, never in the way, and every record accounted for."""

import asyncio
import sqlite3
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pytest
from heddle_contracts.admin import EndReason, HistoryStats, Phase, TrajectoryKey, WriterState
from heddle_contracts.history import EndedTrajectory
from heddle_contracts.steps import Outcome, StepRecord
from heddle_gateway.store.engine import open_engine
from heddle_gateway.store.history_reader import HistoryReader
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from sqlalchemy.ext.asyncio import AsyncEngine

WriteResult = Literal["written", "unavailable", "refused"]


def step(number: int = 0, trajectory_id: str = "t", **changes: object) -> StepRecord:
    fields: dict[str, object] = {
        "trajectory_id": trajectory_id,
        "tenant": "",
        "source": "header",
        "dialect": "chat",
        "step": number,
        "outcome": Outcome.DONE,
        "output_tokens": 7,
        "arrived_at": 1000.0 + number,
        "ended_at": 1000.5 + number,
    }
    return StepRecord.model_validate(fields | changes)


class ScriptedStore:
    """A store that answers as told and keeps what it took; ``fault`` decides per batch."""

    last_error: str | None = "as told"

    def __init__(self, fault: Callable[[Sequence[Any]], WriteResult] = lambda _: "written") -> None:
        self.fault = fault
        self.batches: list[list[Any]] = []
        self.tries = 0
        self.tried = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def prepare(self) -> bool:
        return True

    async def write(
        self, ended_steps: Sequence[Any], ended_trajectories: Sequence[Any], segment: str | None = None
    ) -> WriteResult:
        self.tries += 1
        self.tried.set()
        await self.open.wait()
        result = self.fault(ended_steps)
        if result == "written":
            self.batches.append([*ended_steps, *ended_trajectories])
        return result

    @property
    def numbers(self) -> list[int]:
        return [one.step for batch in self.batches for one in batch]


def accounted(stats: HistoryStats) -> bool:
    came = stats.put + stats.recovered
    return came == stats.written + stats.queued + stats.spilled + stats.dropped + stats.refused


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - a count, not an event
            await asyncio.sleep(0.002)


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


QUICK = {"linger_s": 0.005, "first_retry_s": 0.002, "longest_retry_s": 0.01}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = open_engine(str(tmp_path / "history.db"))
    yield engine
    await engine.dispose()


async def test_records_arrive_in_order_and_in_batches() -> None:
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(batch=10, linger_s=0.005))
    await writer.start()
    for number in range(25):
        writer.put(step(number))
    assert await writer.flush(5)
    assert store.numbers == list(range(25))
    assert [len(batch) for batch in store.batches] == [10, 10, 5]
    assert writer.stats().written == 25
    await writer.close()


async def test_put_needs_no_running_loop_turn_and_keeps_the_oldest_when_full() -> None:
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(capacity=8, batch=4, **QUICK))
    for number in range(20):
        writer.put(step(number))
    assert (writer.stats().queued, writer.stats().dropped) == (8, 12)
    await writer.start()
    assert await writer.flush(5)
    assert store.numbers == list(range(8))
    assert accounted(writer.stats())
    await writer.close()


async def test_what_is_being_written_takes_room_too() -> None:
    store = ScriptedStore()
    store.open.clear()
    writer = HistoryWriter(store, HistoryLimits(capacity=8, batch=4, **QUICK))
    await writer.start()
    for number in range(8):
        writer.put(step(number))
    await store.tried.wait()
    for number in range(8, 20):
        writer.put(step(number))
    assert (writer.stats().queued, writer.stats().dropped) == (8, 12)
    store.open.set()
    assert await writer.flush(5)
    assert store.numbers == list(range(8))
    await writer.close()


async def test_an_outage_costs_nothing_that_fits_the_queue() -> None:
    down = True
    store = ScriptedStore(lambda _: "unavailable" if down else "written")
    writer = HistoryWriter(store, HistoryLimits(capacity=100, batch=10, **QUICK))
    await writer.start()
    for number in range(50):
        writer.put(step(number))
    await until(lambda: store.tries >= 5)
    stats = writer.stats()
    assert (stats.state, stats.last_error, stats.queued) == (WriterState.BACKING_OFF, "as told", 50)
    assert stats.failed_writes >= 4
    down = False
    assert await writer.flush(5)
    assert store.numbers == list(range(50))
    assert writer.stats().state is WriterState.IDLE
    await writer.close()


def test_tries_in_an_outage_become_rarer_up_to_a_bound() -> None:
    delays = HistoryLimits(first_retry_s=0.1, longest_retry_s=5.0).retry_delays()
    assert list(islice(delays, 8)) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_one_record_that_is_refused_costs_no_other() -> None:
    store = ScriptedStore(lambda steps: "refused" if any(one.step == 13 for one in steps) else "written")
    writer = HistoryWriter(store, HistoryLimits(batch=32, **QUICK))
    await writer.start()
    for number in range(32):
        writer.put(step(number))
    assert await writer.flush(5)
    assert sorted(store.numbers) == [number for number in range(32) if number != 13]
    assert (writer.stats().refused, writer.stats().written) == (1, 31)
    assert accounted(writer.stats())
    await writer.close()


async def test_a_defect_in_the_store_does_not_end_history() -> None:
    def broken(steps: Sequence[Any]) -> WriteResult:
        if steps[0].step == 0:
            raise RuntimeError("a defect")
        return "written"

    store = ScriptedStore(broken)
    writer = HistoryWriter(store, HistoryLimits(batch=1, **QUICK))
    await writer.start()
    writer.put(step(0))
    writer.put(step(1))
    assert await writer.flush(5)
    assert store.numbers == [1]
    stats = writer.stats()
    assert (stats.refused, stats.written, stats.last_error) == (1, 1, "RuntimeError('a defect')")
    await writer.close()


async def test_closing_writes_what_is_queued() -> None:
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(batch=4, linger_s=30))
    await writer.start()
    for number in range(10):
        writer.put(step(number))
    await writer.close(5)
    assert store.numbers == list(range(10))
    writer.put(step(99))
    stats = writer.stats()
    assert (stats.state, stats.dropped) == (WriterState.CLOSED, 1)
    assert accounted(stats)


async def test_closing_in_an_outage_is_quick_and_counts_the_loss() -> None:
    store = ScriptedStore(lambda _: "unavailable")
    writer = HistoryWriter(store, HistoryLimits(batch=4, linger_s=0.0, first_retry_s=60, longest_retry_s=60))
    await writer.start()
    for number in range(10):
        writer.put(step(number))
    await store.tried.wait()
    async with asyncio.timeout(2):
        await writer.close(30)
    assert (writer.stats().dropped, writer.stats().queued) == (10, 0)
    assert accounted(writer.stats())


async def test_closing_does_not_wait_for_a_store_that_hangs() -> None:
    store = ScriptedStore()
    store.open.clear()
    writer = HistoryWriter(store, HistoryLimits(batch=4, **QUICK))
    await writer.start()
    for number in range(10):
        writer.put(step(number))
    await store.tried.wait()
    async with asyncio.timeout(2):
        await writer.close(0.05)
    assert writer.stats().dropped == 10
    assert accounted(writer.stats())


# ------------------------------------------------------------------------------------------------ spill


async def test_a_long_outage_goes_to_disk_and_comes_back(tmp_path: Path) -> None:
    down = True
    store = ScriptedStore(lambda _: "unavailable" if down else "written")
    limits = HistoryLimits(capacity=40, batch=10, spill_folder=tmp_path / "spill", **QUICK)
    writer = HistoryWriter(store, limits)
    await writer.start()
    for number in range(200):
        writer.put(step(number))
        if number % 10 == 9:
            await until(lambda: writer.stats().queued <= 30)
    stats = writer.stats()
    assert stats.dropped == 0
    assert stats.spilled >= 160
    assert accounted(stats)
    down = False
    assert await writer.flush(5)
    assert sorted(store.numbers) == list(range(200))
    assert files_in(tmp_path / "spill") == []
    assert accounted(writer.stats())
    await writer.close()


async def test_the_spill_folder_has_a_bound_and_what_is_beyond_is_counted(tmp_path: Path) -> None:
    store = ScriptedStore(lambda _: "unavailable")
    limits = HistoryLimits(capacity=20, batch=10, spill_folder=tmp_path, spill_limit_bytes=20_000, **QUICK)
    writer = HistoryWriter(store, limits)
    await writer.start()
    for number in range(300):
        writer.put(step(number))
        if number % 10 == 9:
            await until(lambda: writer.stats().queued <= 10)
    assert bytes_in(tmp_path) <= 20_000
    stats = writer.stats()
    assert stats.spilled > 0
    assert stats.dropped > 0
    assert accounted(stats)
    await writer.close()


async def test_what_could_not_be_written_at_the_end_is_written_by_the_next_process(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    limits = HistoryLimits(batch=10, spill_folder=tmp_path / "spill", **QUICK)
    first = HistoryWriter(ScriptedStore(lambda _: "unavailable"), limits)
    await first.start()
    for number in range(25):
        first.put(step(number, trajectory_id="a/b\ud800"[: 3 + number % 2]))
    first.put_trajectory_end("", "a/b", EndReason.FINISHED, 2000.0)
    await first.close()
    assert (first.stats().spilled, first.stats().dropped) == (26, 0)

    second = HistoryWriter(StepWriter(engine), limits)
    await second.start()
    assert second.stats().recovered == 26
    assert await second.flush(10)
    [found] = await HistoryReader(engine).trajectory("a/b")
    assert found.outcomes == {Outcome.DONE: 13}
    assert found.phase is Phase.FINISHED
    assert (second.stats().written, second.stats().spilled) == (26, 0)
    assert accounted(second.stats())
    await second.close()


async def test_half_written_and_foreign_files_in_the_spill_folder_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "spill-00000000000000000001-1.jsonl.partial").write_text('{"step": {"traj')
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "spill-00000000000000000002-2.jsonl").write_text("nonsense\n" * 2)
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(spill_folder=tmp_path, **QUICK))
    await writer.start()
    assert await writer.flush(5)
    assert files_in(tmp_path) == ["notes.txt"]
    assert (writer.stats().recovered, writer.stats().refused) == (2, 2)
    await writer.close()


async def test_a_spill_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(spill_folder=tmp_path / "file" / "spill", **QUICK))
    await writer.start()
    writer.put(step())
    assert await writer.flush(5)
    assert store.numbers == [0]
    await writer.close()


# ------------------------------------------------------------------------------------ on a real database


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
    [found] = await HistoryReader(engine).recent(0.0, 10)
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
