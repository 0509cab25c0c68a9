"""One HTTP/1.1 connection to a worker, as an asyncio protocol over httptools' parser.

Why not a client library: a step must be cancellable *before* the response headers. pyreqwest 0.15.1 detaches
its request there (the worker goes on generating); aiohttp and httpx cost three to ten times the time of a
whole request of ours. Here leaving an exchange aborts the socket at once, and what had arrived is known
exactly.

Invariants: one exchange at a time; a connection is reused only after a complete answer that allows it;
whatever arrives outside an exchange closes it.
"""

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol, cast

import httptools
from heddle_core import plain_answer

from heddle_gateway.upstream.errors import UpstreamError, WorkerLost, WorkerSilent

# A worker may be faster than the client reads: stop reading from it above this, go on below.
BUFFER_HIGH_WATER: Final = 256 * 1024
# uvicorn's and nginx' own limits are below this; more is not a header block.
MAX_HEADER_BYTES: Final = 128 * 1024


EVENT_STREAM: Final = b"text/event-stream"


def media_type(headers: list[tuple[bytes, bytes]]) -> bytes:
    """What the body is by ``content-type``, in lower case and without its parameters; empty where nobody
    says.
    """
    for name, value in headers:
        if name == b"content-type":
            return value.partition(b";")[0].strip().lower()
    return b""


class ConnectionState(StrEnum):
    """Where one connection stands."""

    OPENING = "opening"
    IDLE = "idle"
    WAITING = "waiting"
    ANSWERING = "answering"
    COMPLETE = "complete"
    CLOSED = "closed"


LEGAL_MOVES: Final[Mapping[ConnectionState, frozenset[ConnectionState]]] = {
    ConnectionState.OPENING: frozenset({ConnectionState.IDLE, ConnectionState.CLOSED}),
    ConnectionState.IDLE: frozenset({ConnectionState.WAITING, ConnectionState.CLOSED}),
    ConnectionState.WAITING: frozenset(
        {ConnectionState.ANSWERING, ConnectionState.COMPLETE, ConnectionState.CLOSED}
    ),
    ConnectionState.ANSWERING: frozenset({ConnectionState.COMPLETE, ConnectionState.CLOSED}),
    ConnectionState.COMPLETE: frozenset({ConnectionState.IDLE, ConnectionState.CLOSED}),
    ConnectionState.CLOSED: frozenset(),
}


class _Parser(Protocol):
    def feed_data(self, data: bytes) -> None: ...
    def get_status_code(self) -> int: ...
    def should_keep_alive(self) -> bool: ...


