"""One request of the data path and its answer, on one client connection; no ASGI messages in between.

Invariants: headers go out once, and the last part once, so an error can only be an HTTP status before the
first and only an event of the stream after it; a client that left is written to no more. Header lines are
validated where they enter the gateway: here they are only put together.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http.client import responses
from typing import Final, Protocol

from heddle_gateway.asgi.request_body import ClientLeft

log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]

# A client that sends faster than its body is taken is not read above this.
BODY_HIGH_WATER: Final = 64 * 1024
STATUS_LINES: Final = {
    status: b"HTTP/1.1 %d %s\r\n" % (status, responses.get(status, "").encode())
    for status in range(200, 1000)
}


class Flow(Protocol):
    """What holds the two directions of a connection back (uvicorn's FlowControl)."""

    write_paused: bool

    async def drain(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Connection(Protocol):
    """The client's connection (asgi.server_protocol)."""

    transport: asyncio.Transport
    flow: Flow
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[None]

    def on_response_complete(self) -> None: ...


class ClientExchange:
    """``path``: as the client called it, decoded. ``headers``: lower-case names, Latin-1 values, the last of
    a repeated one. ``forward``: the header lines that go to a worker. ``lines``: those that go with any
    answer. Lines end in CRLF. ``plain_body``: the body, where it came whole and uncoded; else it is to be
    read. ``status`` is None until headers went out. ``on_cut`` is called when the client leaves before its
    answer is complete.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_connection",
        "_endpoint",
        "_expects_continue",
        "_held",
        "_size",
        "_waiter",
        "disconnected",
        "ended",
        "forward",
        "headers",
        "keep_alive",
        "lines",
        "more_body",
        "on_cut",
        "path",
        "plain_body",
        "query",
        "request_id",
        "response_complete",
        "status",
    )

    def __init__(
        self,
        connection: Connection,
        endpoint: "Endpoint",
        *,
        path: str,
        query: bytes,
        headers: Mapping[str, str],
        forward: bytes,
        request_id: bytes,
        lines: bytes,
        body: bytes | None,
        keep_alive: bool,
        http_1_0: bool,
    ) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._body: list[bytes] = [] if body is None else [body]
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        # HTTP/1.0 knows no answer before the answer.
        self._expects_continue = (
            "expect" in headers and headers["expect"].lower() == "100-continue" and not http_1_0
        )
        self._held = b""
        self._chunked = not http_1_0
        self.path = path
        self.query = query
        self.headers = headers
        self.forward = forward
        self.request_id = request_id
        self.lines = lines
        self.keep_alive = keep_alive
        self.plain_body = body
        self.more_body = body is None
        self.disconnected = False
        self.response_complete = False
        self.on_cut: Callable[[], None] | None = None
        self.status: int | None = None
        self.ended = False

    # ---------------------------------------------------------------- what the connection tells

    @property
    def task(self) -> asyncio.Task[None]:
        """In which it is served."""
        return self._connection.task

    def receive(self, part: bytes) -> None:
        """Bytes of the request's body."""
        if self.response_complete or not self.more_body:
            return  # answered before it was read; or of the next one, behind a request to upgrade
        self._body.append(part)
        self._size += len(part)
        if self._size > BODY_HIGH_WATER:
            self._connection.flow.pause_reading()
        self._wake()

    def received_all(self) -> None:
        """The request's body is complete."""
        self.more_body = False
        self._wake()

    def cut(self) -> None:
        """The connection is lost."""
        self.disconnected = True
        self.plain_body = None
        self._wake()
        if self.on_cut is not None:
            self.on_cut()

    # ---------------------------------------------------------------- the request's body

    async def next_part(self) -> tuple[bytes, bool]:
        """What of the body has arrived since the last call, and whether more will come. Raises ClientLeft."""
        connection = self._connection
        if self._expects_continue and not connection.transport.is_closing():
            self._expects_continue = False
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._body and self.more_body and not self.disconnected:
            connection.flow.resume_reading()
            self._waiter = connection.loop.create_future()
            await self._waiter
            self._waiter = None
        if self.disconnected:
            raise ClientLeft
        parts = self._body
        self._body = []
        self._size = 0
        return parts[0] if len(parts) == 1 else b"".join(parts), self.more_body

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---------------------------------------------------------------- the answer

    async def whole(self, status: int, lines: bytes, body: bytes) -> None:
        """A complete answer with its length. ``lines``: header lines, each ended by CRLF."""
        self.status = status
        self.ended = True
        connection = self._connection
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        if not self.disconnected:
            head = self._head(status, lines, b"content-length: %d\r\n" % len(body))
            connection.transport.write(head + body)
            self._complete()

    async def begin(self, status: int, lines: bytes) -> None:
        """The head of a streamed answer. It goes out with the first part."""
        self.status = status
        self._held = self._head(status, lines, b"transfer-encoding: chunked\r\n" if self._chunked else b"")

    async def part(self, data: bytes) -> None:
        """A part of a streamed answer, not empty; waits while the client reads slower than this."""
        connection = self._connection
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        if not self.disconnected:
            held, self._held = self._held, b""
            connection.transport.write(
                b"%b%x\r\n%b\r\n" % (held, len(data), data) if self._chunked else held + data
            )

    async def end(self, data: bytes = b"") -> None:
        """The last part of a streamed answer."""
        self.ended = True
        if data:
            await self.part(data)
        if not self.disconnected:
            last = self._held + (b"0\r\n\r\n" if self._chunked else b"")
            if last:
                self._connection.transport.write(last)
            self._complete()

    def _head(self, status: int, lines: bytes, framing: bytes) -> bytes:
        # Nobody is told to go on any more. Who waited for that may send the body or the next request: what
        # comes cannot be told apart, so nothing may.
        if self._expects_continue and self.more_body:
            self.keep_alive = False
        self._expects_continue = False
        return b"%b%b%b%b%b\r\n" % (
            STATUS_LINES[status],
            lines,
            self.lines,
            framing,
            b"" if self.keep_alive else b"connection: close\r\n",
        )

    def _complete(self) -> None:
        self.response_complete = True
        self.on_cut = None
        # An idle connection keeps its last exchange, which need not keep a body.
        self.plain_body = None
        self._body = []
        connection = self._connection
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    # ---------------------------------------------------------------- being served

    async def serve(self) -> None:
        """The answers before this one are complete: now it is served, in the connection's task."""
        transport = self._connection.transport
        try:
            await self._endpoint(self)
            if not self.response_complete and not self.disconnected:
                log.error("request %r was left without a whole answer", self.request_id)
                transport.close()
        except asyncio.CancelledError:
            transport.close()  # the server ends, and its grace is over
            raise
        except Exception:
            # The one place where a defect of ours ends: the caller was told, or its line is cut.
            log.exception("request %r failed", self.request_id)
            if not self.response_complete:
                transport.close()


Endpoint = Callable[[ClientExchange], Awaitable[None]]
