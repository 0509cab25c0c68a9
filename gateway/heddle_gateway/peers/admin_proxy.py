"""An operator may ask any gateway: what the leader alone knows, the leader is asked.

Invariant: what is said of this process itself (`OWN`), or is known here alone, never leaves it; a request is
passed on once, and its path as it came.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote

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
# Onlookers of `/admin/v1/events` hold theirs as long as they like.
LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=20)
EVENTS: Final = "text/event-stream"
LOOK_S: Final = 0.5
_Result = TypeVar("_Result")


class _Over(Exception):
    """The client has left, or another gateway leads than the one that was asked."""


class AdminProxy:
    """``leader``: base URL of who decides, None where that is this process. ``is_here(path)``: whether this
    process answers although it does not decide.
    """

    def __init__(
        self,
        app: ASGIApp,
        leader: Callable[[], str | None],
        is_here: Callable[[str], bool] = lambda path: False,
    ) -> None:
        self._app = app
        self._leader = leader
        self._is_here = is_here
        self._client = httpx.AsyncClient(
            timeout=TIMEOUT, limits=LIMITS, trust_env=False, follow_redirects=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leader = self._leader() if scope["type"] == "http" and scope["path"] not in OWN else None
        if leader is not None and self._is_here(scope["path"]):
            leader = None
        if leader is None:
            await self._app(scope, receive, send)
        elif any(name == PASSED_ON for name, _ in scope["headers"]):
            await _refuse(send, "The gateway that was taken for the leader follows another; try again.")
        elif (body := await _body(receive)) is not None:
            left = asyncio.create_task(_left(receive))
            try:
                await self._pass_on(leader, scope, body, send, left)
            finally:
                left.cancel()

    async def _pass_on(
        self, leader: str, scope: Scope, body: bytes, send: Send, left: asyncio.Task[None]
    ) -> None:
        # Not the decoded path: an id may hold what would end it.
        path = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP]
        request = self._client.build_request(
            scope["method"],
            f"{leader}{path}" + (f"?{query}" if query else ""),
            headers=[*headers, (PASSED_ON, b"1")],
            content=body,
        )
        try:
            response = await self._while_led(leader, left, self._ask(request))
        except (_Over, httpx.TransportError) as error:
            if not left.done():
                why = str(error) or type(error).__name__
                await _refuse(send, f"The leader at {leader} does not answer: {why}.")
            return
        try:
            lines = [(name.lower(), value) for name, value in response.headers.raw]
            lines = [(name, value) for name, value in lines if name not in HOP and name != b"x-request-id"]
            await send({"type": "http.response.start", "status": response.status_code, "headers": lines})
            parts = response.aiter_raw()
            with suppress(_Over, httpx.TransportError):
                # Events may end at any of them: who listens asks again.
                while part := await self._while_led(leader, left, anext(parts, b"")):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

    async def _ask(self, request: httpx.Request) -> httpx.Response:
        """The whole answer, unless it is a stream of events: half of one must not look like one."""
        response = await self._client.send(request, stream=True)
        if response.headers.get("content-type", "").startswith(EVENTS):
            return response
        try:
            content = b"".join([part async for part in response.aiter_raw()])
        finally:
            await response.aclose()
        return httpx.Response(response.status_code, headers=response.headers, stream=_Whole(content))

    async def _while_led(self, leader: str, left: asyncio.Task[None], what: Awaitable[_Result]) -> _Result:
        """Raises _Over, and what ``what`` raises."""
        task = asyncio.ensure_future(what)
        try:
            while not task.done():
                if left.done():
                    raise _Over
                if self._leader() != leader:
                    raise _Over("it does not lead any more")
                await asyncio.wait({task, left}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


class _Whole(httpx.AsyncByteStream):
    """A body as it came, content encoding and all."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


async def _body(receive: Receive) -> bytes | None:
    """None where the client left before it was whole."""
    parts = []
    more = True
    while more:
        message: MutableMapping[str, Any] = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


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
