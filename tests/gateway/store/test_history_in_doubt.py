"""Disk or database do not answer: no record is dropped that the disk has, and none is written twice."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.history import HistoryRecord
from heddle_gateway.store.step_writer import StepWriter, WriteResult
from heddle_gateway.store.tables import steps
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from heddle_gateway.telemetry.spill import Segment, SpillFolder
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from .scripted_store import QUICK, ScriptedStore, accounted, files_in, step, until

UNFIT = 13


def limits(folder: Path, **more: Any) -> HistoryLimits:
    return HistoryLimits(batch=10, spill_folder=folder, prepare_s=0.01, **QUICK, **more)


async def leave_behind(folder: Path, count: int) -> None:
    writer = HistoryWriter(ScriptedStore(lambda _: "unavailable"), limits(folder))
    await writer.start()
    for number in range(count):
        writer.put(step(number))
    await writer.close()
    assert writer.stats().spilled == count


class Unreadable:
    """Segments that cannot be opened for a number of times, as without open files to be had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.times, self.tried = times, list[str]()
        self._read = SpillFolder.read
        monkeypatch.setattr(SpillFolder, "read", lambda folder, segment: self.read(folder, segment))

    def read(self, folder: SpillFolder, segment: Segment) -> list[Any]:
        self.tried.append(segment.name)
        if len(self.tried) <= self.times:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), segment.name)
        return list(self._read(folder, segment))


async def test_a_segment_that_cannot_be_read_is_tried_again_after_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_behind(tmp_path, 30)
    unreadable, store = Unreadable(monkeypatch, 4), ScriptedStore()
    writer = HistoryWriter(store, limits(tmp_path))
    await writer.start()
    assert await writer.flush(5)
    assert sorted(store.numbers) == list(range(30))
    assert (writer.stats().written, writer.stats().refused) == (30, 0)
    assert len(set(unreadable.tried[:3])) == 3
    await writer.close()


async def test_a_segment_that_is_never_to_be_read_holds_up_nothing_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_behind(tmp_path, 10)
    unreadable, store = Unreadable(monkeypatch, 1_000_000), ScriptedStore()
    writer = HistoryWriter(store, limits(tmp_path))
    await writer.start()
    await until(lambda: len(unreadable.tried) > 3)
    writer.put(step(77))
    await until(lambda: writer.stats().written == 1)
    await writer.close()
    assert store.batches == [[step(77)]], "no name is claimed for records that nobody has seen"
    assert (writer.stats().spilled, writer.stats().refused) == (10, 0)
    assert accounted(writer.stats())
    assert sum(name.endswith(".jsonl") for name in files_in(tmp_path)) == 1


async def test_what_comes_while_a_write_hangs_is_dropped_only_where_the_disk_is_full(tmp_path: Path) -> None:
    store = ScriptedStore()
    store.open.clear()
    writer = HistoryWriter(store, limits(tmp_path, capacity=40))
    await writer.start()
    for number in range(10):
        writer.put(step(number))
    await store.tried.wait()
    for number in range(10, 200):
        writer.put(step(number))
        assert writer.stats().queued <= 40
    assert (writer.stats().dropped, writer.stats().spilled) == (0, 160)
    assert accounted(writer.stats())
    store.open.set()
    assert await writer.flush(5)
    assert sorted(store.numbers) == list(range(200))
    await writer.close()


async def test_a_folder_that_could_not_be_opened_is_missed_and_opened_later(tmp_path: Path) -> None:
    await leave_behind(tmp_path / "elsewhere", 3)
    folder = tmp_path / "spill"
    folder.write_text("in the way")
    store = ScriptedStore()
    writer = HistoryWriter(store, limits(folder))
    await writer.start()
    writer.put(step(10))
    assert writer.stats().not_on_disk == 1
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    number = 11
    while not writer.stats().recovered:
        writer.put(step(number))
        number += 1
        await until(lambda: writer.stats().queued == 0)
    missed = writer.stats().not_on_disk
    writer.put(step(number))
    assert writer.stats().not_on_disk == missed
    assert await writer.flush(5)
    assert sorted(store.numbers) == [0, 1, 2, *range(10, number + 1)]
    assert accounted(writer.stats())
    await writer.close()


class Doubtful(StepWriter):
    """Refuses one record, and breaks after the first commit of each name; after all without ``answers``."""

    answers = True

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine)
        self.committed = list[str | None]()

    async def write(
        self,
        ended_steps: Sequence[Any],
        others: Sequence[HistoryRecord],
        segment: str | None = None,
        settled: Sequence[str] = (),
    ) -> WriteResult:
        if any(one.step == UNFIT for one in ended_steps):
            return "refused"
        result = await super().write(ended_steps, others, segment, settled)
        first = segment not in self.committed
        self.committed.append(segment)
        return "unavailable" if first or not self.answers else result


async def numbers_in(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as connection:
        return list(await connection.scalars(select(steps.c.step).order_by(steps.c.step)))


ALL_BUT_THE_UNFIT = [number for number in range(30) if number != UNFIT]


async def test_a_part_whose_commit_was_not_confirmed_is_written_once(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    writer = HistoryWriter(Doubtful(engine), limits(tmp_path / "spill"))
    await writer.start()
    for number in range(30):
        writer.put(step(number))
    assert await writer.flush(10)
    assert await numbers_in(engine) == ALL_BUT_THE_UNFIT
    assert (writer.stats().written, writer.stats().refused) == (29, 1)
    assert accounted(writer.stats())
    await writer.close()


async def test_a_batch_that_was_written_in_part_at_the_end_is_written_once_by_the_next_process(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    store = Doubtful(engine)
    store.answers = False
    first = HistoryWriter(store, limits(tmp_path / "spill", spill_limit_bytes=2_000_000))
    await first.start()
    for number in range(UNFIT - 3, 30):
        first.put(step(number))
    await until(lambda: len(store.committed) > 2)
    await first.close()
    assert first.stats().dropped == 0
    assert accounted(first.stats())
    second = HistoryWriter(Doubtful(engine), limits(tmp_path / "spill"))
    await second.start()
    assert await second.flush(10)
    assert await numbers_in(engine) == [number for number in ALL_BUT_THE_UNFIT if number >= UNFIT - 3]
    assert accounted(second.stats())
    await second.close()


async def test_a_batch_is_halved_in_the_order_of_its_file(
    tmp_path: Path, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record could not be put on disk as it came; the process ends between the halves."""
    real = SpillFolder.append

    def full_for_one(folder: SpillFolder, segment: Segment, item: Any) -> None:
        if item.step == UNFIT - 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(folder, segment, item)

    store = Doubtful(engine)
    store.answers = False
    first = HistoryWriter(store, limits(tmp_path / "spill"))
    await first.start()
    monkeypatch.setattr(SpillFolder, "append", full_for_one)
    for number in range(UNFIT - 4, UNFIT + 1):
        first.put(step(number))
    monkeypatch.setattr(SpillFolder, "append", real)
    await until(lambda: len(store.committed) > 1)
    await first.close()
    second = HistoryWriter(Doubtful(engine), limits(tmp_path / "spill"))
    await second.start()
    assert await second.flush(10)
    assert await numbers_in(engine) == list(range(UNFIT - 4, UNFIT))
    await second.close()
