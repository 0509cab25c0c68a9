"""Which workers can move KV, and how fast: each one's shim is asked once it is known.

Invariants: a link belongs to one generation of a worker; a shim that cannot be reached, or cannot move
anything yet, is asked again with back-off for as long as that generation lives.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx
from heddle_contracts.kv import Handshake
from pydantic import ValidationError

log = logging.getLogger(__name__)

FIRST_DELAY_S: Final = 0.2
LONGEST_DELAY_S: Final = 15.0
UNSEEN_BYTES_S: Final = 1.25e9
"""Taken for the rate of a shim that has not moved anything yet: 10 Gbit/s. The core learns the real one."""
SETUP_US: Final = 5_000
"""What a transfer takes whatever it moves: a request to the source's shim and a handshake between the two."""


class WorkerFacts(Protocol):
    """What is needed of a worker (fleet.events.WorkerFacts)."""

    @property
    def worker_id(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def shim_url(self) -> str | None: ...
    @property
    def shim_key(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Shim:
    """Where a worker's shim is. ``weight_version``: of the pages that it takes."""

    generation: int
    url: str
    weight_version: str | None
    headers: dict[str, str] = field(repr=False)


Linked = Callable[[int, int, float, int, str], None]
"""Called with worker, generation, KV tokens a second, microseconds of set-up, weight version."""


class ShimLinks:
    """One per process. ``on_linked`` hears of each worker that can move KV."""

    def __init__(self, client: httpx.AsyncClient, on_linked: Linked) -> None:
        self._client = client
        self._on_linked = on_linked
        self._shims: dict[int, Shim] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._facts: dict[int, WorkerFacts] = {}

    def worker_up(self, facts: WorkerFacts) -> None:
        self.worker_gone(facts.worker_id)
        if facts.shim_url is not None:
            self._facts[facts.worker_id] = facts
            self._asking[facts.worker_id] = asyncio.create_task(self._link(facts, facts.shim_url))

    def weights_updated(self, worker_id: int) -> None:
        """Its shim takes other pages now."""
        facts = self._facts.get(worker_id)
        if facts is not None:
            self.worker_up(facts)

    def worker_gone(self, worker_id: int) -> None:
        self._facts.pop(worker_id, None)
        self._shims.pop(worker_id, None)
        asking = self._asking.pop(worker_id, None)
        if asking is not None:
            asking.cancel()

    def shim(self, worker_id: int, generation: int) -> Shim | None:
        """None where that life of the worker is over, or has no link yet."""
        shim = self._shims.get(worker_id)
        return shim if shim is not None and shim.generation == generation else None

    def lives(self, worker_id: int, generation: int) -> bool:
        """Whether that life of a worker with a shim lasts, linked or not."""
        facts = self._facts.get(worker_id)
        return facts is not None and facts.generation == generation

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._asking.clear()

    async def _link(self, facts: WorkerFacts, url: str) -> None:
        headers = {"authorization": f"Bearer {facts.shim_key}"} if facts.shim_key else {}
        delay = FIRST_DELAY_S
        while True:
            why = ""
            try:
                answer = await self._client.get(f"{url}/shim/v1/handshake", headers=headers)
                found = Handshake.model_validate_json(answer.raise_for_status().content)
            except (httpx.HTTPError, ValidationError) as error:
                why = str(error) or type(error).__name__
            else:
                if found.namespace is not None and found.cannot_migrate is None:
                    break
                why = found.cannot_migrate or "its engine's pages are not known yet"
            log.debug("worker %d cannot move KV yet: %s", facts.worker_id, why)
            await asyncio.sleep(delay)
            delay = min(LONGEST_DELAY_S, delay * 2)
        layout, weights = found.namespace.layout, found.namespace.weight_version
        tokens_s = (found.transfer_bytes_s or UNSEEN_BYTES_S) * layout.page_size / layout.page_bytes
        self._shims[facts.worker_id] = Shim(facts.generation, url, weights, headers)
        self._on_linked(facts.worker_id, facts.generation, tokens_s, SETUP_US, weights)
