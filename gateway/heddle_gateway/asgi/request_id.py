"""Every answer carries ``x-request-id``: the caller's where it is harmless, else one of ours.

Invariant: nothing from a client is reflected unless the pattern admits it (no control characters, bounded length).
"""

import os
import re
from collections.abc import MutableMapping
from typing import Any, Final

from heddle_gateway.asgi.interrupts import Receive
from heddle_gateway.asgi.layer import App, Send

VALID_ID: Final = re.compile(rb"[A-Za-z0-9._:/-]{1,256}\Z")


class RequestIdLayer:
    """Puts the id into ``scope["heddle.request_id"]`` (bytes) and into the answer."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _requested(scope["headers"]) or os.urandom(16).hex().encode()
        scope["heddle.request_id"] = request_id

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)


def _requested(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    for name, value in headers:
        if name == b"x-request-id":
            return value if VALID_ID.match(value) else None
    return None
