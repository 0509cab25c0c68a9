"""Writes the core's journal to a file, so that a run can be replayed decision by decision.

Invariants: a file holds one run, whole lines only, in the order of events; what could not be written is kept
and tried again, within a bound; where that is reached the run can no longer be replayed, and the journal ends
there; the journal of an earlier run is set aside, never added to.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

FLUSH_EVERY_S: Final = 1.0
# Some minutes of a full gateway's events. A gap in the middle would make all behind it worthless.
PIECE: Final = 1024 * 1024
MAX_UNWRITTEN: Final = 64 * 1024 * 1024


class JournalWriter:
    """Drains ``take`` (JSON lines) into ``path`` every second, off the event loop."""

    def __init__(self, take: Callable[[], bytes], path: Path) -> None:
        self._take = take
        self._path = path
        self._unwritten = bytearray()
        self._begun = False
        self._given_up = False
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
        taken = self._take()
        if self._given_up:
            return
        self._unwritten += taken
        if not self._unwritten:
            return
        try:
            await asyncio.to_thread(self._append, self._unwritten)
        except OSError as error:
            log.warning("journal %s: %s", self._path, error)
            if len(self._unwritten) <= MAX_UNWRITTEN:
                return
            log.error("journal %s ends here: %d bytes could not be written", self._path, len(self._unwritten))
            self._given_up = True
        self._unwritten.clear()

    def _append(self, data: bytearray) -> None:
        if not self._begun:
            self._set_aside()
        with self._path.open("ab", buffering=0) as file:
            start = file.tell()
            written = 0
            try:
                while written < len(data):
                    written += file.write(data[written : written + PIECE])
            except OSError:
                with contextlib.suppress(OSError):  # no file that can be cut: a device, a pipe
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
