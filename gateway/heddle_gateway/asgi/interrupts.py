"""Turns "the client left" and "the worker is gone" into one cancellation of the step's own task, with its
reason.

The hang-up can come at any moment of a step: while it is held, before the first byte, in the middle of a
stream. So the step's task waits only inside ``with interrupts:``, where an interruption surfaces as
Interrupted.

Invariants: a cancellation that is not ours (shutdown) passes through untouched; an interruption that comes
outside ``with`` is kept and raised by the next one; CLIENT_LEFT is never overwritten.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Protocol


class Reason(Enum):
    """Why a step's task was interrupted."""

    CLIENT_LEFT = "client left"
    WORKER_GONE = "worker gone"
    STOPPED = "stopped by an operator"


class ClientLine(Protocol):
    """Tells when its client leaves (asgi.client_exchange). ``task``: in which it is served."""

    disconnected: bool
    on_cut: Callable[[], None] | None

    @property
    def task(self) -> asyncio.Task[None]: ...


class Interrupted(Exception):
    """The wait inside ``with interrupts:`` is over because of ``reason``."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Interrupts:
    """Belongs to the line's task. ``line``: whose hang-up interrupts it, until that is answered."""

    __slots__ = ("_armed", "_cancelled", "_line", "_reason", "_task")

    def __init__(self, line: ClientLine) -> None:
        self._task = line.task
        self._armed = False
        self._cancelled = False
        self._reason: Reason | None = Reason.CLIENT_LEFT if line.disconnected else None
        self._line = line
        line.on_cut = self.client_left

    def client_left(self) -> None:
        """Nobody waits for the answer any more."""
        self._fire(Reason.CLIENT_LEFT)

    @property
    def is_worker_gone(self) -> bool:
        return self._reason is Reason.WORKER_GONE

    def worker_gone(self) -> None:
        """The core withdrew the running attempt."""
        self._fire(Reason.WORKER_GONE)

    def stop(self) -> None:
        """An operator aborts the step; the client still waits for an answer."""
        self._fire(Reason.STOPPED)

    def forget_worker(self) -> None:
        """The attempt was given up: what was said of its worker is void."""
        if self._reason is Reason.WORKER_GONE:
            self._reason = None

    def close(self) -> None:
        self._line.on_cut = None

    def __enter__(self) -> None:
        if self._reason is not None:
            raise Interrupted(self._reason)
        self._armed = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._armed = False
        if self._cancelled:
            self._cancelled = False
            # If somebody else cancelled the task as well, theirs goes first.
            if self._task.uncancel() == 0:
                assert self._reason is not None
                raise Interrupted(self._reason) from None

    def _fire(self, reason: Reason) -> None:
        if self._reason is Reason.CLIENT_LEFT:
            return
        self._reason = reason
        if self._armed and not self._cancelled:
            self._cancelled = True
            self._task.cancel()
