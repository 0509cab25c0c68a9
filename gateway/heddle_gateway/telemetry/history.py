"""Takes ended steps, and what else history keeps, off the request path and writes them in batches.

Invariants: `put` never waits for the store, awaits or raises. Memory is bounded by `HistoryLimits.capacity`
records, whatever the store does. With a spill folder a record is on disk before `put` returns, and stays
there until the store has it: a batch of the queue is a segment of the folder, and the store writes each once.
Every record put ends in exactly one of written, dropped, refused; until then it is queued (in memory, and on
disk) or spilled (on disk alone):

    put + recovered = written + queued + spilled + dropped + refused

All methods belong to the event loop's thread.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from heddle_contracts.admin import EndReason, HistoryStats, WriterState
from heddle_contracts.history import EndedTrajectory, HistoryRecord, PlanRecord

from heddle_gateway.telemetry.backlog import Backlog, Batch
from heddle_gateway.telemetry.spill import Segment

logger = logging.getLogger(__name__)


class EndedStep(Protocol):
    """An object with the attributes of `heddle_contracts.steps.StepRecord`; read in the background."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...


class HistoryStore(Protocol):
    """Where batches go. A batch is written wholly or not at all."""

    @property
    def last_error(self) -> str | None: ...
    async def prepare(self) -> bool:
        """Makes the tables; False if that failed (a write tries again)."""

    async def write(
        self,
        ended_steps: Sequence[Any],
        others: Sequence[HistoryRecord],
        segment: str | None = None,
        settled: Sequence[str] = (),
    ) -> Literal["written", "unavailable", "refused"]:
        """``segment``: what holds the batch on disk; written once, however often it is given. ``settled``:
        those that can never be given again.
        """


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """Bounds of the queue. The defaults hold six seconds of 10,000 steps a second."""

    capacity: int = 65_536
    batch: int = 1024
    # How long the first record of a batch waits for company.
    linger_s: float = 0.25
    prepare_s: float = 5.0
    first_retry_s: float = 0.1
    longest_retry_s: float = 5.0
    spill_folder: Path | None = None
    spill_limit_bytes: int = 256 * 1024 * 1024

    def retry_delays(self) -> Iterator[float]:
        """Seconds between tries of one batch: doubling up to a bound, without end."""
        delay = self.first_retry_s
        while True:
            yield delay
            delay = min(2 * delay, self.longest_retry_s)


class HistoryWriter:
    """The queue and the one task that empties it."""

    def __init__(self, store: HistoryStore, limits: HistoryLimits | None = None) -> None:
        self._store = store
        self._limits = limits or HistoryLimits()
        self._backlog = Backlog(self._limits.capacity, self._limits.batch)
        self._hand: Batch | None = None
        self._state = WriterState.IDLE
        self._in_outage = False
        self._some = asyncio.Event()
        self._full = asyncio.Event()
        self._empty = asyncio.Event()
        self._closing = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None
        self._put = self._written = self._refused = self._recovered = self._failed_writes = 0
        self._next_opening = 0.0
        self._read_delays = self._limits.retry_delays()
        self._last_write_at: float | None = None
        self._last_error: str | None = None

    # ------------------------------------------------------------------------------------ handing over

    def put(self, item: EndedStep | HistoryRecord) -> None:
        """Hands one record over. When the queue is full the new record is dropped and counted."""
        self._put += 1
        backlog = self._backlog
        was_empty = not backlog
        if not backlog.add(item):
            return
        if was_empty:
            self._empty.clear()
            self._some.set()
        elif backlog.has_whole_batch:
            self._full.set()

    def put_trajectory_end(self, tenant: str, trajectory_id: str, reason: EndReason, ended_at: float) -> None:
        """Marks a trajectory finished or expired; its totals stay."""
        self.put(EndedTrajectory(tenant, trajectory_id, reason, ended_at))

    def stats(self) -> HistoryStats:
        """Counts since the start of the process; cheap enough for every scrape."""
        return HistoryStats(
            state=self._state,
            put=self._put,
            written=self._written,
            queued=self._backlog.held,
            capacity=self._limits.capacity,
            dropped=self._backlog.dropped,
            refused=self._refused,
            spilled=self._backlog.spilled,
            recovered=self._recovered,
            not_on_disk=self._backlog.not_on_disk,
            failed_writes=self._failed_writes,
            last_write_at=self._last_write_at,
            last_error=self._last_error or self._backlog.last_error,
        )

    # --------------------------------------------------------------------------------------- lifetime

    async def start(self) -> None:
        """Prepares the store if it is there, starts the task, takes up what an earlier process spilled.

        A store that is away delays the start by ``prepare_s`` at most and is prepared by a later write.
        """
        prepared = False
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.prepare_s):
                prepared = await self._store.prepare()
        if not prepared:
            self._last_error = self._store.last_error
            logger.error("history is not ready, the gateway starts without it: %s", self._last_error)
        if self._limits.spill_folder is not None:
            folder, limit_bytes = self._limits.spill_folder, self._limits.spill_limit_bytes
            self._recover(await self._backlog.open(folder, limit_bytes))
        if self._recovered:
            self._empty.clear()
            self._some.set()
        self._task = asyncio.create_task(self._supervise(), name="history-writer")
        if self._recovered and prepared:
            # Step numbers are counted on from the store.
            await self.flush(self._limits.prepare_s)

    async def flush(self, timeout_s: float) -> bool:
        """Waits until all that was put is written; False when that takes longer."""
        self._full.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = 10.0) -> None:
        """Writes what is queued, tries the store no second time, spills or drops (and counts) the rest."""
        self._closing.set()
        self._some.set()
        self._full.set()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=timeout_s)
            if late:
                self._task.cancel()
                with suppress(asyncio.CancelledError):
                    await self._task
                self._backlog.give_up(self._hand)
        await self._backlog.close()
        self._state = WriterState.CLOSED
        self._empty.set()

    def _recover(self, records: int) -> None:
        self._recovered += records
        if records:
            logger.info("%d records of an earlier process are to be written", records)

    # -------------------------------------------------------------------------------------- the task

    async def _supervise(self) -> None:
        """Restarts the task's body after a defect: the batch that met it is given up, history goes on. Its
        segment stays for a release without the defect.
        """
        while True:
            try:
                return await self._run()
            except Exception as defect:
                backlog, batch, self._hand = self._backlog, self._hand, None
                logger.exception("history writer failed and goes on without %d records", backlog.in_hand)
                self._refused += backlog.settle(backlog.in_hand)
                if batch is not None and batch.segment is not None:
                    self._refused += backlog.set_aside(batch.segment)
                self._last_error = repr(defect)
                await self._pause(self._limits.longest_retry_s)

    async def _run(self) -> None:
        backlog = self._backlog
        while True:
            await self._gather()
            await self._open_folder()
            await backlog.sync()
            stopped = False
            if backlog:
                batch = self._hand = backlog.take()
                stopped = not await self._deliver(batch)
            elif backlog.segments:
                batch = self._hand = Batch(segment=backlog.segments[0])
                stopped = not await self._deliver_segment(batch, backlog.segments[0])
            self._hand = None
            if stopped:
                return
            if not backlog and not backlog.segments:
                self._state = WriterState.IDLE
                self._empty.set()
                self._some.clear()
                if self._closing.is_set():
                    return

    async def _gather(self) -> None:
        """Waits for work, then a little for company."""
        await self._some.wait()
        if self._backlog and not self._backlog.has_whole_batch:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.linger_s):
                    await self._full.wait()
        if not self._closing.is_set():
            self._full.clear()

    async def _open_folder(self) -> None:
        """Tries a folder again, now and then, that could not be opened."""
        now = asyncio.get_running_loop().time()
        if self._backlog.lacks_folder and now >= self._next_opening:
            self._next_opening = now + self._limits.longest_retry_s
            self._recover(await self._backlog.open_again())

    async def _deliver(self, batch: Batch) -> bool:
        """Writes a batch, however often it takes; False, and let go, if the process ends first."""
        backlog = self._backlog
        for delay in self._limits.retry_delays():
            match await self._write(batch.items, batch.name):
                case "written":
                    self._written += backlog.settle(len(batch))
                    await backlog.discard(batch)
                    return True
                case "refused":
                    backlog.put_in_file_order(batch)
                    return await self._deliver_apart(batch)
            if self._closing.is_set():
                await backlog.let_go(batch)
                return False
            if await backlog.relieve(batch):
                return True
            await self._pause(delay)
        raise AssertionError("retry delays are endless")

    async def _deliver_segment(self, batch: Batch, segment: Segment) -> bool:
        """Writes the oldest spilled segment; False if the process ends first (the segment stays)."""
        items = await self._backlog.read(segment)
        if items is None:
            if self._closing.is_set():
                return False
            await self._pause_until_more(next(self._read_delays))
            return True
        self._read_delays = self._limits.retry_delays()
        delays = self._limits.retry_delays()
        while (result := await self._write(items, segment.name)) == "unavailable":
            if self._closing.is_set():
                return False
            # The queue goes first: what is spilled is safe, what is queued may overflow.
            if self._backlog:
                return True
            await self._pause(next(delays))
        lost = self._backlog.set_aside(segment) - len(items)
        if lost:
            logger.warning(
                "%s: %d lines are no records, cut by the end of their process or damaged", segment.name, lost
            )
            self._refused += lost
        if result == "refused":
            batch.items = items
            self._backlog.held += len(items)
            return await self._deliver_apart(batch)
        self._written += len(items)
        await self._backlog.discard(batch)
        return True

    async def _deliver_apart(self, batch: Batch) -> bool:
        """Writes a refused batch in parts; False if the process ends first (its segment stays)."""
        if not await self._write_apart(batch, batch.items, batch.name):
            # Parts may be in the store: whoever reads the segment writes them under the same names.
            self._backlog.give_up(batch)
            return False
        await self._backlog.discard(batch)
        return True

    async def _write_apart(self, whole: Batch, batch: Sequence[Any], name: str | None) -> bool:
        """Finds the records the store refuses by halving, so that they cost nobody else's; False if the
        process ends first.
        """
        backlog = self._backlog
        if len(batch) == 1:
            self._refused += backlog.settle(1)
            logger.error("history refused %s: %s", _named(batch[0]), self._last_error)
            return True
        middle = len(batch) // 2
        for number, half in enumerate((batch[:middle], batch[middle:])):
            # Who reads the segment again halves it in the same way.
            part = None if name is None else f"{name}.{number}"
            match await self._write_for_long(half, part):
                case "written":
                    self._written += backlog.settle(len(half))
                    whole.parts += [part] if part is not None else []
                case "refused":
                    if not await self._write_apart(whole, half, part):
                        return False
                case "unavailable":
                    return False
        return True

    async def _write_for_long(
        self, batch: Sequence[Any], part: str | None
    ) -> Literal["written", "unavailable", "refused"]:
        """Tries until the store answers, under one name: it may have committed what it did not confirm.
        "unavailable" if the process ends first.
        """
        delays = self._limits.retry_delays()
        while (result := await self._write(batch, part)) == "unavailable" and not self._closing.is_set():
            await self._backlog.relieve()
            await self._pause(next(delays))
        return result

    async def _write(
        self, batch: Sequence[Any], segment: str | None = None
    ) -> Literal["written", "unavailable", "refused"]:
        self._state = WriterState.WRITING
        others = [item for item in batch if isinstance(item, HistoryRecord)]
        steps = [item for item in batch if not isinstance(item, HistoryRecord)] if others else batch
        settled = tuple(self._backlog.settled)
        result = await self._store.write(steps, others, segment, settled)
        if result == "written":
            del self._backlog.settled[: len(settled)]
            self._last_write_at = time.time()
            if self._in_outage:
                self._in_outage = False
                logger.warning("history is written again, %d queued", self._backlog.waiting)
        else:
            self._last_error = self._store.last_error
        if result == "unavailable":
            self._failed_writes += 1
            self._state = WriterState.BACKING_OFF
            if not self._in_outage:
                self._in_outage = True
                logger.warning(
                    "history cannot be written, %d queued: %s", self._backlog.waiting, self._last_error
                )
        return result

    async def _pause(self, seconds: float) -> None:
        """Waits, but not while the process ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _pause_until_more(self, seconds: float) -> None:
        """Waits, but not while records come or the process ends."""
        if not self._backlog and not self._closing.is_set():
            self._some.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._some.wait()
            self._some.set()


def _named(item: EndedStep | HistoryRecord) -> str:
    if isinstance(item, PlanRecord):
        return f"plan {item.plan.version}"
    return f"a record of trajectory {item.trajectory_id!r}"