class WorkerConnection(asyncio.Protocol):
    """Sends one request, reads one answer, again and again.

    ``status`` and ``headers`` (raw pairs, in order) are valid once ``answered()`` returned. A successful
    answer that came whole has ``lines`` instead: its header lines for the client.
    """

    __slots__ = (
        "_buffered",
        "_chunks",
        "_error",
        "_header_bytes",
        "_idle_timeout_s",
        "_last_data_at",
        "_loop",
        "_open",
        "_parser",
        "_paused",
        "_timer",
        "_transport",
        "_waiter",
        "_whole",
        "exchanges",
        "headers",
        "idle_since",
        "lines",
        "state",
        "status",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, *, idle_timeout_s: float) -> None:
        self._loop = loop
        self._idle_timeout_s = idle_timeout_s
        self._transport: asyncio.Transport | None = None
        self._parser: _Parser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: UpstreamError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._open = True
        self.state = ConnectionState.OPENING
        self.exchanges = 0
        self.idle_since = 0.0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.lines: bytes | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._header_bytes = 0
        self._last_data_at = 0.0
        self._whole = True

    # ---------------------------------------------------------------- the exchange, for the caller

    def start(self, request: bytes, *, whole: bool) -> None:
        """Writes a whole request (head and body). ``whole``: wake the caller once, when the answer is
        complete.
        """
        self._move(ConnectionState.WAITING)
        self.status = 0
        self.headers = []
        self.lines = None
        self._chunks = []
        self._buffered = 0
        self._header_bytes = 0
        self._whole = whole
        self.exchanges += 1
        assert self._transport is not None
        self._transport.write(request)
        if self._idle_timeout_s:
            self._last_data_at = self._loop.time()
            self._timer = self._loop.call_later(self._idle_timeout_s, self._check_silence)

    def answered(self) -> "asyncio.Future[None]":
        """Done once the response headers are here, or the whole answer when started so (and `whole` still
        holds: a stream of events that was not asked for is one all the same). Ask right after the start:
        nothing else wakes its waiter. Raises WorkerLost or WorkerSilent.
        """
        return self._wait()

    async def read(self) -> bytes:
        """All bytes of the body that have arrived since the last read; empty at its end."""
        while not self._chunks:
            if self.state is ConnectionState.COMPLETE:
                return b""
            await self._wait()
        return self._take()

    def buffered_body(self) -> bytes:
        """What of the body lies here unread. After ``answered()`` of a whole exchange: all of it."""
        return self._take() if self._chunks else b""

    def unread(self, data: bytes) -> None:
        """Puts back what `buffered_body` gave."""
        self._chunks.insert(0, data)

    @property
    def whole(self) -> bool:
        """The caller is woken when the answer is complete."""
        return self._whole

    def abort(self) -> None:
        """Closes the socket at once; the worker sees its client leave."""
        if self.state is not ConnectionState.CLOSED:
            self._fail(WorkerLost("the exchange was left", answer_began=self.status != 0))
        if self._transport is not None:
            self._transport.abort()
        # Nobody reads here any more. The parser refers back to this object, an error that was raised to the
        # frames it passed through: such cycles would keep what is buffered until a collection, which is rare.
        self._parser = None
        self._chunks = []
        self._waiter = None
        self._error = WorkerLost("the exchange was left", answer_began=self.status != 0)

    @property
    def reusable(self) -> bool:
        """True after a complete answer that leaves the connection open."""
        return self.state is ConnectionState.COMPLETE and self._open

    def rest(self, now: float) -> None:
        """Back to idle, for the pool."""
        self._move(ConnectionState.IDLE)
        self._parser = None
        self.idle_since = now
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # ---------------------------------------------------------------- asyncio protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._move(ConnectionState.IDLE)

    def data_received(self, data: bytes) -> None:
        if self.state is not ConnectionState.WAITING and self.state is not ConnectionState.ANSWERING:
            # Bytes nobody asked for: a worker that closes idle connections with a 408 does this.
            self.abort()
            return
        parser = self._parser
        if parser is None:
            if self._whole and (plain := plain_answer(data)) is not None:
                self.status, self.lines, body = plain
                self._chunks.append(body)
                self._complete()
                return
            parser = self._parser = httptools.HttpResponseParser(self)
        if self._timer is not None:
            self._last_data_at = self._loop.time()
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # Or it speaks another protocol from here on, for which nobody asked.
            self._fail(WorkerLost(f"the worker's answer is not HTTP: {error}", answer_began=self.status != 0))
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.state is ConnectionState.CLOSED:
            return
        if self.state is ConnectionState.ANSWERING and exc is None and self._ends_with_the_connection():
            self._complete()
        reason = str(exc) if exc is not None else "connection closed before the answer was whole"
        if self.state is ConnectionState.COMPLETE:
            # The answer is whole: it stays readable, only the connection cannot be used again.
            self._open = False
            return
        self._fail(WorkerLost(reason, answer_began=self.status != 0))

    # ---------------------------------------------------------------- httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.state is not ConnectionState.WAITING:
            return  # trailers
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise ValueError("response headers too large")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.state is not ConnectionState.WAITING:
            raise ValueError("a second answer to one request")
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 100:
            raise ValueError("a status below 100")
        if status < 200:
            self.headers.clear()  # 100 Continue and its like announce the real answer
            return
        self.status = status
        self._move(ConnectionState.ANSWERING)
        if self._whole and status < 300 and media_type(self.headers) == EVENT_STREAM:
            self._whole = False
        if not self._whole:
            self._wake()

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        if self._whole:
            return
        self._buffered += len(body)
        if self._buffered > BUFFER_HIGH_WATER and not self._paused:
            self._paused = True
            assert self._transport is not None
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self.state is not ConnectionState.ANSWERING:
            return  # the end of a 1xx
        assert self._parser is not None
        # To be asked here: afterwards the parser stands at the head of the next message.
        self._open = self._open and self._parser.should_keep_alive()
        self._complete()

    # ---------------------------------------------------------------- inside

    def _complete(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._move(ConnectionState.COMPLETE)
        self._wake()

    def _move(self, state: ConnectionState) -> None:
        if state not in LEGAL_MOVES[self.state]:
            raise RuntimeError(f"connection cannot go from {self.state.value} to {state.value}")
        self.state = state

    def _take(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        self._buffered = 0
        if self._paused:
            self._paused = False
            assert self._transport is not None
            self._transport.resume_reading()
        return data

    def _wait(self) -> "asyncio.Future[None]":
        if self._error is not None:
            raise self._error
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, error: UpstreamError) -> None:
        self._move(ConnectionState.CLOSED)
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _check_silence(self) -> None:
        silent = self._loop.time() - self._last_data_at
        if self._paused:
            silent = 0.0  # it is the client that does not read
        if silent < self._idle_timeout_s:
            self._timer = self._loop.call_later(self._idle_timeout_s - silent, self._check_silence)
            return
        self._timer = None
        self._fail(
            WorkerSilent(f"nothing arrived for {self._idle_timeout_s:g} s", answer_began=self.status != 0)
        )
        assert self._transport is not None
        self._transport.abort()

    def _ends_with_the_connection(self) -> bool:
        """A body without a length and not chunked ends where the connection does (RFC 9112, 6.3)."""
        names = {name for name, _ in self.headers}
        return b"content-length" not in names and b"transfer-encoding" not in names
