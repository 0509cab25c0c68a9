"""The one real timer, which follows the core's own."""

import asyncio
from collections.abc import Callable
from typing import Final

# uvloop's timers have millisecond resolution; an earlier wake-up would only find nothing due.
MIN_TIMER_S: Final = 0.001


class CoreTimer:
    """Calls ``on_due`` when the core's time has come. ``clock``: microseconds, the core's."""

    def __init__(self, on_due: Callable[[], None], *, clock: Callable[[], int], least_s: float) -> None:
        self._on_due = on_due
        self._clock = clock
        self._least_s = least_s
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0

    def follow(self, due: int | None) -> None:
        """Keeps it no later than the core's next time; an early call is cheaper than moving it back."""
        if due is None or (self._handle is not None and self._due <= due):
            return
        if self._handle is not None:
            self._handle.cancel()
        wait = max(self._least_s, (due - self._clock()) / 1e6)
        self._due = due
        self._handle = asyncio.get_running_loop().call_later(wait, self._fire)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._on_due()
