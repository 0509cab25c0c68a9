"""The hosts' side of a reshaping: asks them, and carries the moves out one at a time.

An engine is stopped only when its gateways have no steps on it any more (the host sees to that). If one does
not start, what stood on its GPUs is started again and the rest is left as it is.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import httpx
from heddle_contracts.fleet import EngineState, HostEngine, HostStatus
from pydantic import ValidationError

from heddle_planner.fleet.shape import Move, Reshaping

POLL_S: Final = 0.2
TIMEOUT_S: Final = 10.0


class HostError(Exception):
    """A host cannot be asked, or answers with a refusal."""


class MoveFailed(Exception):
    """A move did not come about; what was done about it stands in the message."""


class Hosts:
    """``async with``; URLs of `heddle host`. ``key``: what they ask for as bearer token."""

    def __init__(self, urls: Sequence[str], key: str | None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._clients = [
            httpx.AsyncClient(
                base_url=f"{url.rstrip('/')}/host/v1", headers=headers, timeout=TIMEOUT_S, trust_env=False
            )
            for url in urls
        ]
        self._by_name: dict[str, httpx.AsyncClient] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Hosts":
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def status(self) -> dict[str, HostStatus]:
        """All hosts by name. Raises HostError."""
        found: dict[str, HostStatus] = {}
        for client in self._clients:
            answer = await _ask(client, "GET", "/status")
            try:
                status = HostStatus.model_validate(answer)
            except ValidationError as error:
                raise HostError(f"--host {client.base_url}: does not answer like `heddle host`") from error
            if status.name in found:
                raise HostError(f"--host {client.base_url}: there is another host named {status.name}")
            found[status.name] = status
            self._by_name[status.name] = client
        return found

    async def carry_out(self, plan: Reshaping, on_move: Callable[[Move], None], timeout_s: float) -> None:
        """All moves in order, each begun when the one before is complete; ``timeout_s`` for each. Raises
        HostError, MoveFailed.
        """
        stopped: list[Move] = []
        for move in plan.moves:
            on_move(move)
            if move.kind == "stop":
                await self._stop(move, timeout_s)
                stopped.append(move)
                continue
            try:
                await self._start(move, timeout_s)
            except MoveFailed as failure:
                again = [one for one in stopped if one.host == move.host and set(one.gpus) & set(move.gpus)]
                for old in again:
                    await self._start(old, timeout_s)
                back = ", ".join(f"degree {old.degree} on GPUs {_listed(old.gpus)}" for old in again)
                raise MoveFailed(f"{failure}; started again: {back or 'nothing stood there'}") from failure

    async def _stop(self, move: Move, timeout_s: float) -> None:
        client = self._by_name[move.host]
        await _ask(client, "DELETE", f"/engines/{move.engine}")
        deadline = time.monotonic() + timeout_s
        while True:
            status = HostStatus.model_validate(await _ask(client, "GET", "/status"))
            engine = next((one for one in status.engines if one.id == move.engine), None)
            if engine is None:
                return
            if engine.state is EngineState.FAILED:
                raise MoveFailed(f"{move.host}: engine {move.engine} does not drain: {engine.detail}")
            if time.monotonic() > deadline:
                raise MoveFailed(f"{move.host}: engine {move.engine} still drains after {timeout_s:g} s")
            await asyncio.sleep(POLL_S)

    async def _start(self, move: Move, timeout_s: float) -> None:
        client = self._by_name[move.host]
        body = {"gpus": list(move.gpus)}
        engine = HostEngine.model_validate(await _ask(client, "POST", "/engines", body))
        deadline = time.monotonic() + timeout_s
        while engine.state is EngineState.STARTING:
            if time.monotonic() > deadline:
                raise MoveFailed(f"{move.host}: GPUs {_listed(move.gpus)} not ready after {timeout_s:g} s")
            await asyncio.sleep(POLL_S)
            engine = HostEngine.model_validate(await _ask(client, "GET", f"/engines/{engine.id}"))
        if engine.state is not EngineState.READY:
            raise MoveFailed(f"{move.host}: GPUs {_listed(move.gpus)} do not start: {engine.detail}")


async def _ask(
    client: httpx.AsyncClient, method: str, path: str, body: Mapping[str, Any] | None = None
) -> Any:
    try:
        answer = await client.request(method, path, json=body)
        if answer.is_success:
            return answer.json()
        detail = answer.json().get("detail", answer.text)
    except httpx.TransportError as error:
        raise HostError(f"--host {client.base_url}: cannot be reached ({error!r})") from error
    except (ValueError, AttributeError):
        detail = answer.text[:200]
    raise HostError(f"--host {client.base_url}: {answer.status_code}: {detail}")


def _listed(gpus: Sequence[int]) -> str:
    return ",".join(map(str, gpus))
