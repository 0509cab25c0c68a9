"""The byte path to the workers: one request out, one answer back, and the abort of a request by its rid.

Invariant: nothing here retries, queues or chooses; it says what happened, and the core decides what follows.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

from heddle_core import answer_lines

from heddle_gateway.upstream.connection import WorkerConnection, media_type
from heddle_gateway.upstream.errors import UpstreamError
from heddle_gateway.upstream.pool import PoolLimits, WorkerPool

log = logging.getLogger(__name__)

# The next step of a trajectory waits for the abort of the last one; longer than this it is not held up.
ABORT_TIMEOUT_S: Final = 2.0
UNUSED_POOL_S: Final = 60.0
# What an engine answers that does not stream, and a proxy in front of one that is away.
DOCUMENTS: Final = frozenset({b"application/json", b"text/html"})


class Endpoint(Protocol):
    """Where a worker listens. ``base_url`` has no trailing slash and no ``/v1``."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key(self) -> str | None: ...


class Exchange:
    """One answer of a worker. ``close`` it in every case: what is not read to its end is aborted.

    ``headers`` are kept of faults and streams only. ``whole``: the body is all here.
    """

    __slots__ = ("_connection", "_pool", "headers", "status", "whole")

    def __init__(self, pool: WorkerPool, connection: WorkerConnection) -> None:
        self._pool = pool
        self._connection = connection
        self.status = connection.status
        self.headers = connection.headers
        self.whole = connection.whole

    def lines(self, without: Sequence[bytes] = ()) -> bytes:
        """The header lines that go to the client, each ended by CRLF."""
        ready = self._connection.lines
        return ready if ready is not None and not without else answer_lines(self.headers, list(without))

    def body(self) -> bytes:
        """The body, of an exchange that is ``whole``."""
        return self._connection.buffered_body()

    def unread(self, body: bytes) -> None:
        """Takes it back: `read` gives it again."""
        self._connection.unread(body)

    @property
    def is_document(self) -> bool:
        """The worker says that its body is one document, and no stream of events."""
        return media_type(self.headers) in DOCUMENTS

    def read(self) -> Coroutine[Any, Any, bytes]:
        """The next bytes of the body; empty at its end. Raises WorkerLost or WorkerSilent."""
        return self._connection.read()

    async def read_rest(self, limit: int) -> bytes:
        """What is left of the body; of a body that is longer than ``limit`` bytes about so many (``close``
        aborts the rest).
        """
        parts: list[bytes] = []
        size = 0
        while size < limit and (part := await self._connection.read()):
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._pool.release(self._connection)


class Upstream:
    """All pools of one process, by base URL."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._pools: dict[str, WorkerPool] = {}

    async def open(
        self, endpoint: Endpoint, path: bytes, headers: bytes, body: bytes, *, whole: bool
    ) -> Exchange:
        """POSTs ``body`` and waits for the response headers, or with ``whole`` for the complete answer.

        ``headers`` are ready lines, each ended by CRLF. Raises an UpstreamError; cancelling closes the
        socket.
        """
        pool = self._pools.get(endpoint.base_url) or self._new_pool(endpoint.base_url)
        request = b"%b%bcontent-length: %d\r\n\r\n%b" % (
            pool.first_lines(path, endpoint.api_key),
            headers,
            len(body),
            body,
        )
        return Exchange(pool, await pool.exchange(request, whole=whole))

    async def abort(self, endpoint: Endpoint, rid: str) -> bool:
        """``POST /abort_request`` for one rid; True when the engine answered. Never raises, never over 2 s.

        SGLang matches rids by prefix, so only whole rids of fixed length may be passed.
        """
        body = b'{"rid": "%s"}' % rid.encode("ascii")
        try:
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                exchange = await self.open(
                    endpoint, b"/abort_request", b"content-type: application/json\r\n", body, whole=True
                )
        except (UpstreamError, TimeoutError) as error:
            log.warning("abort of %s at %s failed: %s", rid, endpoint.base_url, error)
            return False
        exchange.close()
        return exchange.status < 400

    def connections(self) -> dict[str, tuple[int, int]]:
        """(busy, idle) connections by base URL, for the metrics."""
        return {url: (pool.busy, pool.idle) for url, pool in self._pools.items()}

    def stats(self) -> dict[str, int]:
        """Connections of all pools, for the metrics."""
        pools = self._pools.values()
        return {
            "connections_busy": sum(pool.busy for pool in pools),
            "connections_idle": sum(pool.idle for pool in pools),
        }

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _new_pool(self, base_url: str) -> WorkerPool:
        self._forget_unused(time.monotonic() - UNUSED_POOL_S)
        pool = self._pools[base_url] = WorkerPool(base_url, self._limits)
        return pool

    def _forget_unused(self, before: float) -> None:
        """Workers come and go under new URLs; the pool of one that is gone holds nothing worth keeping."""
        for url in [url for url, pool in self._pools.items() if not pool.busy and pool.used_at < before]:
            self._pools.pop(url).close()
