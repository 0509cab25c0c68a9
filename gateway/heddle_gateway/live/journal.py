"""Writes the core's journal to a file, so that a run can be replayed decision by decision.

Invariant: the file is only appended to, in the order of events; what could not be written is kept and tried
again.
"""

import asyncio
import logging
from collections.abc import Callable
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

    async def run(self) -> None:
        """Until cancelled; a full disk is logged and tried again."""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            await self.flush()

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
        with self._path.open("ab") as file:
            file.write(data)
