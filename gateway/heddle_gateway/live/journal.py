"""Writes the core's journal to a file, so that a run can be replayed decision by decision.

Invariants: a file holds one run, whole lines only, in the order of events; what could not be written is kept
and tried again; the journal of an earlier run is set aside, never added to.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

FLUSH_EVERY_S: Final = 1.0


class JournalWriter:
    """Drains ``take`` (JSON lines) into ``path`` every second, off the event loop."""

    def __init__(self, take: Callable[[], bytes], path: Path) -> None:
        self._take = take
        self._path = path
        self._unwritten = b""
        self._begun = False
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until ``stop``, and what is left then; a full disk is logged and tried again."""
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(FLUSH_EVERY_S):
                    await self._stopping.wait()
            except TimeoutError:
                pass
            await self.flush()

    def stop(self) -> None:
        """Lets ``run`` end. Cancelling it could write the same lines twice."""
        self._stopping.set()

    async def flush(self) -> None:
        self._unwritten += self._take()
        if not self._unwritten:
            return
        try:
            await asyncio.to_thread(self._append, self._unwritten)
        except OSError as error:
            log.warning("journal %s: %s", self._path, error)
            return
        self._unwritten = b""

    def _append(self, data: bytes) -> None:
        if not self._begun:
            self._set_aside()
        with self._path.open("ab", buffering=0) as file:
            start = file.tell()
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(start)  # half a line would end every replay
                raise
        self._begun = True

    def _set_aside(self) -> None:
        """A second run in one file could not be replayed: journal.jsonl goes on as journal.1.jsonl."""
        if not self._path.exists() or not self._path.stat().st_size:
            return
        names = (self._path.with_stem(f"{self._path.stem}.{number}") for number in count(1))
        older = next(name for name in names if not name.exists())
        self._path.rename(older)
        log.info("journal %s: an earlier run's is now %s", self._path, older)
