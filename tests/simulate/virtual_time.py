"""An asyncio event loop whose time is simulated: where nothing is ready, it jumps to the next timer.

What runs on it is the code that runs in production; an hour of waiting takes no time. Sockets work as long as
both ends are on the loop: what is ready is served before time moves. A loop with nothing ready and no timer
would wait for ever, and raises instead.
"""

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Nothing is ready, no timer is armed: what is waited for will not come."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits; time is moved by what the loop was ready to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.jump_to: float | None = None

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.jump_to is None:
            raise Deadlock("nothing is ready and no timer is armed")
        self.now = max(self.now, self.jump_to)
        return ready


class _Timer(asyncio.TimerHandle):
    """Of two for one moment, the one that was armed first is due first; asyncio's own have no order then."""

    order: int

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _Timer):
            return NotImplemented
        return (self.when(), self.order) < (other.when(), other.order)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``time`` begins at 0 and moves only by jumps, each exactly to a timer's time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self._armed = count()
        super().__init__(self._jumping)
        # A timer fires when less than this is left of its wait; the real clock's grain would fire it early.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jumping.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.order = next(self._armed)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _run_once(self) -> None:
        timers = [timer for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        self._jumping.jump_to = min((timer.when() for timer in timers), default=None)
        super()._run_once()  # type: ignore[misc]


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Runs ``main`` to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
