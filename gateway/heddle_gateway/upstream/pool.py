"""The connections to one worker.

Invariants: every connection is either idle in the pool or owned by one exchange. Connections are counted by
looking at these two sets. There is no queue here: the core decides who waits, so a full pool is an error.
"""

import asyncio
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from heddle_gateway.open_files import is_lack_of_files
from heddle_gateway.upstream.connection import ConnectionState, WorkerConnection
from heddle_gateway.upstream.errors import OutOfFiles, WorkerLost, WorkerOverCommitted, WorkerUnreachable

# A kept connection that dies this soon after a request went out, without one byte of an answer, was closed
# by the worker at the same moment (its keep-alive ran out). Later than this the worker had the request.
STALE_WINDOW_S: Final = 1.0
# A host that vanished without a word is noticed by TCP itself; there is no other timeout on a long
# generation.
TCP_KEEPALIVE_IDLE_S: Final = 20
TCP_KEEPALIVE_INTERVAL_S: Final = 5
TCP_KEEPALIVE_PROBES: Final = 4


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """``keepalive_s`` must lie below the workers' own (uvicorn: 5 s); ``idle_timeout_s`` 0 means none."""

    connect_timeout_s: float = 5.0
    keepalive_s: float = 4.0
    idle_timeout_s: float = 0.0
    max_connections: int = 8192


class WorkerPool:
    """Connections to one base URL, last used first."""

    def __init__(self, base_url: str, limits: PoolLimits) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http(s) URL: {base_url!r}")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._limits = limits
        self._idle: list[WorkerConnection] = []
        self._busy: set[WorkerConnection] = set()
        self.used_at = 0.0
        self._path_prefix = parts.path.rstrip("/").encode("ascii")
        self._host_header = parts.netloc.rsplit("@", 1)[-1].encode("ascii")
        self._first_lines: dict[tuple[bytes, str | None], bytes] = {}

    @property
    def idle(self) -> int:
        """Of those the worker has not closed meanwhile."""
        return sum(connection.state is ConnectionState.IDLE for connection in self._idle)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def first_lines(self, path: bytes, key: str | None) -> bytes:
        """Request line, host and authorization of a POST. Paths and keys are the gateway's own, so few."""
        lines = self._first_lines.get((path, key))
        if lines is None:
            lines = b"POST %b%b HTTP/1.1\r\nhost: %b\r\n" % (self._path_prefix, path, self._host_header)
            if key:
                lines += b"authorization: Bearer %b\r\n" % key.encode("latin-1")
            self._first_lines[path, key] = lines
        return lines

    async def exchange(self, request: bytes, *, whole: bool) -> WorkerConnection:
        """Sends ``request`` and waits for the headers (``whole``: for the complete answer).

        Hand the connection to ``release`` afterwards, in any case where one was returned.
        Raises an UpstreamError; a cancelled call closes its socket at once.
        """
        self.used_at = sent_at = time.monotonic()
        connection = self._take_idle(sent_at)
        was_kept = connection is not None
        while True:
            if connection is None:
                connection = await self._connect()
            self._busy.add(connection)
            answered = False
            try:
                connection.start(request, whole=whole)
                await connection.answered()
                answered = True
                return connection
            except WorkerLost as lost:
                if not was_kept or lost.answer_began or time.monotonic() - sent_at > STALE_WINDOW_S:
                    raise
            finally:
                if not answered:
                    self.release(connection)
            connection, was_kept = None, False

    def release(self, connection: WorkerConnection) -> None:
        """Keeps the connection when its answer is complete, else closes the socket at once."""
        self._busy.discard(connection)
        if connection.reusable:
            connection.rest(time.monotonic())
            self._idle.append(connection)
        else:
            connection.abort()

    def close(self) -> None:
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        self._busy.clear()

    def _take_idle(self, now: float) -> WorkerConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.state is not ConnectionState.IDLE:
                continue  # closed by the worker meanwhile
            if now - connection.idle_since <= self._limits.keepalive_s:
                return connection
            # Last used first: all below are older still.
            connection.abort()
            for older in self._idle:
                older.abort()
            self._idle.clear()
        return None

    async def _connect(self) -> WorkerConnection:
        if len(self._busy) >= self._limits.max_connections:
            raise WorkerOverCommitted(
                f"{len(self._busy)} connections to {self._host}:{self._port} are in use"
            )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: WorkerConnection(loop, idle_timeout_s=self._limits.idle_timeout_s),
                    self._host,
                    self._port,
                    ssl=self._tls,
                )
        except TimeoutError as error:
            raise WorkerUnreachable(
                f"no connection to {self._host}:{self._port} within {self._limits.connect_timeout_s:g} s"
            ) from error
        except OSError as error:
            if is_lack_of_files(error):
                raise OutOfFiles(f"the gateway can open no more connections: {error}") from error
            raise WorkerUnreachable(f"no connection to {self._host}:{self._port}: {error}") from error
        _watch_the_peer(transport.get_extra_info("socket"))
        return connection


def _watch_the_peer(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux; elsewhere the system's own intervals serve
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, TCP_KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, TCP_KEEPALIVE_INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, TCP_KEEPALIVE_PROBES)
