"""Takes ended steps, and what else history keeps, off the request path and writes them in batches.

Invariants: `put` never blocks, awaits or raises. Memory is bounded by `HistoryLimits.capacity` records,
whatever the store does. Every record put ends in exactly one of written, dropped, refused; until then it is
queued or spilled:

    put + recovered = written + queued + spilled + dropped + refused

All methods belong to the event loop's thread.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from heddle_contracts.admin import EndReason, HistoryStats, WriterState
from heddle_contracts.history import EndedTrajectory, HistoryRecord, PlanRecord

from heddle_gateway.telemetry.spill import Segment, SpillFolder

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
    ) -> Literal["written", "unavailable", "refused"]: ...


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """Bounds of the queue. The defaults hold six seconds of 10,000 steps a second."""

    capacity: int = 65_536
    batch: int = 1024
    # How long the first record of a batch waits for company. Also what a killed process loses.
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
        self._queue: deque[Any] = deque()
        # Records taken from the queue and not settled yet; they take room like queued ones.
        self._in_hand = 0
        self._room = self._limits.capacity
        self._spill = (
            SpillFolder(self._limits.spill_folder, self._limits.spill_limit_bytes)
            if self._limits.spill_folder
            else None
        )
        self._state = WriterState.IDLE
        self._in_outage = False
        self._some = asyncio.Event()
        self._full = asyncio.Event()
        self._empty = asyncio.Event()
        self._closing = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None
        self._put = self._written = self._dropped = self._refused = self._recovered = self._failed_writes = 0
        self._last_write_at: float | None = None
        self._last_error: str | None = None

    # ------------------------------------------------------------------------------------ handing over

    def put(self, item: EndedStep | HistoryRecord) -> None:
        """Hands one record over. When the queue is full the new record is dropped and counted."""
        self._put += 1
        queue = self._queue
        waiting = len(queue)
        if waiting >= self._room:
            self._dropped += 1
            return
        queue.append(item)
        if not waiting:
            self._empty.clear()
            self._some.set()
        elif waiting + 1 >= self._limits.batch:
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
            queued=len(self._queue) + self._in_hand,
            capacity=self._limits.capacity,
            dropped=self._dropped,
            refused=self._refused,
            spilled=self._spill.records if self._spill else 0,
            recovered=self._recovered,
            failed_writes=self._failed_writes,
            last_write_at=self._last_write_at,
            last_error=self._last_error,
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
        if self._spill:
            try:
                await asyncio.to_thread(self._spill.scan)
            except OSError as error:
                logger.error("history spills nothing: %s", error)
                self._spill = None
            else:
                self._recovered = self._spill.records
                if self._recovered:
                    self._empty.clear()
                    self._some.set()
        self._task = asyncio.create_task(self._supervise(), name="history-writer")

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
                # Whether the batch in hand was committed cannot be known: it is not written a second time.
                self._task.cancel()
                with suppress(asyncio.CancelledError):
                    await self._task
                self._dropped += self._settle(self._in_hand)
        while self._queue:
            await self._keep_or_drop(self._take())
        self._room = 0
        self._state = WriterState.CLOSED
        self._empty.set()

    # -------------------------------------------------------------------------------------- the task

    async def _supervise(self) -> None:
        """Restarts the task's body after a defect: the batch that met it is given up, history goes on."""
        while True:
            try:
                return await self._run()
            except Exception as defect:
                logger.exception("history writer failed and goes on without %d records", self._in_hand)
                self._refused += self._settle(self._in_hand)
                self._last_error = repr(defect)
                await self._pause(self._limits.longest_retry_s)

    async def _run(self) -> None:
        while True:
            await self._gather()
            stopped = False
            if self._queue:
                stopped = not await self._deliver(self._take())
            elif self._spill and self._spill.segments:
                stopped = not await self._deliver_segment(self._spill, self._spill.segments[0])
            if stopped:
                return
            if not self._queue and not (self._spill and self._spill.segments):
                self._state = WriterState.IDLE
                self._empty.set()
                self._some.clear()
                if self._closing.is_set():
                    return

    async def _gather(self) -> None:
        """Waits for work, then a little for company."""
        await self._some.wait()
        if self._queue and len(self._queue) < self._limits.batch:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.linger_s):
                    await self._full.wait()
        if not self._closing.is_set():
            self._full.clear()

    def _take(self) -> list[Any]:
        """Moves up to a batch from the queue into the hand."""
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._limits.batch))]
        self._grasp(len(batch))
        return batch

    def _grasp(self, count: int) -> None:
        self._in_hand += count
        self._room -= count

    def _settle(self, count: int) -> int:
        """Lets ``count`` records go; returns it for the counter of what became of them."""
        self._in_hand -= count
        self._room += count
        return count

    async def _deliver(self, batch: list[Any]) -> bool:
        """Writes a batch, however often it takes; False, and queued again, if the process ends first."""
        for delay in self._limits.retry_delays():
            match await self._write(batch):
                case "written":
                    self._written += self._settle(len(batch))
                    return True
                case "refused":
                    await self._write_apart(batch)
                    return True
            if self._closing.is_set():
                self._queue.extendleft(reversed(batch))
                self._settle(len(batch))
                return False
            if await self._relieve(batch):
                return True
            await self._pause(delay)
        raise AssertionError("retry delays are endless")

    async def _deliver_segment(self, spill: SpillFolder, segment: Segment) -> bool:
        """Writes the oldest spilled segment; False if the process ends first (the segment stays)."""
        try:
            batch = await asyncio.to_thread(spill.read, segment)
        except OSError as error:
            self._last_error = str(error)
            batch = []
        delays = self._limits.retry_delays()
        while (result := await self._write(batch, segment.name)) == "unavailable":
            if self._closing.is_set():
                return False
            # The queue goes first: what is spilled is safe, what is queued may overflow.
            if self._queue:
                return True
            await self._pause(next(delays))
        await asyncio.to_thread(spill.remove, segment)
        self._grasp(segment.records)
        self._refused += self._settle(segment.records - len(batch))
        if result == "refused":
            await self._write_apart(batch)
        else:
            self._written += self._settle(len(batch))
        return True

    async def _write_apart(self, batch: Sequence[Any]) -> None:
        """Finds the records the store refuses by halving, so that they cost nobody else's."""
        if len(batch) == 1:
            self._refused += self._settle(1)
            logger.error("history refused %s: %s", _named(batch[0]), self._last_error)
            return
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            match await self._write(half):
                case "written":
                    self._written += self._settle(len(half))
                case "refused":
                    await self._write_apart(half)
                case "unavailable":
                    await self._keep_or_drop(list(half))

    async def _write(
        self, batch: Sequence[Any], segment: str | None = None
    ) -> Literal["written", "unavailable", "refused"]:
        self._state = WriterState.WRITING
        others = [item for item in batch if isinstance(item, HistoryRecord)]
        steps = [item for item in batch if not isinstance(item, HistoryRecord)] if others else batch
        result = await self._store.write(steps, others, segment)
        if result == "written":
            self._last_write_at = time.time()
            if self._in_outage:
                self._in_outage = False
                logger.warning("history is written again, %d queued", len(self._queue))
        else:
            self._last_error = self._store.last_error
        if result == "unavailable":
            self._failed_writes += 1
            self._state = WriterState.BACKING_OFF
            if not self._in_outage:
                self._in_outage = True
                logger.warning("history cannot be written, %d queued: %s", len(self._queue), self._last_error)
        return result

    async def _relieve(self, batch: list[Any]) -> bool:
        """In an outage, spills the oldest records once the queue is half full; True if ``batch`` went too."""
        if self._spill is None or len(self._queue) < self._limits.capacity // 2:
            return False
        await self._keep_or_drop(batch)
        while len(self._queue) >= self._limits.capacity // 2:
            await self._keep_or_drop(self._take())
        return True

    async def _keep_or_drop(self, batch: list[Any]) -> None:
        kept = False
        if self._spill:
            try:
                kept = await asyncio.to_thread(self._spill.add, batch)
            except (OSError, ValueError) as error:
                self._last_error = str(error)
        self._settle(len(batch))
        if not kept:
            self._dropped += len(batch)

    async def _pause(self, seconds: float) -> None:
        """Waits, but not while the process ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()


def _named(item: EndedStep | HistoryRecord) -> str:
    if isinstance(item, PlanRecord):
        return f"plan {item.plan.version}"
    return f"a record of trajectory {item.trajectory_id!r}"
