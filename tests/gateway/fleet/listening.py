"""What hears of a fleet in its tests: a listener that keeps a record, and a count of live steps."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from heddle_gateway.fleet import WorkerFacts

PATIENCE_S = 10.0
"""Bound on every wait of these tests; none takes near as long."""


@dataclass(slots=True)
class Told:
    """One call of the listener."""

    what: str
    worker_id: int
    generation: int
    more: dict[str, Any] = field(default_factory=dict)


class RecordingListener:
    """Keeps what it was told, and lets a test wait for more of it."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self._news = asyncio.Event()

    def worker_up(self, facts: WorkerFacts) -> None:
        self._note(Told("up", facts.worker_id, facts.generation, {"facts": facts}))

    def worker_draining(self, worker_id: int, generation: int) -> None:
        self._note(Told("draining", worker_id, generation))

    def worker_down(self, worker_id: int, generation: int) -> None:
        self._note(Told("down", worker_id, generation))

    def weights_updated(self, worker_id: int, generation: int, weight_version: str) -> None:
        self._note(Told("weights", worker_id, generation, {"weight_version": weight_version}))

    def worker_removed(self, worker_id: int, generation: int) -> None:
        self._note(Told("removed", worker_id, generation))

    def load_report(
        self, worker_id: int, generation: int, *, running: int, waiting: int, kv_used: int
    ) -> None:
        counts = {"running": running, "waiting": waiting, "kv_used": kv_used}
        self._note(Told("load", worker_id, generation, counts))

    def changes(self, worker_id: int | None = None) -> list[tuple[str, int]]:
        """(what, generation) without the load reports."""
        return [
            (told.what, told.generation)
            for told in self.told
            if told.what != "load" and worker_id in {None, told.worker_id}
        ]

    def reports(self) -> list[Told]:
        return [told for told in self.told if told.what == "load"]

    async def until(self, met: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not met():
                self._news.clear()
                # A condition may depend on more than the news, so look again now and then.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.02)

    async def until_told(self, what: str, worker_id: int, generation: int) -> Told:
        def find() -> Told | None:
            wanted = (what, worker_id, generation)
            return next(
                (told for told in self.told if (told.what, told.worker_id, told.generation) == wanted), None
            )

        await self.until(find)
        found = find()
        assert found is not None
        return found

    def _note(self, told: Told) -> None:
        self.told.append(told)
        self._news.set()


@dataclass(slots=True)
class LiveCount:
    """Stands for the decision core's count of steps on each worker."""

    steps: dict[int, int] = field(default_factory=dict)

    def __call__(self, worker_id: int) -> int:
        return self.steps.get(worker_id, 0)
