"""The journal's file: whole lines, once each, in order, whatever the disk does."""

import asyncio
from pathlib import Path
from typing import Any

from heddle_gateway.live.journal import JournalWriter

MAX_UNWRITTEN = 64 * 1024 * 1024


async def test_a_journal_that_cannot_be_written_is_kept_and_written_later(tmp_path: Path) -> None:
    taken = [b"one\n", b"two\n"]
    folder = tmp_path / "later"
    writer = JournalWriter(lambda: taken.pop(0) if taken else b"", folder / "journal")
    await writer.flush()
    folder.mkdir()
    await writer.flush()
    assert (folder / "journal").read_bytes() == b"one\ntwo\n"


async def test_a_journal_that_cannot_be_written_for_long_ends_before_the_gap(tmp_path: Path) -> None:
    """A run with a gap cannot be replayed: what lies behind it is of no use, and would fill the memory."""
    line = b"x" * (MAX_UNWRITTEN // 8) + b"\n"
    folder = tmp_path / "later"
    folder.mkdir()
    writer = JournalWriter(lambda: line, folder / "journal")
    await writer.flush()
    folder.rename(tmp_path / "away")
    for _ in range(9):
        await writer.flush()
    (tmp_path / "away").rename(folder)
    await writer.flush()
    assert (folder / "journal").read_bytes() == line


async def test_what_cannot_be_cut_is_no_fault_of_its_own(caplog: Any) -> None:
    writer = JournalWriter(lambda: b"line\n", Path("/dev/full"))
    await writer.flush()
    assert "No space left on device" in caplog.text


def test_the_journal_of_an_earlier_run_is_set_aside(tmp_path: Path) -> None:
    for run in ("first", "second", "third"):
        taken = [f"{run}\n".encode(), b"more\n"]
        writer = JournalWriter(lambda taken=taken: taken.pop(0) if taken else b"", tmp_path / "run.jsonl")
        asyncio.run(_flush_twice(writer))
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {
        "run.1.jsonl": "first\nmore\n",
        "run.2.jsonl": "second\nmore\n",
        "run.jsonl": "third\nmore\n",
    }


async def _flush_twice(writer: JournalWriter) -> None:
    await writer.flush()
    await writer.flush()


async def test_a_stopped_journal_has_every_line_once(tmp_path: Path) -> None:
    taken = [b"one\n", b"two\n"]
    writer = JournalWriter(lambda: taken.pop(0) if taken else b"", tmp_path / "journal")
    running = asyncio.create_task(writer.run())
    await writer.flush()
    writer.stop()
    await running
    assert (tmp_path / "journal").read_bytes() == b"one\ntwo\n"
