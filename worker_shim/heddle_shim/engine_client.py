"""Asks a running SGLang server over HTTP, with short bounds: a busy engine must not hold its shim up."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

QUICK_S: Final = 2.0
"""For what the HTTP front answers by itself."""
SCHEDULER_S: Final = 5.0
"""For what the scheduler answers between two batches."""


class EngineSilent(Exception):
    """No answer in time from a server that is there."""


class EngineAbsent(Exception):
    """Nothing listens there, or the connection broke."""


class EngineRefused(Exception):
    """The server answered, with an error status."""

    def __init__(self, path: str, status: int) -> None:
        super().__init__(f"{path}: HTTP {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One look at ``/v1/loads``, over all data-parallel ranks. Tokens of KV; output tokens a second; ``hits``
    is the engine's own recent hit rate of prompt tokens, 0 to 1. ``at``: monotonic seconds.
    """

    at: float
    running: int
    waiting: int
    kv_used: int
    kv_total: int
    slots: int
    output_tokens_s: float
    hits: float


class EngineClient:
    """One server. ``close`` it."""

    def __init__(
        self, base_url: str, api_key: str | None = None, scheduler_timeout_s: float = SCHEDULER_S
    ) -> None:
        self.base_url: Final = base_url.rstrip("/")
        self._patience_s = scheduler_timeout_s
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(base_url=self.base_url, headers=headers, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def started(self) -> bool:
        """Whether the server is up and its model loaded. Raises EngineAbsent, EngineSilent."""
        try:
            await self._get("/ping", QUICK_S)
        except EngineRefused as error:
            if error.status != 404:
                return False
            try:
                await self._get("/health", self._patience_s)  # releases before 0.5.20 have no /ping
            except EngineRefused:
                return False
        return True

    async def server_info(self) -> dict[str, Any]:
        """Asked of the scheduler, also while generation is paused. Raises EngineAbsent, EngineSilent,
        EngineRefused.
        """
        return await self._first_json("/server_info", "/get_server_info")

    async def model_info(self) -> dict[str, Any]:
        return await self._first_json("/model_info", "/get_model_info")

    async def has(self, path: str) -> bool:
        """Whether the server knows a path, asked in a way that changes nothing."""
        try:
            reply = await self._send("OPTIONS", path, QUICK_S)
        except (EngineAbsent, EngineSilent):
            return False
        return reply.status_code != 404

    async def load(self) -> EngineLoad:
        """Raises EngineAbsent, EngineSilent, EngineRefused."""
        ranks = (await self._json("/v1/loads?include=core", self._patience_s)).get("loads") or []

        def total(name: str) -> float:
            return sum(float(rank.get(name) or 0) for rank in ranks)

        return EngineLoad(
            at=time.monotonic(),
            running=int(total("num_running_reqs")),
            waiting=int(total("num_waiting_reqs")),
            kv_used=int(total("num_used_tokens")),
            kv_total=int(total("max_total_num_tokens")),
            slots=int(total("max_running_requests")),
            output_tokens_s=total("gen_throughput"),
            hits=total("cache_hit_rate") / max(1, len(ranks)),
        )

    async def metrics(self) -> Mapping[str, float]:
        """Samples of ``/metrics`` summed over labels. Raises EngineAbsent, EngineSilent, EngineRefused."""
        reply = await self._get("/metrics", self._patience_s)
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(reply.text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    async def _first_json(self, *paths: str) -> dict[str, Any]:
        """The first path that exists; the others are what older releases call it."""
        for path in paths[:-1]:
            try:
                return await self._json(path, self._patience_s)
            except EngineRefused as error:
                if error.status != 404:
                    raise
        return await self._json(paths[-1], self._patience_s)

    async def _json(self, path: str, timeout_s: float) -> dict[str, Any]:
        try:
            found = (await self._get(path, timeout_s)).json()
        except ValueError as error:
            raise EngineRefused(path, 200) from error
        if not isinstance(found, dict):
            raise EngineRefused(path, 200)
        return found

    async def _get(self, path: str, timeout_s: float) -> httpx.Response:
        reply = await self._send("GET", path, timeout_s)
        if reply.status_code != 200:
            raise EngineRefused(path, reply.status_code)
        return reply

    async def _send(self, method: str, path: str, timeout_s: float) -> httpx.Response:
        try:
            return await self._http.request(method, path, timeout=timeout_s)
        except httpx.TimeoutException as error:
            raise EngineSilent(f"{path}: no answer within {timeout_s:g} s") from error
        except httpx.TransportError as error:
            raise EngineAbsent(f"{self.base_url}{path}: {error or type(error).__name__}") from error
