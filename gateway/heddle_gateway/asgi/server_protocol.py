"""uvicorn's HTTP protocol with two additions that a step would otherwise pay for.

* A hang-up calls back. Plain ASGI tells it to a pending ``receive`` only, which costs every step a task;
  ``scope["heddle.hang_ups"]`` is a HangUps, which calls when the line is cut.
* What is written in one turn of the event loop goes out in one system call: uvicorn writes the headers of an
  answer and its body apart.

Invariant: to an application that knows nothing of it, this is uvicorn's protocol.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from heddle_gateway.asgi.interrupts import HangUps


class GatewayProtocol(HttpToolsProtocol):
    """For uvicorn's ``http`` option."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        self.hang_ups = HangUps()
        super().connection_made(cast(asyncio.Transport, JoinedWrites(transport, self.loop)))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.hang_ups.cut()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)["heddle.hang_ups"] = self.hang_ups


class JoinedWrites:
    """A transport that keeps what is written until the event loop's next turn."""

    __slots__ = ("_loop", "_parts", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts = self._parts
        if parts:
            self._parts = []
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's own."""
        return getattr(self._transport, name)
