"""A process that is killed leaves its history on disk; the next one writes it, each record once."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.history import HistoryRecord
from heddle_contracts.steps import Outcome
from heddle_gateway.store.engine import open_engine
from heddle_gateway.store.history_reader import HistoryReader
from heddle_gateway.store.step_writer import StepWriter, WriteResult
from heddle_gateway.store.tables import spill_segments, steps
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from heddle_gateway.telemetry.spill import SpillFolder
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from .scripted_store import QUICK, ScriptedStore, accounted, bytes_in, files_in, step

# A database that never answers, and records that come until the process is killed.
VICTIM = """
import asyncio, sys
from pathlib import Path
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from tests.gateway.store.scripted_store import ScriptedStore, step

async def main():
    store = ScriptedStore()
    store.open.clear()
    writer = HistoryWriter(store, HistoryLimits(batch=10, spill_folder=Path(sys.argv[1])))
    await writer.start()
    number = 0
    while True:
        writer.put(step(number))
        print(number, flush=True)
        number += 1
        await asyncio.sleep(0)

asyncio.run(main())
"""


def limits(folder: Path, **more: Any) -> HistoryLimits:
    return HistoryLimits(batch=10, spill_folder=folder, prepare_s=60.0, **QUICK, **more)


async def numbers_in(engine: AsyncEngine) -> list[int]:
    """Of the steps of one trajectory, which its totals agree with."""
    async with engine.connect() as connection:
        found = list(await connection.scalars(select(steps.c.step).order_by(steps.c.step)))
    [totals] = await HistoryReader(engine).trajectory("t")
    assert totals.outcomes == {Outcome.DONE: len(found)}
    return found


async def killed(folder: Path, after: int) -> int:
    """How many records a process had put when it was killed, at least ``after``."""
    victim = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        VICTIM,
        str(folder),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert victim.stdout is not None
    async for line in victim.stdout:
        if int(line) >= after:
            break
    victim.kill()
    rest = await victim.stdout.read()
    await victim.wait()
    return int((line + rest).splitlines()[-1]) + 1


async def test_what_a_killed_process_had_in_hand_is_written_by_the_next_one_once(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    put = await killed(tmp_path / "spill", 137)
    writer = HistoryWriter(StepWriter(engine), limits(tmp_path / "spill"))
    await writer.start()
    assert writer.stats().queued == writer.stats().spilled == 0, (
        "written before the gateway reads its history"
    )
    written = await numbers_in(engine)
    # One more may have been on disk than it could say.
    assert written == list(range(len(written)))
    assert put <= len(written) <= put + 1
    assert writer.stats().recovered == len(written)
    assert accounted(writer.stats())
    await writer.close()
    assert not (tmp_path / "spill").exists()


async def test_a_record_that_was_cut_is_left_out_and_counted(tmp_path: Path, engine: AsyncEngine) -> None:
    put = await killed(tmp_path / "spill", 5)
    last = tmp_path / "spill" / max(name for name in files_in(tmp_path / "spill") if name.endswith(".jsonl"))
    kept, cut = last.read_bytes().rstrip(b"\n").rpartition(b"\n")[0::2]
    last.write_bytes(kept + b"\n" + cut[: len(cut) // 2])
    writer = HistoryWriter(StepWriter(engine), limits(tmp_path / "spill"))
    await writer.start()
    assert put <= writer.stats().recovered <= put + 1
    assert writer.stats().refused == 1
    assert len(await numbers_in(engine)) == writer.stats().recovered - 1
    assert accounted(writer.stats())
    await writer.close()


async def test_a_process_killed_before_it_removed_what_is_written_doubles_nothing(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    put = await killed(tmp_path / "spill", 30)
    # The next one commits some of it, and is killed too.
    left = SpillFolder(tmp_path / "spill", 1_000_000)
    for segment in left.segments[::2]:
        assert await StepWriter(engine).write(left.read(segment), [], segment.name) == "written"
    left.close()
    writer = HistoryWriter(StepWriter(engine), limits(tmp_path / "spill"))
    await writer.start()
    assert put <= writer.stats().recovered <= put + 1
    assert await numbers_in(engine) == list(range(writer.stats().recovered))
    await writer.close()


async def test_a_connection_that_breaks_in_the_commit_doubles_nothing(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    class Breaking(StepWriter):
        breaks = 3

        async def write(
            self,
            ended_steps: Sequence[Any],
            others: Sequence[HistoryRecord],
            segment: str | None = None,
            settled: Sequence[str] = (),
        ) -> WriteResult:
            result = await super().write(ended_steps, others, segment, settled)
            self.breaks -= 1
            return "unavailable" if self.breaks >= 0 else result

    writer = HistoryWriter(Breaking(engine), limits(tmp_path / "spill"))
    await writer.start()
    for number in range(25):
        writer.put(step(number))
    assert await writer.flush(10)
    assert writer.stats().failed_writes == 3
    assert await numbers_in(engine) == list(range(25))
    await writer.close()


async def test_names_of_segments_do_not_pile_up_in_the_database(tmp_path: Path, engine: AsyncEngine) -> None:
    writer = HistoryWriter(StepWriter(engine), limits(tmp_path / "spill"))
    await writer.start()
    for number in range(200):
        writer.put(step(number))
    assert await writer.flush(10)
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(spill_segments)) == 1
    assert await numbers_in(engine) == list(range(200))
    await writer.close()


async def test_two_that_share_a_folder_leave_each_others_records_alone(tmp_path: Path) -> None:
    first, second = ScriptedStore(), ScriptedStore()
    first.open.clear()
    one = HistoryWriter(first, limits(tmp_path))
    await one.start()
    for number in range(15):
        one.put(step(number))
    await first.tried.wait()
    other = HistoryWriter(second, limits(tmp_path))
    await other.start()
    other.put(step(99))
    assert await other.flush(5)
    assert (second.numbers, other.stats().recovered) == ([99], 0)
    await other.close()
    first.open.set()
    assert await one.flush(5)
    assert first.numbers == list(range(15))
    await one.close()


@pytest.mark.parametrize("room", [0, 2_000])
async def test_a_folder_that_is_full_costs_a_warning_and_no_record(
    tmp_path: Path, room: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = ScriptedStore()
    writer = HistoryWriter(store, limits(tmp_path / "spill", spill_limit_bytes=room))
    await writer.start()
    for number in range(40):
        writer.put(step(number))
    assert bytes_in(tmp_path / "spill") <= room
    stats = writer.stats()
    assert 0 < stats.not_on_disk <= 40
    assert (stats.not_on_disk < 40) == (room > 0)
    assert sum("in memory alone" in record.message for record in caplog.records) == 1
    assert await writer.flush(5)
    assert sorted(store.numbers) == list(range(40))
    assert writer.stats().dropped == 0
    await writer.close()


async def test_a_segment_of_the_release_before_is_read(tmp_path: Path, engine: AsyncEngine) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    lines = [f'{{"step": {step(number).model_dump_json()}}}\n' for number in range(3)]
    (spill / "spill-00000000000000000001-3.jsonl").write_text("".join(lines))
    writer = HistoryWriter(StepWriter(engine), limits(spill))
    await writer.start()
    assert await numbers_in(engine) == [0, 1, 2]
    await writer.close()


async def test_gateways_that_start_at_one_instant_on_a_new_sqlite_file_all_get_their_tables(
    tmp_path: Path,
) -> None:
    for turn in range(5):
        engines = [open_engine(str(tmp_path / f"{turn}.db")) for _ in range(6)]
        writers = [StepWriter(engine) for engine in engines]
        assert all(await asyncio.gather(*(writer.prepare() for writer in writers)))
        for engine in engines:
            await engine.dispose()
