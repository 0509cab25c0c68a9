"""What a host tells the gateways of its engines: they come, and they leave without losing a step."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

import httpx

log = logging.getLogger(__name__)

POLL_S: Final = 0.1
TIMEOUT_S: Final = 10.0
ADD_S: Final = 60.0
TAKING: Final = ("active", "suspect")
"""States in which a gateway gives a worker new steps."""


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
            except httpx.HTTPError as error:
                raise DrainFailed(f"gateway {client.base_url} does not take {url}: {error!r}") from error
        await self.in_service(url, ADD_S)

    async def in_service(
        self, url: str, timeout_s: float, waits_for: Callable[[str], None] = lambda why: None
    ) -> None:
        """Waits until each gateway gives steps to the engine. ``waits_for`` is told what is missing. Raises
        DrainFailed with that when the time is over, or where a gateway refuses.
        """
        deadline = time.monotonic() + timeout_s
        for client in self._clients:
            while why := await _missing(client, url):
                waits_for(why)
                if time.monotonic() > deadline:
                    raise DrainFailed(f"{why} after {timeout_s:g} s")
                await asyncio.sleep(POLL_S)

    async def leave(self, url: str) -> None:
        """Tells each gateway once that the engine ends, and waits for nothing. One that cannot be told finds
        out by itself.
        """

        async def tell(client: httpx.AsyncClient) -> None:
            with suppress(DrainFailed):
                await _still_there(client, url)

        await asyncio.gather(*map(tell, self._clients))

    async def drain(self, url: str, timeout_s: float) -> None:
        """Takes the engine out of each gateway and waits until its steps have ended. A gateway that is away,
        or has no leader, is asked again until the time is over. Raises DrainFailed.
        """
        deadline = time.monotonic() + timeout_s
        for client in self._clients:
            while why := await _still_there(client, url):
                if time.monotonic() > deadline:
                    raise DrainFailed(f"{why} after {timeout_s:g} s")
                await asyncio.sleep(POLL_S)


async def _missing(client: httpx.AsyncClient, url: str) -> str:
    """Why this gateway gives no steps to the engine yet; empty where it does."""
    with _asking(client) as away:
        found = await _find(client, url)
        if not found:
            return f"gateway {client.base_url} does not know {url}"
        if any(worker["state"] in TAKING for worker in found):
            return ""
        state, fault = found[-1]["state"], found[-1].get("last_error")
        return f"gateway {client.base_url} has {url} as {state}{f' ({fault})' if fault else ''}"
    return away[0]


async def _still_there(client: httpx.AsyncClient, url: str) -> str:
    """Asks the gateway to drain the engine where it has not begun; empty once it is out."""
    with _asking(client) as away:
        found = await _find(client, url)
        for worker in found:
            if worker["state"] != "draining":
                answer = await client.delete(f"/admin/v1/workers/{worker['id']}")
                if answer.status_code != HTTPStatus.NOT_FOUND:  # Gone since it was listed.
                    answer.raise_for_status()
        return f"steps still run on {url}" if found else ""
    return away[0]


async def _find(client: httpx.AsyncClient, url: str) -> list[dict[str, Any]]:
    """The gateway's workers of this URL: one, and those that an earlier engine there has left draining."""
    answer = (await client.get("/admin/v1/workers")).raise_for_status().json()
    wanted = url.rstrip("/").lower()
    return [one for one in answer["items"] if one["url"].rstrip("/").lower() == wanted]


@contextmanager
def _asking(client: httpx.AsyncClient) -> Iterator[list[str]]:
    """Swallows what may pass by itself, a gateway that is away or has no leader, and yields what it was.
    Raises DrainFailed for an answer that stays.
    """
    away: list[str] = []
    try:
        yield away
    except httpx.HTTPStatusError as error:
        if error.response.is_client_error:
            raise DrainFailed(f"gateway {client.base_url} refuses: {error!r}") from error
        away.append(f"gateway {client.base_url} cannot be asked: {error!r}")
    except httpx.HTTPError as error:
        away.append(f"gateway {client.base_url} cannot be asked: {error!r}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DrainFailed(f"{client.base_url} does not answer like a gateway: {error!r}") from error
