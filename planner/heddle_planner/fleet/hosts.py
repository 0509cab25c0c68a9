"""The hosts' side of a reshaping: asks them, and carries the moves out one at a time.

An engine is stopped only when its gateways have no steps on it any more (the host sees to that). If a move
fails, what stood on the GPUs of the engine that was to come is started again, and the rest is left as it is.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import httpx
from heddle_contracts.fleet import EngineState, HostEngine, HostStatus
from pydantic import ValidationError

from heddle_planner.fleet.shape import Move, Reshaping

POLL_S: Final = 0.2
TIMEOUT_S: Final = 10.0


class HostError(Exception):
    """A host cannot be asked, or answers with a refusal."""


class HostAway(HostError):
    """Nobody answered: what was asked may have been done."""


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

        A host that is away for a moment costs a move nothing but time. Where a move fails in whatever way,
        what had to go for the same new engine is started again.
        """
        gone: list[Move] = []
        """What went, or was asked to go, for the new engine that comes next."""
        for number, move in enumerate(plan.moves):
            on_move(move)
            try:
                if move.kind == "stop":
                    gone.append(move)
                    await self._stop(move, timeout_s)
                else:
                    await self._start(move, timeout_s)
                    gone.clear()
            except (HostError, MoveFailed) as failure:
                new = next((one for one in plan.moves[number:] if one.kind == "start"), None)
                # Those that went last went for good: no engine was to come in their place.
                olds = [one for one in gone if new is not None and _share_gpus(one, new)]
                if not olds and isinstance(failure, HostError):
                    raise
                said = await self._put_back(olds, timeout_s)
                raise MoveFailed(f"{failure}; {said}") from failure

    async def _put_back(self, olds: Sequence[Move], timeout_s: float) -> str:
        """As many as there can be; how that went, in words."""
        back, left = [], []
        for old in olds:
            what = f"degree {old.degree} on GPUs {_listed(old.gpus)}"
            try:
                if await self._is_free(old, timeout_s):
                    await self._start(old, timeout_s)
                back.append(what)
            except (HostError, MoveFailed) as error:
                left.append(f"{what} ({error})")
        said = f"started again: {', '.join(back) or ('nothing' if left else 'nothing stood there')}"
        return f"{said}; not started again: {', '.join(left)}" if left else said

    async def _is_free(self, old: Move, timeout_s: float) -> bool:
        """Waits until what is on its way on these GPUs has come or gone: a host ends each start and each
        drain by itself. False where the old engine serves still. Raises HostError, and MoveFailed where
        another one has the GPUs.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            status = await self._status(old.host, deadline)
            here = [one for one in status.engines if set(one.gpus) & set(old.gpus) and _holds_gpus(one)]
            if not here:
                return True
            for engine in here:
                if engine.state is EngineState.READY and engine.id == old.engine:
                    return False
                if engine.state in (EngineState.READY, EngineState.FAILED):
                    why = engine.detail or "it serves by now"
                    raise MoveFailed(f"engine {engine.id} has the GPUs: {why}")
            deadline = time.monotonic() + timeout_s  # The host answers.
            await asyncio.sleep(POLL_S)

    async def _stop(self, move: Move, timeout_s: float) -> None:
        client = self._by_name[move.host]
        deadline = time.monotonic() + timeout_s
        while True:
            status = await self._status(move.host, deadline)
            engine = next((one for one in status.engines if one.id == move.engine), None)
            if engine is None:
                return
            if engine.state is EngineState.FAILED:
                raise MoveFailed(
                    f"{move.host}: engine {move.engine} does not drain: {engine.detail} (heddle fleet stop "
                    f"{move.engine} asks again, with --force it does not wait for steps)"
                )
            if time.monotonic() > deadline:
                raise MoveFailed(f"{move.host}: engine {move.engine} still drains after {timeout_s:g} s")
            if engine.state is EngineState.READY:
                with suppress(HostAway):  # The next look tells whether it was heard.
                    await _ask(client, "DELETE", f"/engines/{move.engine}")
            await asyncio.sleep(POLL_S)

    async def _start(self, move: Move, timeout_s: float) -> None:
        client = self._by_name[move.host]
        deadline = time.monotonic() + timeout_s
        engine = await self._begin(move, deadline)
        while engine.state is EngineState.STARTING:
            if time.monotonic() > deadline:
                raise MoveFailed(f"{move.host}: GPUs {_listed(move.gpus)} not ready after {timeout_s:g} s")
            await asyncio.sleep(POLL_S)
            engine = HostEngine.model_validate(await _ask_until(deadline, client, f"/engines/{engine.id}"))
        if engine.state is not EngineState.READY:
            raise MoveFailed(f"{move.host}: GPUs {_listed(move.gpus)} do not start: {engine.detail}")

    async def _begin(self, move: Move, deadline: float) -> HostEngine:
        """Asks for the engine; where the answer is lost, looks first whether it was heard."""
        client = self._by_name[move.host]
        while True:
            try:
                answer = await _ask(client, "POST", "/engines", {"gpus": list(move.gpus)})
                return HostEngine.model_validate(answer)
            except HostAway:
                status = await self._status(move.host, deadline)
                for engine in status.engines:
                    if engine.gpus == move.gpus and _holds_gpus(engine):
                        return engine
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(POLL_S)

    async def _status(self, host: str, deadline: float) -> HostStatus:
        return HostStatus.model_validate(await _ask_until(deadline, self._by_name[host], "/status"))

    async def stop(self, host: str, engine: str, *, force: bool) -> HostEngine:
        """Asks for the end of one engine and returns at once. Raises HostError."""
        path = f"/engines/{engine}" + ("?force=true" if force else "")
        return HostEngine.model_validate(await _ask(self._by_name[host], "DELETE", path))


def _share_gpus(one: Move, other: Move) -> bool:
    return one.host == other.host and bool(set(one.gpus) & set(other.gpus))


def _holds_gpus(engine: HostEngine) -> bool:
    """A failed one without a URL never came up."""
    return engine.state is not EngineState.FAILED or engine.url is not None


async def _ask_until(deadline: float, client: httpx.AsyncClient, path: str) -> Any:
    """Of a host that is away it is asked again, until the deadline (monotonic seconds)."""
    while True:
        try:
            return await _ask(client, "GET", path)
        except HostAway:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(POLL_S)


async def _ask(
    client: httpx.AsyncClient, method: str, path: str, body: Mapping[str, Any] | None = None
) -> Any:
    try:
        answer = await client.request(method, path, json=body)
        if answer.is_success:
            return answer.json()
        detail = answer.json().get("detail", answer.text)
    except httpx.TransportError as error:
        raise HostAway(f"--host {client.base_url}: cannot be reached ({error!r})") from error
    except (ValueError, AttributeError):
        detail = answer.text[:200]
    raise HostError(f"--host {client.base_url}: {answer.status_code}: {detail}")


def _listed(gpus: Sequence[int]) -> str:
    return ",".join(map(str, gpus))
