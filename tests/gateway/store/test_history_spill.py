"""History on disk while the database is away, and back from there."""

from pathlib import Path

from heddle_contracts.admin import EndReason, Phase
from heddle_contracts.steps import Outcome
from heddle_gateway.store.history_reader import HistoryReader
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from sqlalchemy.ext.asyncio import AsyncEngine

from .scripted_store import QUICK, ScriptedStore, accounted, bytes_in, files_in, step, until


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
    assert [name for name in files_in(tmp_path / "spill") if name.endswith(".jsonl")] == []
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
    (tmp_path / "spill-00000000000000000001-0.jsonl").write_text('{"fields": ["traj')
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "spill-00000000000000000002-2.jsonl").write_text("nonsense\n" * 2)
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(spill_folder=tmp_path, **QUICK))
    await writer.start()
    assert await writer.flush(5)
    assert (writer.stats().recovered, writer.stats().refused) == (2, 2)
    await writer.close()
    assert files_in(tmp_path) == ["notes.txt"]


async def test_a_spill_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(spill_folder=tmp_path / "file" / "spill", **QUICK))
    await writer.start()
    writer.put(step())
    assert await writer.flush(5)
    assert store.numbers == [0]
    await writer.close()
