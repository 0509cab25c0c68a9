"""Who has changed something learns whether a write that began later has it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

SAVED_S: Final = 2.0
"""Longest wait of an operator for a store that does not answer."""


class WriteRounds:
    """Of one task that writes what has changed, again and again: it says when it begins and how it ended."""

    def __init__(self) -> None:
        self._asked = self._answered = 0
        self._written = False
        self._next = asyncio.Event()

    def begin(self) -> int:
        """What has changed until now is in this write. Returns the mark for `end`."""
        return self._asked

    def end(self, mark: int, *, written: bool) -> None:
        self._answered, self._written = mark, written
        self._next.set()
        self._next = asyncio.Event()

    async def written(self, wake: Callable[[], None]) -> bool:
        """Wakes the task; whether what has changed until now is written, False where it takes too long."""
        self._asked += 1
        mine = self._asked
        wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(SAVED_S):
                # A write that was under way when this was called may not have seen it.
                while self._answered < mine:
                    await self._next.wait()
                return self._written
        return False
