"""One keep-alive HTTP/1.1 connection of a lean agent: a request out, a whole answer back.

Made for hundreds of agents that share their machine with the servers they load: an SDK's client takes some
3 ms of processor time a step, more than gateway and engine together.
"""

import asyncio
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

ENGINE_SECONDS: Final = b"x-emulated-seconds"
RETRY_AFTER: Final = b"retry-after"


class ConnectionLost(Exception):
    """The connection ended before the answer was whole. ``unread``: no byte of an answer had come."""

    def __init__(self, *, unread: bool) -> None:
        super().__init__("the server closed the connection")
        self.unread = unread


class _Parser(Protocol):
    def feed_data(self, data: bytes) -> None: ...
    def get_status_code(self) -> int: ...
    def should_keep_alive(self) -> bool: ...


class LeanConnection(asyncio.Protocol):
    """``status``, ``body`` and ``headers`` are those of the last answer; header names are lower-case, only
    the few that are asked for are kept.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parser: _Parser | None = None
        self._chunks: list[bytes] = []
        self._some = False
        self.status = 0
        self.body = b""
        self.headers: dict[bytes, bytes] = {}

    @classmethod
    async def open(cls, host: str, port: int) -> "LeanConnection":
        """Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, head: bytes, parts: list[bytes]) -> None:
        """Sends a request, waits for the whole answer. Raises ConnectionLost."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost(unread=True)
        self._parser = cast(_Parser, httptools.HttpResponseParser(self))
        self._chunks, self._some = [], False
        self.headers = {}
        self._waiter = self._loop.create_future()
        self._transport.writelines([head, *parts])
        try:
            await self._waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._waiter = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # ---------------------------------------------------------------- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._some = True
        if self._parser is None:
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionLost(unread=not self._some))

    # ---------------------------------------------------------------- the parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        if (lowered := name.lower()) in (ENGINE_SECONDS, RETRY_AFTER):
            self.headers[lowered] = value

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self.body = b"".join(self._chunks)
        if not self._parser.should_keep_alive():
            self.close()
        self._parser = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def host_and_port(base_url: str) -> tuple[str, int]:
    """Of an http URL. Raises ValueError for what is none."""
    parts = urlsplit(base_url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError(f"{base_url}: must be an http:// URL")
    return parts.hostname, parts.port or 80
