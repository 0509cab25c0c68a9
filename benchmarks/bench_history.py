"""Step records into history: a real PostgreSQL and SQLite, through the queue that the gateway uses.

    python benchmarks/bench_history.py [--rounds N] [--records N] [--rate N] [--seconds N] [--in-memory]
                                       [--json OUT] [--check]

PostgreSQL is a server of the benchmark's own, from the machine's programs (.ci/services), with fsync on. For
each database, in turn in every round:

    put        event loop's thread, microseconds to take one record: what a request pays, with the record on
               disk (in the folder of the benchmark) and, in the same round, in memory alone
    capacity   records are handed over as fast as they are written: records/s, CPU seconds per 1,000 records
               of the event loop's thread, of the whole process, and of the database server
    paced      --rate records a second for --seconds: the most records that waited, what was lost, and the
               share of the event loop's thread that history took, which requests cannot have

Records are of 512 trajectories at a time, 20 steps each, as a rollout writes them. At the end the rows and
the totals in the database must be those that were handed over.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from heddle_contracts.steps import Outcome, StepRecord
from heddle_gateway.store.engine import open_engine
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.store.tables import steps, trajectories
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from sqlalchemy import func, select

from tests.conftest import PostgreSQL

LIVE = 512
STEPS_EACH = 20
TARGET_PER_S = 5_000.0
TICK_S = 0.005
BURST = 1_000
PUTS = 20_000
AHEAD = 8 * BURST
"""Records that wait, so that the writer never does."""
_runs = count()


def records(run: int) -> Iterator[StepRecord]:
    """Without end: ``LIVE`` trajectories side by side, then the next ones."""
    for wave in count():
        for number in range(STEPS_EACH):
            for index in range(LIVE):
                at = 1_700_000_000.0 + 60.0 * number
                yield StepRecord(
                    trajectory_id=f"run-{run}/wave-{wave}/agent-{index}",
                    tenant="5f1c0a9b",
                    group_id=f"run-{run}/wave-{wave}/group-{index // 8}",
                    sample=index % 8,
                    source="fingerprint",
                    model="qwen3-8b",
                    dialect="chat",
                    step=number,
                    worker="gpu1:30000",
                    outcome=Outcome.DONE,
                    status=200,
                    finish_reason="tool_calls",
                    tool_names=("bash",),
                    prompt_tokens=2_000 + 400 * number,
                    cached_tokens=1_900 + 400 * number,
                    output_tokens=150,
                    usage_known=True,
                    priority_level=3,
                    arrived_at=at,
                    dispatched_at=at + 0.001,
                    first_byte_at=at + 0.1,
                    ended_at=at + 4.0,
                    gap_before_s=1.5,
                )


def cpu_of(root: int | None) -> float:
    """CPU seconds of a process and its children that live; 0 without one."""
    if root is None:
        return 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if root in (int(place.parent.name), int(fields[1])):
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


@asynccontextmanager
async def history(location: str, spill: Path | None) -> AsyncIterator[HistoryWriter]:
    """A writer on a database; in the end nothing waits. ``spill``: where records lie until they are
    written.
    """
    engine = open_engine(location)
    writer = HistoryWriter(StepWriter(engine), HistoryLimits(spill_folder=spill))
    await writer.start()
    async with engine.connect() as connection:
        before = [await connection.scalar(query) for query in QUERIES]
    yield writer
    assert await writer.flush(120), "history does not take what it was given"
    async with engine.connect() as connection:
        after = [await connection.scalar(query) for query in QUERIES]
    rows, totals = ((new or 0) - (old or 0) for new, old in zip(after, before, strict=True))
    written = writer.stats().written
    assert (rows, totals) == (written, written), f"{written} written, {rows} rows, totals say {totals}"
    await writer.close()
    await engine.dispose()


QUERIES = (select(func.count()).select_from(steps), select(func.sum(trajectories.c.done)))


async def put(spill: Path | None) -> float:
    """Microseconds of the thread to take a record. Nothing is written meanwhile."""
    batch = list(islice(records(next(_runs)), PUTS))
    writer = HistoryWriter(Never(), HistoryLimits(spill_folder=spill, linger_s=3600.0, batch=PUTS + 1))
    await writer.start()
    start = time.thread_time()
    for record in batch:
        writer.put(record)
    spent = time.thread_time() - start
    await writer.close()
    return 1e6 * spent / PUTS


class Never:
    """A database that has nothing to do."""

    last_error = None

    async def prepare(self) -> bool:
        return True

    async def write(self, *_: Any) -> Literal["written"]:
        return "written"


async def capacity(location: str, spill: Path | None, server: int | None, number: int) -> dict[str, float]:
    batch = list(islice(records(next(_runs)), number))
    async with history(location, spill) as writer:
        server_before = cpu_of(server)
        start, thread, whole = time.perf_counter(), time.thread_time(), time.process_time()
        for first in range(0, number, BURST):
            while writer.stats().queued >= AHEAD:  # noqa: ASYNC110  a count, not an event
                await asyncio.sleep(TICK_S)
            for record in batch[first : first + BURST]:
                writer.put(record)
        assert await writer.flush(600)
        wall = time.perf_counter() - start
        loop_cpu, process = time.thread_time() - thread, time.process_time() - whole
        server_cpu = cpu_of(server) - server_before
        assert writer.stats().dropped == 0
    thousand = 1_000 / number
    return {
        "records_per_s": number / wall,
        "loop_cpu_s_per_1000": loop_cpu * thousand,
        "process_cpu_s_per_1000": process * thousand,
        "server_cpu_s_per_1000": server_cpu * thousand,
    }


async def paced(location: str, spill: Path | None, rate: float, seconds: float) -> dict[str, float]:
    number = int(rate * seconds)
    batch = list(islice(records(next(_runs)), number))
    async with history(location, spill) as writer:
        most = put = 0
        late = []
        start, thread = time.perf_counter(), time.thread_time()
        while put < number:
            asked = time.perf_counter()
            await asyncio.sleep(TICK_S)
            late.append(time.perf_counter() - asked - TICK_S)
            due = min(number, int(rate * (time.perf_counter() - start)))
            for record in batch[put:due]:
                writer.put(record)
            put = due
            most = max(most, writer.stats().queued)
        wall, loop_cpu = time.perf_counter() - start, time.thread_time() - thread
        stats = writer.stats()
    return {
        "most_queued": float(most),
        "lost": float(stats.dropped + stats.refused),
        "loop_share": loop_cpu / wall,
        "late_p99_ms": 1000 * sorted(late)[int(0.99 * len(late))],
    }


async def measure(asked: argparse.Namespace, folder: Path, server: PostgreSQL) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"sqlite": [], "postgresql": []}
    pid = server.pid
    for round_number in range(asked.rounds):
        arms: list[tuple[str, str, int | None]] = [
            ("sqlite", str(folder / f"{round_number}.db"), None),
            ("postgresql", server.new_database(), pid),
        ]
        for name, location, root in arms if round_number % 2 else arms[::-1]:
            spill = None if asked.in_memory else folder / "spill"
            figures = {"put_on_disk": await put(folder / "put"), "put_in_memory": await put(None)}
            figures |= await capacity(location, spill, root, asked.records)
            figures |= await paced(location, spill, asked.rate, asked.seconds)
            found[name].append(figures)
            print(f"round {round_number + 1} {name}: {figures['records_per_s']:,.0f} records/s", flush=True)
    return {"asked": vars(asked) | {"json": None}, "arms": found}


ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("put_on_disk", "put: us, on disk too", lambda value: f"{value:.1f}"),
    ("put_in_memory", "put: us, in memory alone", lambda value: f"{value:.1f}"),
    ("records_per_s", "records/s", lambda value: f"{value:,.0f}"),
    ("loop_cpu_s_per_1000", "CPU s per 1,000: event loop", lambda value: f"{value:.4f}"),
    ("process_cpu_s_per_1000", "CPU s per 1,000: process", lambda value: f"{value:.4f}"),
    ("server_cpu_s_per_1000", "CPU s per 1,000: server", lambda value: f"{value:.4f}"),
    ("loop_share", "paced: share of the event loop", lambda value: f"{100 * value:.1f} %"),
    ("most_queued", "paced: most that waited", lambda value: f"{value:,.0f}"),
    ("late_p99_ms", "paced: loop late, p99, ms", lambda value: f"{value:.1f}"),
    ("lost", "paced: lost", lambda value: f"{value:,.0f}"),
)


def table(found: dict[str, Any]) -> str:
    arms = found["arms"]
    lines = [f"{'':34}" + "".join(f"{name:>34}" for name in arms)]
    for key, words, shown in ROWS:
        cells = []
        for rounds in arms.values():
            values = [one[key] for one in rounds]
            middle = shown(statistics.median(values))
            cells.append(f"{middle} ({shown(min(values))}..{shown(max(values))})")
        lines.append(f"{words:34}" + "".join(f"{cell:>34}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=50_000, help="of one capacity run")
    parser.add_argument("--rate", type=float, default=TARGET_PER_S, help="of the paced run, records/s")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the paced run")
    parser.add_argument(
        "--in-memory", action="store_true", help="without a folder for what is not written yet"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit 1 below 5,000 records/s or with a loss")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        place = folder / "postgresql"
        place.mkdir()
        server = PostgreSQL(place, fsync=True)
        server.start()
        try:
            found = asyncio.run(measure(asked, folder, server))
        finally:
            server.stop()
    print(table(found))
    if asked.json is not None:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(found, indent=1, default=str) + "\n")
    missed = [
        name
        for name, rounds in found["arms"].items()
        if statistics.median(one["records_per_s"] for one in rounds) < TARGET_PER_S
        or any(one["lost"] for one in rounds)
    ]
    if missed:
        print(f"below {TARGET_PER_S:,.0f} records/s, or with a loss: {', '.join(missed)}")
    return 1 if missed and asked.check else 0


if __name__ == "__main__":
    sys.exit(main())
