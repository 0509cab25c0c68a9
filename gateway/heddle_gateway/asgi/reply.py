"""What has gone to the client of one request so far.

Invariant: headers go out once, and the last part once; so an error can only be an HTTP status before the
first and only an event of the stream after it.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class Reply:
    """``status`` is None until the headers went out."""

    __slots__ = ("_send", "ended", "headers", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        self.ended = False
        self.headers: Headers = []

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """A complete answer with its length. ``self.headers`` go along."""
        self.status = status
        self.ended = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self.headers, (b"content-length", b"%d" % len(body))],
            }
        )
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self, status: int, headers: Headers) -> None:
        """The headers of a streamed answer."""
        self.status = status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *self.headers]}
        )

    async def part(self, data: bytes) -> None:
        """A part of a streamed answer; waits while the client reads slower than this."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The last part of a streamed answer."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": data})
