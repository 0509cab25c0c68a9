"""An operator may ask any gateway: what the leader alone knows, the leader is asked.

Invariant: what is said of this process itself (`OWN`) never leaves it; a request is passed on once.
"""

import json
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

OWN: Final = frozenset(
    {"/health", "/ready", "/metrics", "/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"}
)
PASSED_ON: Final = b"x-heddle-passed-on"
# Of this hop alone (RFC 9110, 7.6.1), or made anew.
HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"host",
        b"content-length",
    }
)
TIMEOUT: Final = httpx.Timeout(None, connect=2.0)


class AdminProxy:
    """``leader``: base URL of who decides, None where that is this process."""

    def __init__(self, app: ASGIApp, leader: Callable[[], str | None]) -> None:
        self._app = app
        self._leader = leader
        self._client = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, follow_redirects=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leader = self._leader() if scope["type"] == "http" and scope["path"] not in OWN else None
        if leader is None:
            await self._app(scope, receive, send)
        elif any(name == PASSED_ON for name, _ in scope["headers"]):
            await _refuse(send, "The gateway that was taken for the leader follows another; try again.")
        else:
            await self._pass_on(leader, scope, receive, send)

    async def _pass_on(self, leader: str, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope["query_string"].decode("latin-1")
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP]
        request = self._client.build_request(
            scope["method"],
            f"{leader}{scope['path']}" + (f"?{query}" if query else ""),
            headers=[*headers, (PASSED_ON, b"1")],
            content=await _body(receive),
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            await _refuse(send, f"The leader at {leader} does not answer: {error or type(error).__name__}.")
            return
        try:
            lines = [(name.lower(), value) for name, value in response.headers.raw]
            lines = [(name, value) for name, value in lines if name not in HOP and name != b"x-request-id"]
            await send({"type": "http.response.start", "status": response.status_code, "headers": lines})
            async for part in response.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()


async def _body(receive: Receive) -> bytes:
    parts = []
    more = True
    while more:
        message: MutableMapping[str, Any] = await receive()
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _refuse(send: Send, message: str) -> None:
    error = {"message": message, "type": "server_error", "param": None, "code": "leader_away"}
    body = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"retry-after", b"1"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
