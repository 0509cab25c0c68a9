"""Background tasks that do not die quietly.

A task that ends with an exception is started again after a back-off and counted; one that returns is done.
`Background` is one task of its owner, `Supervisor` many by name: reconfiguring the fleet starts and stops
single ones and never touches the others.
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


class Background:
    """One task. ``restarts``: how often it failed and was started again."""

    def __init__(self, name: str, work: Work, backoff: Backoff | None = None) -> None:
        self._name = name
        self._work = work
        self._backoff = backoff or Backoff()
        self._keeper: asyncio.Task[None] | None = None
        self._run: asyncio.Task[None] | None = None
        self.restarts = 0

    def start(self) -> None:
        """Starts the work and keeps it running until it returns or is stopped. Once only."""
        if self._keeper is not None:
            raise ValueError(f"the task {self._name!r} has been started")
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=self._name)

    def on_end(self, call: Callable[[], object]) -> None:
        """Calls back once the task, which runs, is over for good."""
        assert self._keeper is not None
        self._keeper.add_done_callback(lambda _: call())

    async def stop(self) -> None:
        """Cancels the task and waits for its end, but never for itself. No-op where none was started."""
        keeper = self._keeper
        if keeper is not None and self._run is not asyncio.current_task():
            keeper.cancel()
            await asyncio.wait({keeper})

    async def ended(self, timeout_s: float) -> bool:
        """Waits for the work to return by itself; after ``timeout_s`` seconds it is stopped, and False."""
        if self._keeper is None:
            return True
        _, late = await asyncio.wait({self._keeper}, timeout=timeout_s)
        if late:
            await self.stop()
        return not late

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started = loop.time()
            task = self._run = loop.create_task(self._work(), name=f"{self._name}:run")
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
            log.error("background task %s failed, starting it again", self._name, exc_info=failure)
            await asyncio.sleep(self._backoff.delay(failures))


class Supervisor:
    """Owns tasks by name. One name holds one task at a time."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._running: dict[str, Background] = {}
        self._restarts = 0

    @property
    def restarts(self) -> int:
        """Of all tasks, those that are over as well."""
        return self._restarts + sum(task.restarts for task in self._running.values())

    def start(self, name: str, work: Work) -> None:
        """Starts ``work`` and keeps it running until it returns or is stopped. Replaces nothing: the name
        is free.
        """
        if name in self._running:
            raise ValueError(f"a task named {name!r} is running")
        task = self._running[name] = Background(name, work, self._backoff)
        task.start()
        task.on_end(lambda: self._over(name))

    def names(self) -> list[str]:
        return sorted(self._running)

    async def stop(self, name: str) -> None:
        """Cancels the task and waits for its end. No-op for a name that is not running."""
        task = self._running.get(name)
        if task is not None:
            await task.stop()

    async def close(self) -> None:
        await asyncio.gather(*(task.stop() for task in list(self._running.values())))

    def _over(self, name: str) -> None:
        self._restarts += self._running.pop(name).restarts
