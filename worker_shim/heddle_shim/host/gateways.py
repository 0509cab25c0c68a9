"""What a host tells the gateways of its engines: they come, and they leave without losing a step."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import httpx

log = logging.getLogger(__name__)

POLL_S: Final = 0.1
TIMEOUT_S: Final = 10.0


class DrainFailed(Exception):
    """A gateway is away, or steps still run there after the time given."""


class Gateways:
    """The admin APIs of one or more gateways. ``key``: an admin key."""

    def __init__(self, urls: Sequence[str], key: str | None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._clients = [
            httpx.AsyncClient(base_url=url.rstrip("/"), headers=headers, timeout=TIMEOUT_S, trust_env=False)
            for url in urls
        ]

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def add(self, url: str, shim_url: str | None, degree: int) -> None:
        """Registers an engine with each gateway, and waits until each has it in service. Raises DrainFailed
        where one does not take it.
        """
        body: dict[str, Any] = {"url": url, "degree": degree}
        if shim_url is not None:
            body["shim_url"] = shim_url
        for client in self._clients:
            try:
                (await client.post("/workers", json=body)).raise_for_status()
                async with asyncio.timeout(60.0):
                    while (found := await _find(client, url)) is None or found["state"] != "active":  # noqa: ASYNC110
                        await asyncio.sleep(POLL_S)
            except (httpx.HTTPError, TimeoutError) as error:
                raise DrainFailed(f"gateway {client.base_url} does not take {url}: {error!r}") from error

    async def drain(self, url: str, timeout_s: float) -> None:
        """Takes the engine out of each gateway and waits until its steps have ended. Raises DrainFailed."""
        deadline = time.monotonic() + timeout_s
        for client in self._clients:
            try:
                found = await _find(client, url)
                if found is None:
                    continue
                (await client.delete(f"/admin/v1/workers/{found['id']}")).raise_for_status()
                while await _find(client, url) is not None:
                    if time.monotonic() > deadline:
                        raise DrainFailed(f"steps still run on {url} after {timeout_s:g} s")
                    await asyncio.sleep(POLL_S)
            except httpx.HTTPError as error:
                raise DrainFailed(f"gateway {client.base_url} cannot be asked: {error!r}") from error


async def _find(client: httpx.AsyncClient, url: str) -> dict[str, Any] | None:
    answer = (await client.get("/admin/v1/workers")).raise_for_status().json()
    for worker in answer["items"]:
        if worker["url"].rstrip("/") == url.rstrip("/"):
            found: dict[str, Any] = worker
            return found
    return None
