"""The spill folder alone: its bound, its locks, and what is not its own."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from heddle_gateway.telemetry import spill
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from heddle_gateway.telemetry.spill import SpillFolder

from .scripted_store import QUICK, ScriptedStore, accounted, bytes_in, files_in, step, until

FOREIGN = "abcabcabcabc"


def left_behind(path: Path, *numbers: int) -> list[str]:
    """Names of segments of one record each, by a process that ended."""
    folder = SpillFolder(path, 1_000_000)
    names = []
    for number in numbers:
        segment = folder.begin()
        folder.append(segment, step(number))
        folder.seal(segment)
        names.append(segment.name)
    folder.close()
    return names


async def test_the_bound_holds_however_much_went_through_the_folder(tmp_path: Path) -> None:
    """Each way out of the folder frees a segment's room once: written at once, read back, left again."""
    for _ in range(2):
        # What the process before left is read back first.
        await written_and_then_not(tmp_path, 10_000)


async def written_and_then_not(path: Path, room: int) -> None:
    down = False
    store = ScriptedStore(lambda _: "unavailable" if down else "written")
    limits = HistoryLimits(capacity=20, batch=10, spill_folder=path, spill_limit_bytes=room, **QUICK)
    writer = HistoryWriter(store, limits)
    await writer.start()
    for number in range(60):
        writer.put(step(number))
        if number % 10 == 9:
            assert await writer.flush(5)
    down = True
    for number in range(400):
        writer.put(step(number))
        if number % 10 == 9:
            await until(lambda: writer.stats().queued <= 10)
    assert bytes_in(path) <= room
    assert writer.stats().dropped > 0
    await writer.close()
    assert bytes_in(path) <= room
    assert writer.stats().spilled > 0
    assert accounted(writer.stats())


def test_a_file_that_cannot_be_removed_goes_on_taking_its_room(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path, 1_000_000)
    segment = folder.begin()
    folder.append(segment, step(0))
    room = folder.room
    folder.take_out(segment)
    assert folder.room == room
    folder.remove(segment)
    folder.forget(segment)
    folder.forget(segment)
    assert folder.room == 1_000_000
    folder.close()


@pytest.mark.parametrize("name", [f"{FOREIGN}.lock", f"spill-00000000000000000001-{FOREIGN}.jsonl"])
async def test_what_cannot_be_opened_costs_nobody_elses_records(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    left_behind(tmp_path, 7)
    # Nobody opens a folder to write, whoever it belongs to.
    (tmp_path / name).mkdir()
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(spill_folder=tmp_path, **QUICK))
    await writer.start()
    assert FOREIGN in caplog.text
    writer.put(step(8))
    assert (writer.stats().recovered, writer.stats().not_on_disk) == (1, 0)
    assert await writer.flush(5)
    assert store.numbers == [7, 8]
    await writer.close()
    assert name in files_in(tmp_path)


def test_a_lock_that_another_took_in_between_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, real = list[int](), spill.fcntl.flock

    def first_is_late(file: int, how: int) -> None:
        locked.append(file)
        if len(locked) == 1:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        real(file, how)

    monkeypatch.setattr(spill.fcntl, "flock", first_is_late)
    folder = SpillFolder(tmp_path, 1_000_000)
    segment = folder.begin()
    folder.append(segment, step(0))
    monkeypatch.undo()
    other = SpillFolder(tmp_path, 1_000_000)
    assert other.segments == [], "the folder's own lock is held"
    other.close()
    folder.close()


def test_a_folder_whose_locks_are_never_to_be_had_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))

    monkeypatch.setattr(spill.fcntl, "flock", refuse)
    with pytest.raises(BlockingIOError, match="no lock is to be had"):
        SpillFolder(tmp_path, 1_000_000)
