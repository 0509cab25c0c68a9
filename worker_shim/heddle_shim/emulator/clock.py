"""Simulated time. The engine thinks in simulated seconds; a clock says what they are in real ones.

``ScaledClock`` runs ``speed`` simulated seconds per real second on the event loop. ``VirtualClock`` stands
still until a test moves it, so that a test never sleeps.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Timer(Protocol):
    """A call that was asked for and may be taken back."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Simulated seconds since some start, and calls at a simulated time."""

    def now(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer: ...

    def simulated(self, real_seconds: float) -> float:
        """How many simulated seconds pass in so many real ones."""
        ...


class ScaledClock:
    """Real time multiplied by ``speed`` (simulated seconds per real second, above 0)."""

    def __init__(self, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError(f"speed must be above 0, not {speed}")
        self.speed = speed
        self._started = time.monotonic()

    def now(self) -> float:
        return (time.monotonic() - self._started) * self.speed

    def simulated(self, real_seconds: float) -> float:
        return real_seconds * self.speed

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        delay = max(0.0, (when - self.now()) / self.speed)
        return asyncio.get_running_loop().call_later(delay, callback)


class _VirtualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Time that moves only by ``advance``; due calls run in order of their time, each at its own time."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = count()
        self._timers: list[tuple[float, int, _VirtualTimer]] = []

    def now(self) -> float:
        return self._now

    def simulated(self, real_seconds: float) -> float:
        # No real second passes under a virtual clock, so nothing has to be paced.
        return 0.0

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = _VirtualTimer(callback)
        heapq.heappush(self._timers, (max(when, self._now), next(self._order), timer))
        return timer

    def next_call(self) -> float | None:
        """Time of the earliest call still wanted."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def advance(self, seconds: float) -> None:
        """Moves time on and runs what falls due on the way."""
        target = self._now + seconds
        while (due := self.next_call()) is not None and due <= target:
            _, _, timer = heapq.heappop(self._timers)
            self._now = due
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self._now = target
