"""Records on their way to the store: in memory, and on disk from the moment they come.

A batch is what is written together, and it is a segment of the spill folder: the store writes each segment
once, however often it is given, so that neither a connection that breaks in a commit nor a killed process
doubles a record.

Invariants: records held in memory are bounded; a record is dropped only where neither memory nor disk has
room, and counted then. All methods belong to the event loop's thread.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heddle_gateway.telemetry.spill import Segment, SpillFolder

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Batch:
    """``bare``: items that ``segment`` does not hold. ``parts``: names under which parts of it were
    written.
    """

    items: list[Any] = field(default_factory=list)
    segment: Segment | None = None
    bare: list[Any] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def name(self) -> str | None:
        """By which the store knows it again."""
        return None if self.segment is None else self.segment.name


class Backlog:
    """``capacity``: records held in memory at most; ``batch``: of them in one batch."""

    def __init__(self, capacity: int, batch: int) -> None:
        self.capacity = capacity
        self._batch = batch
        # The last one may still grow.
        self._queue: deque[Batch] = deque()
        self._spill: SpillFolder | None = None
        self._asked_for: tuple[Path, int] | None = None
        self._spill_fails = False
        self._not_synced: list[Segment] = []
        self.held = 0
        """Records in memory: those that wait, and those that were taken and are not settled."""
        self.dropped = self.not_on_disk = 0
        self.last_error: str | None = None
        self.settled: list[str] = []
        """Names of segments that are gone for good: the store need not know them any more."""

    # ---------------------------------------------------------------- looking in

    def __bool__(self) -> bool:
        """Whether batches wait in memory."""
        return bool(self._queue)

    @property
    def waiting(self) -> int:
        """Records in batches that were not taken."""
        return sum(len(batch) for batch in self._queue)

    @property
    def in_hand(self) -> int:
        """Records that were taken and are not settled."""
        return self.held - self.waiting

    @property
    def has_whole_batch(self) -> bool:
        return len(self._queue) > 1 or bool(self._queue and len(self._queue[0]) >= self._batch)

    @property
    def spilled(self) -> int:
        """Records on disk alone."""
        return self._spill.records if self._spill is not None else 0

    @property
    def segments(self) -> Sequence[Segment]:
        """Those that are on disk alone, oldest first; last those that could not be read."""
        return self._spill.segments if self._spill is not None else ()

    # ---------------------------------------------------------------- lifetime

    @property
    def lacks_folder(self) -> bool:
        """Whether the folder that was asked for could not be opened."""
        return self._asked_for is not None and self._spill is None

    async def open(self, folder: Path, limit_bytes: int) -> int:
        """What comes from now on goes to disk too; what earlier processes left is among the segments. Returns
        how many records that is.
        """
        self._asked_for = (folder, limit_bytes)
        return await self.open_again()

    async def open_again(self) -> int:
        """Tries the folder that it lacks; returns as `open` does."""
        if not self.lacks_folder or self._asked_for is None:
            return 0
        try:
            self._spill = await asyncio.to_thread(SpillFolder, *self._asked_for)
        except OSError as error:
            self._fail(error)
            return 0
        return self._spill.records

    async def close(self) -> None:
        """What is in memory goes to disk, or is dropped; nothing is taken any more."""
        while self._queue:
            await self.let_go(self.take())
        if self._spill is not None:
            await asyncio.to_thread(self._spill.close)
        self.capacity = 0

    # ---------------------------------------------------------------- records

    def add(self, item: Any) -> bool:
        """Takes a record; False, dropped and counted, where there is no room."""
        if self.held >= self.capacity and not self._make_room():
            self.dropped += 1
            return False
        if not self._queue or len(self._queue[-1]) >= self._batch:
            self._queue.append(Batch())
        batch = self._queue[-1]
        batch.items.append(item)
        self.held += 1
        if not self._keep(batch, item):
            batch.bare.append(item)
            self.not_on_disk += self._asked_for is not None
        return True

    def take(self) -> Batch:
        """The oldest batch; its records are to be settled."""
        batch = self._queue.popleft()
        if self._spill is not None and batch.segment is not None:
            self._spill.seal(batch.segment)
        return batch

    def settle(self, count: int) -> int:
        """Lets ``count`` records go; returns it for the counter of what became of them."""
        self.held -= count
        return count

    async def relieve(self, batch: Batch | None = None) -> bool:
        """Leaves the oldest records to the disk once memory is half full; True if ``batch``, which was taken,
        went too.
        """
        await self.sync()
        half = self.capacity // 2
        if self._spill is None or self.waiting < half:
            return False
        if batch is not None:
            await self.let_go(batch)
        while self.waiting >= half:
            await self.let_go(self.take())
        return batch is not None

    async def let_go(self, batch: Batch) -> None:
        """Out of memory: on disk it stays; what was not there goes there now, or is dropped."""
        self._keep_bare(batch)
        self._leave(batch)
        await self.sync()

    async def sync(self) -> None:
        """Brings to the disk itself what was left to it."""
        spill, segments = self._spill, self._not_synced
        self._not_synced = []
        if spill is None:
            return
        for segment in segments:
            # It may have been written and removed since.
            if segment.size:
                try:
                    await asyncio.to_thread(spill.sync, segment)
                except OSError as error:
                    # The operating system still has it.
                    self.last_error = str(error)

    def put_in_file_order(self, batch: Batch) -> None:
        """Orders the items of a batch as its segment holds them: whoever reads it halves it in the same
        way. What was not on disk goes there, if it can.
        """
        if bare := list(batch.bare):
            self._keep_bare(batch)
            late = {id(item) for item in bare}
            batch.items = [item for item in batch.items if id(item) not in late] + bare

    def give_up(self, batch: Batch | None) -> None:
        """Whether a batch that was taken is in the store cannot be known. What its segment holds the next
        process writes, if it is not; the rest is dropped, and not written a second time.
        """
        owed = self.settle(self.in_hand)
        if batch is not None and batch.segment is not None and self._spill is not None:
            if batch.segment in self._spill.segments:
                return
            self._spill.seal(batch.segment)
            batch.segment.records = max(0, owed - len(batch.bare))
            self._spill.leave(batch.segment)
            owed -= batch.segment.records
        self.dropped += owed

    # ---------------------------------------------------------------- segments

    async def read(self, segment: Segment) -> list[Any] | None:
        """Its records, none of a file that is gone; None while it cannot be read: others come first then."""
        assert self._spill is not None
        try:
            return list(await asyncio.to_thread(self._spill.read, segment))
        except FileNotFoundError as error:
            self.last_error = str(error)
            return []
        except OSError as error:
            # No more open files, for one: its records are there, and it is tried again.
            self.last_error = str(error)
            if not segment.failed_reads:
                logger.warning("%s cannot be read now: %s", segment.name, error)
            self._spill.postpone(segment)
            return None

    def set_aside(self, segment: Segment) -> int:
        """It is not read in this process any more; returns how many records it has that nothing else
        accounts for.
        """
        assert self._spill is not None
        alone = segment.records if segment in self._spill.segments else 0
        self._spill.take_out(segment)
        return alone

    async def discard(self, batch: Batch) -> None:
        """Its records are settled: the segment goes."""
        segment = batch.segment
        if segment is None or self._spill is None:
            return
        self._spill.take_out(segment)
        try:
            await asyncio.to_thread(self._spill.remove, segment)
        except OSError as error:
            # The store knows its name, should it be read again.
            logger.warning("%s cannot be removed: %s", segment.name, error)
        else:
            self._spill.forget(segment)
            self.settled += [segment.name, *batch.parts]

    # ---------------------------------------------------------------- inside

    def _make_room(self) -> bool:
        """Leaves to the disk the oldest batch that waits and is there already; False if there is none."""
        if self._spill is None:
            return False
        batch = next((one for one in self._queue if not one.bare), None)
        if batch is None:
            return False
        self._queue.remove(batch)
        self._leave(batch)
        return True

    def _leave(self, batch: Batch) -> None:
        """Lets a batch go that is neither in the queue nor held by anyone else."""
        spill, segment = self._spill, batch.segment
        self.settle(len(batch))
        if spill is None or segment is None or not segment.records:
            self.dropped += len(batch)
            return
        self.dropped += len(batch) - segment.records
        spill.seal(segment)
        spill.leave(segment)
        self._not_synced.append(segment)

    def _keep_bare(self, batch: Batch) -> None:
        while batch.bare and self._keep(batch, batch.bare[0]):
            del batch.bare[0]

    def _keep(self, batch: Batch, item: Any) -> bool:
        """Puts a record into its batch's segment; whether it is there."""
        spill = self._spill
        if spill is None:
            return False
        if batch.segment is None:
            batch.segment = spill.begin()
        try:
            spill.append(batch.segment, item)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            self._fail(error)
            return False
        if self._spill_fails:
            self._spill_fails = False
            logger.warning("history is kept on disk again until it is written")
        return True

    def _fail(self, error: Exception) -> None:
        self.last_error = str(error)
        if not self._spill_fails:
            self._spill_fails = True
            logger.warning("history is kept in memory alone until it is written: %s", error)
