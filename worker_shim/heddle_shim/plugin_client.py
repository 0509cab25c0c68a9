"""Talks to the plugin in the engine's scheduler (``sglang_plugin/control.py``) over its ZeroMQ socket."""

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

SOCKET: Final = "plugin.sock"
ANSWER_S: Final = 5.0
"""The scheduler answers between two batches; a long prefill is one of them."""


class PluginRefused(Exception):
    """The plugin answered that it will not, or cannot."""


class PluginSilent(Exception):
    """No answer in time: the engine has no plugin, or is busy."""


@dataclass(frozen=True, slots=True)
class History:
    """Token ids of a request that ended, with the namespace of its KV."""

    tokens: Sequence[int]
    extra_key: str | None
    cache_salt: str | None


@dataclass(frozen=True, slots=True)
class Warmed:
    """Tokens of a prefix that the engine had, and that were loaded into its host memory."""

    had: int
    loaded: int


class PluginClient:
    """One per engine. ``start`` in an event loop, ``close`` before it ends."""

    def __init__(self, store: Path) -> None:
        self._address = f"ipc://{store}/{SOCKET}"
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._ids = count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # What is asked while there is no engine is not kept for the next one.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.connect(self._address)
        self._reader = asyncio.create_task(self._read(), name="answers of the plugin")

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        self._context.term()

    async def features(self) -> tuple[str, ...]:
        """What the plugin offers. Raises PluginSilent."""
        return tuple(map(str, (await self._ask("hello"))["features"]))

    async def history(self, rid: str) -> History:
        """Raises PluginRefused where the request is not remembered, PluginSilent."""
        said = await self._ask("history", rid=rid)
        tokens = array("I")
        tokens.frombytes(said["tokens"])
        return History(tokens, said["extra_key"], said["cache_salt"])

    async def set_priority(self, priorities: Mapping[str, int]) -> tuple[int, int]:
        """How many requests were found, and how many are remembered for later. Raises PluginRefused,
        PluginSilent.
        """
        said = await self._ask("set_priority", priorities=dict(priorities))
        return said["applied"], said["remembered"]

    async def warm(
        self, tokens: Sequence[int], extra_key: str | None, cache_salt: str | None, timeout_s: float
    ) -> Warmed:
        """Loads a prefix from the page store. Raises PluginRefused, PluginSilent."""
        said = await self._ask(
            "warm", timeout_s, tokens=list(tokens), extra_key=extra_key, cache_salt=cache_salt
        )
        return Warmed(said["had"], said["loaded"])

    async def _ask(self, op: str, timeout_s: float = ANSWER_S, **fields: Any) -> dict[str, Any]:
        assert self._socket is not None, "not started"
        number = next(self._ids)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._socket.send(msgspec.msgpack.encode({"id": number, "op": op, **fields}))
                said: dict[str, Any] = await answer
        except TimeoutError:
            raise PluginSilent(f"{op}: no answer from the engine's plugin within {timeout_s:g} s") from None
        finally:
            del self._asked[number]
        if "error" in said:
            raise PluginRefused(f"{op}: {said['error']}")
        return said

    async def _read(self) -> None:
        assert self._socket is not None
        while True:
            said = msgspec.msgpack.decode(await self._socket.recv())
            waiting = self._asked.get(said.get("id"))
            if waiting is not None and not waiting.done():
                waiting.set_result(said)
