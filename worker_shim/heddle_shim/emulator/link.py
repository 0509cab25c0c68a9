"""The link that a worker's KV leaves and arrives by, in simulated time."""

import asyncio
from typing import Final

from heddle_shim.emulator.clock import Clock

LEAST_WAIT_S: Final = 0.002
"""Real seconds: shorter waits are owed and paid with the next, as an event loop's timers are no finer."""


class Link:
    """One direction. What is sent while it is busy waits its turn, so transfers at once share it."""

    def __init__(self, clock: Clock, seconds_per_token: float) -> None:
        self._clock = clock
        self._per_token = seconds_per_token
        self._free_at = 0.0

    async def carry(self, tokens: int, *, last: bool) -> None:
        """Takes as long as the KV of ``tokens`` does; only after the ``last`` of a transfer to the moment."""
        now = self._clock.now()
        self._free_at = max(now, self._free_at) + tokens * self._per_token
        if last or self._free_at - now > self._clock.simulated(LEAST_WAIT_S):
            await self._until(self._free_at)

    async def _until(self, when: float) -> None:
        if when <= self._clock.now():
            return
        reached = asyncio.Event()
        timer = self._clock.call_at(when, reached.set)
        try:
            await reached.wait()
        finally:
            timer.cancel()
