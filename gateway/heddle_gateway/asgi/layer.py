"""Types of a plain ASGI layer, and the one way a layer refuses a request."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from heddle_gateway.asgi.interrupts import Receive
from heddle_gateway.asgi.reply import Headers, Reply, Send

App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


async def refuse(
    send: Send, status: int, message: str, code: str, *, kind: str, headers: Headers | None = None
) -> None:
    """An error in OpenAI's nested shape, for a request that never reaches a route."""
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    await Reply(send).whole(status, [(b"content-type", b"application/json"), *(headers or [])], body)
