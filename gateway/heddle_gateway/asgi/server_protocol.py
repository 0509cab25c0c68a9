"""The gateway's side of a client connection: uvicorn's HTTP protocol, and a short way for the data path.

A request of the data path is served as a ClientExchange: no scope, no messages, no event and no timer of its
own, which cost as much as the rest of a step. One that comes whole in one read, plainly framed, does not even
meet the parser. Every other request takes uvicorn's way to the ASGI application. All kinds may follow each
other on one connection, and wait behind each other.

What differs from uvicorn besides:

* A hang-up calls the exchange. For that the line is read on while a step runs: uvicorn stops at a body over
  64 KiB, and at a second request, until it is asked.
* A request whose headers never end is cut off, or whose trailers or chunk extensions do not; no application
  asks for trailers. Headers that take longer than ``head_timeout_s`` are answered with 408; uvicorn waits for
  them for ever. A body may take as long as it does.
* A client that takes nothing of its answer for ``write_timeout_s`` is cut off: else its step kept a worker's
  seat for as long as it likes. Only a connection whose writing is paused is looked at.
* What is no HTTP is not told so (400, 431) in the middle of another answer.
* A request that asks for another protocol as well is served as it stands, with its body.
* An idle connection is looked at by one timer, however many requests it has carried; also one that never
  carried any.

Invariant: to an application that knows nothing of it, this is uvicorn's protocol.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol, cast

import httptools
from heddle_core import plain_request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from heddle_gateway.asgi.client_exchange import ClientExchange, Connection, Headers

# The parser has no limit of its own. Above one read of the event loop (256 KiB), so that a body which comes
# along with the head of the next request is not counted for headers.
MAX_HEADER_BYTES: Final = 512 * 1024
# Requests that may wait behind the running one before the line is no longer read: no SDK sends any.
MAX_WAITING_REQUESTS: Final = 4
HEADERS_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)
HEADERS_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Door(Protocol):
    """Knows the requests of the data path (asgi.front_door). None: it is not one, or may not pass."""

    def plain_exchange(
        self, connection: Connection, url: bytes, texts: Mapping[str, str], forward: bytes, body: bytes
    ) -> ClientExchange | None: ...
    def exchange(
        self, connection: Connection, url: bytes, headers: Headers, *, keep_alive: bool, http_1_0: bool
    ) -> ClientExchange | None: ...


class GatewayProtocol(HttpToolsProtocol):
    """For uvicorn's ``http`` option, with an application that has a ``door``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        app = cast(Any, self.config.app)
        self._door: Door = app.door
        self._head_timeout_s: float = app.head_timeout_s
        self._write_timeout_s: float = app.write_timeout_s
        # Whatever is installed: there is no route for a WebSocket.
        self.ws_protocol_class = None
        self._serving: Any = None
        # Of the exchanges, one after the other: a task for each would cost as much as reading its request.
        self.task: asyncio.Task[None] | None = None
        self._upcoming: ClientExchange | None = None
        self._idle: asyncio.Future[None] | None = None
        self._is_lost = False
        self._in_message = False
        self._in_headers = False
        self._header_bytes = 0
        self._idle_since = 0.0
        # When headers began that have not ended with the read they began in.
        self._head_since: float | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        # Bytes that the client had not taken, and when that was.
        self._untaken = 0
        self._taken_at = 0.0

    # ---------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._look_later(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self.pipeline.clear()
        self._is_lost = True
        self._wake()
        serving = self._serving
        # An exchange refers to its connection: together they would wait for a garbage collection.
        self._serving = None
        self.cycle = cast(Any, None)
        if type(serving) is ClientExchange:
            if not serving.response_complete:
                serving.cut()
        elif serving is not None:
            serving.disconnected = not serving.response_complete
            serving.message_event.set()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self._unset_keepalive_if_required()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self.parser = cast(Any, None)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if not self._in_message and (before is None or before.response_complete):
            plain = plain_request(data)
            if plain is not None:
                exchange = self._door.plain_exchange(cast(Connection, self), *plain)
                if exchange is not None:
                    self._begin(exchange)
                    return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            message = "Invalid HTTP request received."
            self.logger.warning(message)
            if self._may_refuse():
                self.send_400_response(message)
            self.transport.close()
            return
        except httptools.HttpParserUpgrade as stopped:
            self._serve_without_upgrade(data[stopped.args[0] :])
        if self._in_headers and self._head_since is None:
            self._head_since = self.loop.time()
            self._look_later(self._head_timeout_s)
        if self._in_message:
            # At most one read too many is counted: that in which the message began, or its body went on.
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
                if self._in_headers and self._may_refuse():
                    self.transport.write(HEADERS_TOO_LARGE)
                self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taken_at = self.loop.time()
        self._untaken = self.transport.get_write_buffer_size()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._write_timeout_s, self._look_whether_taken)

    def _look_whether_taken(self) -> None:
        self._write_timer = None
        if not self.flow.write_paused:
            return
        now, untaken = self.loop.time(), self.transport.get_write_buffer_size()
        if untaken < self._untaken:
            self._untaken, self._taken_at = untaken, now
        left = self._taken_at + self._write_timeout_s - now
        if left > 0:
            self._write_timer = self.loop.call_later(left, self._look_whether_taken)
            return
        self.logger.warning("a client took nothing of its answer for %g s", self._write_timeout_s)
        self.transport.abort()

    def _may_refuse(self) -> bool:
        """Whether what is written now begins an answer, and does not end up within one."""
        serving: Any = self._serving
        if serving is None or serving.response_complete:
            return True
        if type(serving) is ClientExchange:
            return serving.status is None
        return not serving.response_started

    # ---------------------------------------------------------------- what the parser tells

    def on_message_begin(self) -> None:
        self._in_message = True
        self._in_headers = True
        self._header_bytes = 0
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._head_since = None
        self._header_bytes = 0
        parser = self.parser
        if parser.get_method() == b"POST":
            http_1_0 = parser.get_http_version() == "1.0"
            exchange = self._door.exchange(
                cast(Connection, self),
                self.url,
                self.headers,
                keep_alive=not http_1_0 and parser.should_keep_alive(),
                http_1_0=http_1_0,
            )
            if exchange is not None:
                self._begin(exchange)
                return
        self._begin_asgi()
        self._read_on()

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        cycle: Any = self.cycle
        if type(cycle) is ClientExchange:
            cycle.receive(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        cycle: Any = self.cycle
        if type(cycle) is ClientExchange:
            if not self.parser.should_upgrade():
                cycle.received_all()
        elif not self.parser.should_upgrade():
            super().on_message_complete()
        self._read_on()

    # ---------------------------------------------------------------- one request after the other

    def _begin(self, exchange: ClientExchange) -> None:
        before = self.cycle
        self.cycle = cast(Any, exchange)
        if before is None or before.response_complete:
            self._serve(exchange)
            return
        self.pipeline.appendleft((cast(Any, exchange), self.app))
        if len(self.pipeline) > MAX_WAITING_REQUESTS:
            self.flow.pause_reading()

    def _serve(self, exchange: ClientExchange) -> None:
        self._serving = self._upcoming = exchange
        if self.task is None:
            self.task = self.loop.create_task(self._serve_exchanges())
        else:
            self._wake()
        # The server's: the end waits for those that are busy.
        self.tasks.add(self.task)

    async def _serve_exchanges(self) -> None:
        task = self.task
        assert task is not None
        try:
            while True:
                exchange = self._upcoming
                if exchange is not None:
                    self._upcoming = None
                    await exchange.serve()
                    continue
                self.tasks.discard(task)
                if self._is_lost:
                    return
                self._idle = self.loop.create_future()
                await self._idle
        finally:
            self.tasks.discard(task)
            self.transport.close()

    def _wake(self) -> None:
        idle = self._idle
        if idle is not None and not idle.done():
            idle.set_result(None)

    def _begin_asgi(self) -> None:
        """uvicorn makes the scope before it knows the request; here that is done for those who need it."""
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._serving = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            cycle: Any
            cycle, app = self.pipeline.pop()
            if type(cycle) is ClientExchange:
                self._serve(cycle)
            else:
                self._start_asgi_task(cycle, app)
            return
        self._idle_since = self.loop.time()
        if self._in_headers:
            self._look_later(self._head_timeout_s)
        elif self.timeout_keep_alive_task is None:
            self._look_later(self.timeout_keep_alive)

    def _look_later(self, seconds: float) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        self.timeout_keep_alive_task = None
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            return  # busy: the end of the answer asks again
        # Who sent the next headers early could not have them answered before.
        begun = max(self._head_since or 0.0, self._idle_since)
        left = begun + (self._head_timeout_s if self._in_headers else self.timeout_keep_alive)
        left -= self.loop.time()
        if left > 0:
            self._look_later(left)
            return
        if self._in_headers and self._may_refuse() and not self.transport.is_closing():
            self.transport.write(HEADERS_TOO_SLOW)
        self.timeout_keep_alive_handler()

    def _read_on(self) -> None:
        """A line that is not read does not tell that it was cut. What waits in it stays bounded: by the
        requests counted here, and each by the pause in the middle of its body.
        """
        if self.flow.read_paused and len(self.pipeline) <= MAX_WAITING_REQUESTS:
            self.flow.resume_reading()

    def _serve_without_upgrade(self, rest: bytes) -> None:
        """Java's HTTP client asks for HTTP/2 (h2c) along with each request. An upgrade may be ignored (RFC
        9110, 7.8), but the parser stops behind the headers: another one reads the body, and the connection
        ends with it. ``rest``: of this read, behind the headers.
        """
        self.cycle.keep_alive = False
        self._in_message = True
        self.parser = httptools.HttpRequestParser(_BodyOnly(self))
        head = [b"POST / HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name in (b"content-length", b"transfer-encoding"):
                head += (name, b": ", value, b"\r\n")
        self.data_received(b"".join((*head, b"\r\n", rest)))


class _BodyOnly:
    """What a parser tells of one more message: its body, not its head."""

    def __init__(self, protocol: GatewayProtocol) -> None:
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete
