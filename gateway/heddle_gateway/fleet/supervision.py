"""Background tasks that do not die quietly.

A supervised task that ends with an exception is started again after a back-off and counted; one that
returns is done. Reconfiguring the fleet starts and stops single tasks and never touches the others.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits in seconds: ``first``, then doubling up to ``longest``; ``first`` again after ``forget_after``
    of peace.
    """

    first: float = 0.1
    longest: float = 10.0
    forget_after: float = 60.0

    def delay(self, failures: int) -> float:
        """The wait after this many failures in a row (1 or more)."""
        # The exponent is bounded so that a worker that is away for days does not overflow a float.
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 30))


class Supervisor:
    """Owns tasks by name. One name holds one task at a time."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self.restarts = 0
        self.last_failure: str | None = None

    def start(self, name: str, work: Work) -> None:
        """Starts ``work`` and keeps it running until it returns or is stopped. Replaces nothing: the name
        is free.
        """
        if name in self._keepers:
            raise ValueError(f"a task named {name!r} is running")
        keeper = asyncio.get_running_loop().create_task(self._keep(name, work), name=name)
        self._keepers[name] = keeper
        keeper.add_done_callback(lambda _task: self._keepers.pop(name, None))

    def names(self) -> list[str]:
        return sorted(self._keepers)

    async def stop(self, name: str) -> None:
        """Cancels the task and waits for its end. No-op for a name that is not running."""
        keeper = self._keepers.get(name)
        if keeper is not None and keeper is not asyncio.current_task():
            keeper.cancel()
            await asyncio.wait({keeper})

    async def close(self) -> None:
        keepers = set(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        if keepers:
            await asyncio.wait(keepers)

    async def _keep(self, name: str, work: Work) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started = loop.time()
            task = loop.create_task(work(), name=f"{name}:run")
            try:
                # wait() instead of await: the failure is then a value to look at, and our own cancellation
                # stays apart.
                await asyncio.wait({task})
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})
            failure = None if task.cancelled() else task.exception()
            if failure is None:
                return
            if not isinstance(failure, Exception):
                raise failure
            failures = 1 if loop.time() - started > self._backoff.forget_after else failures + 1
            self.restarts += 1
            self.last_failure = f"{name}: {type(failure).__name__}: {failure}"
            log.error("background task %s failed, starting it again", name, exc_info=failure)
            await asyncio.sleep(self._backoff.delay(failures))
