"""Moving KV, put together: which workers can, who carries it out, and what people see of it."""

from collections.abc import Callable
from typing import Final

import httpx
from heddle_contracts.migrations import Move

from heddle_gateway.live.driver import Driver
from heddle_gateway.live.mover import Mover
from heddle_gateway.live.shim_links import ShimLinks, WorkerFacts

CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 30.0
"""Longer than a shim may hold an answer back (live.mover.LONGEST_WAIT_S)."""


class MovingKv:
    """One per process; ``close`` it before the driver. It hears of workers beside the driver, after it.
    ``record`` takes each move when it has ended.
    """

    def __init__(
        self, driver: Driver, names: Callable[[int], str | None], record: Callable[[Move], None]
    ) -> None:
        self._driver = driver
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S), trust_env=False
        )
        self._links = ShimLinks(self._client, driver.workers.linked)
        self._mover = Mover(self._links, self._client, names)
        self._mover.reports = driver
        self._mover.record = record
        driver.mover = self._mover
        self.stats = self._mover.stats

    def worker_up(self, facts: WorkerFacts) -> None:
        self._links.worker_up(facts)

    def worker_gone(self, worker_id: int) -> None:
        self._links.worker_gone(worker_id)

    def weights_updated(self, worker_id: int) -> None:
        self._links.weights_updated(worker_id)

    def moves(self) -> list[Move]:
        """Those that have not ended, oldest first, then the last thousand ended ones, newest first."""
        return self._mover.shown(self._driver.move_views(), self._driver.directory)

    async def close(self) -> None:
        await self._links.close()
        await self._mover.close()
        await self._client.aclose()
