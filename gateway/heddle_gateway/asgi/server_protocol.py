"""uvicorn's HTTP protocol with five additions that a step would otherwise pay for.

* A hang-up calls back. Plain ASGI tells it to a pending ``receive`` only, which costs every step a task;
  ``scope["heddle.hang_ups"]`` is a HangUps, which calls when the line is cut. For that the line is read
  on while a step runs: uvicorn stops at a body over 64 KiB, and at a second request, until it is asked.
* What is written in one turn of the event loop goes out in one system call: uvicorn writes the headers of an
  answer and its body apart.
* A request whose headers never end is cut off.
* A request that asks for another protocol as well is served as it stands, with its body.

Invariant: to an application that knows nothing of it, this is uvicorn's protocol.
"""

import asyncio
import sys
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from heddle_gateway.asgi.interrupts import HangUps

# The parser has no limit of its own. Above one read of the event loop (256 KiB), so that a body which comes
# along with the head of the next request is not counted for headers.
MAX_HEADER_BYTES: Final = 512 * 1024
# Requests that may wait behind the running one before the line is no longer read: no SDK sends any.
MAX_WAITING_REQUESTS: Final = 4
HEADERS_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class GatewayProtocol(HttpToolsProtocol):
    """For uvicorn's ``http`` option."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        self.hang_ups = HangUps()
        self._in_headers = False
        self._header_bytes = 0
        super().connection_made(cast(asyncio.Transport, JoinedWrites(transport, self.loop)))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.hang_ups.cut()

    def data_received(self, data: bytes) -> None:
        self._received = data
        super().data_received(data)
        if self._in_headers:
            # At most one read too many is counted: that in which the message began.
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
                self.transport.write(HEADERS_TOO_LARGE)
                self.transport.close()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        super().on_headers_complete()
        self._read_on()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
        self._read_on()

    def _unsupported_upgrade_warning(self) -> None:
        """Java's HTTP client asks for HTTP/2 (h2c) along with each request. An upgrade may be ignored (RFC
        9110, 7.8), but the parser stops behind the headers: another one reads the body, and the connection
        ends with it.
        """
        stopped = sys.exception()
        assert isinstance(stopped, httptools.HttpParserUpgrade)
        self.cycle.keep_alive = False
        self.parser = httptools.HttpRequestParser(_BodyOnly(self))
        head = [b"POST / HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name in (b"content-length", b"transfer-encoding"):
                head += (name, b": ", value, b"\r\n")
        super().data_received(b"".join((*head, b"\r\n", self._received[stopped.args[0] :])))

    def _read_on(self) -> None:
        """A line that is not read does not tell that it was cut. What waits in it stays bounded: by the
        requests counted here, and each by uvicorn's pause in the middle of its body.
        """
        if self.flow.read_paused and len(self.pipeline) <= MAX_WAITING_REQUESTS:
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()
        cast(dict[str, Any], self.scope)["heddle.hang_ups"] = self.hang_ups


class _BodyOnly:
    """What a parser tells of one more message: its body, not its head."""

    def __init__(self, protocol: GatewayProtocol) -> None:
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete


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
