"""Keeps one worker registered with a gateway: adds it when its engine is ready, reports, takes it out.

The gateway may be restarted at any time and then knows nothing, and gives ids anew: each report says by the
engine's URL whose it is, and one that is answered with 404 leads to a new registration. Nothing here fails
because a gateway is away, or something else answers in its place; it is asked again, with back-off.

    not known ─▶ registered ─▶ (404) not known      registered ─▶ (410) taken out ─▶ (known again) registered

A worker that somebody drained is not this shim's to put back: it waits until the gateway knows it again.
"""

import asyncio
import logging
import time
from typing import Any, Final
from urllib.parse import quote

import httpx
from heddle_contracts.shim import WorkerReport

from heddle_shim.shim import Shim

log = logging.getLogger(__name__)

FIRST_DELAY_S: Final = 0.5
LONGEST_DELAY_S: Final = 15.0
TIMEOUT_S: Final = 5.0
LEAVING_POLL_S: Final = 0.25
AWAY_S: Final = 15.0
"""A gateway that does not answer for so long holds nothing up. One that answers with 5xx has no leader for
now, which takes as long as the steps of a leader that is being stopped.
"""


class Registration:
    """One gateway. ``run`` it as a task, ``leave`` when the shim ends.

    ``engine_url`` and ``shim_url`` are how the gateway reaches the two.
    """

    def __init__(
        self,
        gateway: str,
        key: str | None,
        *,
        engine_url: str,
        shim_url: str,
        name: str | None,
        engine_key: str | None,
    ) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=gateway.rstrip("/"), headers=headers, timeout=TIMEOUT_S, trust_env=False
        )
        self._gateway = gateway
        self._engine_url = engine_url
        # Not by its id, which may be another worker's by now.
        self._path = f"/workers/{quote(engine_url, safe='')}"
        self._body: dict[str, Any] = {"url": engine_url, "kind": "sglang", "shim_url": shim_url}
        if name is not None:
            self._body["name"] = name
        if engine_key is not None:
            self._body["api_key"] = engine_key
        self._worker_id: str | None = None
        self._taken_out = False

    async def run(self, shim: Shim) -> None:
        """Until cancelled."""
        delay = FIRST_DELAY_S
        while True:
            report = await shim.next_report()
            try:
                await self._tell(report)
                delay = FIRST_DELAY_S
            except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                # The last three: something else answers in the gateway's place, such as a proxy's error page.
                log.warning("gateway %s: %s", self._gateway, _words(error))
                await asyncio.sleep(delay)
                delay = min(LONGEST_DELAY_S, delay * 2)

    async def leave(self, drain_s: float = 0.0, *, away_s: float = AWAY_S) -> None:
        """Takes the worker out: no new steps go there, and its running ones have so many seconds to end. A
        gateway that is away does not hold the end up.
        """
        if self._worker_id is not None:
            await self._until_out(drain_s, away_s)
        await self._http.aclose()

    async def _until_out(self, drain_s: float, away_s: float) -> None:
        now = answered_at = time.monotonic()
        deadline = now + drain_s
        is_told = False
        while True:
            try:
                if not is_told:
                    await self._take_out()
                    is_told = True
                if drain_s == 0 or await self._has_ended():
                    return
                why, is_there = "still has steps on it", True
            except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                why = f"was not {'asked' if is_told else 'told'}: {_words(error)}"
                is_there = isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error
            now = time.monotonic()
            if is_there:
                answered_at = now
            if now >= deadline or now > answered_at + away_s:
                log.warning("%s leaves gateway %s, which %s", self._engine_url, self._gateway, why)
                return
            await asyncio.sleep(LEAVING_POLL_S)

    async def _take_out(self) -> None:
        """Once: whoever registers under the URL afterwards is a successor."""
        reply = await self._http.delete(self._path, params={"leaves": "true"})
        if reply.status_code != 404:
            reply.raise_for_status()

    async def _has_ended(self) -> bool:
        """Whether the drained worker has no steps any more, so that the gateway has removed it."""
        reply = await self._http.get(self._path)
        return reply.status_code == 404 or reply.raise_for_status().json()["state"] != "draining"

    async def _tell(self, report: WorkerReport) -> None:
        if self._taken_out and not await self._is_back():
            return
        if self._worker_id is None:
            if report.engine != "ready":
                return  # An engine that has never answered is no worker yet.
            answer = (await self._http.post("/workers", json=self._body)).raise_for_status().json()
            self._worker_id = str(answer["worker_id"])
            log.info("registered with %s as worker %s", self._gateway, self._worker_id)
        reply = await self._http.post(
            f"/workers/{self._worker_id}/report",
            content=report.model_copy(update={"url": self._engine_url}).model_dump_json(),
            headers={"content-type": "application/json"},
        )
        if reply.status_code == 404:
            self._worker_id = None  # The gateway was started again.
            return
        if reply.status_code == 410:
            log.warning(
                "%s was taken out of %s; add it there to have it back", self._engine_url, self._gateway
            )
            self._worker_id, self._taken_out = None, True
            return
        reply.raise_for_status()

    async def _is_back(self) -> bool:
        """Whether the gateway has the worker again, which then is registered as always."""
        reply = await self._http.get(self._path)
        if reply.status_code == 404:
            return False
        self._taken_out = reply.raise_for_status().json()["state"] == "draining"
        return not self._taken_out


def _words(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}: {error.response.text[:200]}"
    return str(error) or type(error).__name__
