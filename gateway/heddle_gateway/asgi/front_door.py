"""What every request passes before a route sees it: request id, host, path, key.

One pass over the headers serves all four checks and identity after them. The data path leaves from here to
its raw endpoints; everything else goes on to the FastAPI application, whose own layers cost as much as a
whole step of ours.

Adds to the scope: ``heddle.headers`` (lower-case names, Latin-1 values; the last of a repeated one),
``heddle.client_path`` (as called, with its identity prefix), ``heddle.request_id`` (bytes).
"""

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from heddle_gateway.asgi.access import AccessRule
from heddle_gateway.asgi.host import HostRule
from heddle_gateway.asgi.interrupts import Receive
from heddle_gateway.asgi.reply import Headers, Reply, Send
from heddle_gateway.asgi.request_id import request_id

App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class FrontDoor:
    """``data_path``: raw endpoints by path, for POST. ``app``: the rest."""

    def __init__(
        self,
        app: App,
        data_path: Mapping[str, App],
        *,
        hosts: HostRule,
        access: AccessRule,
        route_path: Callable[[str], str],
    ) -> None:
        self._app = app
        self._data_path = dict(data_path)
        self._hosts = hosts
        self._access = access
        self._route_path = route_path

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        scope["heddle.headers"] = headers
        scope["heddle.request_id"] = id_ = request_id(headers.get("x-request-id"))
        host = headers.get("host")
        if host is not None and not self._hosts.accepts(host):
            await _refuse(send, id_, 400, "The Host header is not accepted.", "bad_host")
            return
        scope["heddle.client_path"] = scope["path"]
        path = self._route_path(scope["path"])
        if self._access.applies and (denial := self._access.denial(scope["method"], path, headers)):
            challenge = [(b"www-authenticate", b"Bearer")] if denial.status == 401 else []
            await _refuse(send, id_, denial.status, denial.message, denial.code, challenge)
            return
        endpoint = self._data_path.get(path)
        if endpoint is not None:
            if scope["method"] == "POST":
                await endpoint(scope, receive, send)
            else:
                await _refuse(send, id_, 405, "Use POST.", "method_not_allowed", [(b"allow", b"POST")])
            return
        if path != scope["path"]:
            scope["path"] = path
            scope["raw_path"] = path.encode("utf-8")
        await self._app(scope, receive, _with_request_id(send, id_))


def _with_request_id(send: Send, id_: bytes) -> Send:
    async def send_with_id(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", id_)]
        await send(message)

    return send_with_id


async def _refuse(
    send: Send, id_: bytes, status: int, message: str, code: str, headers: Headers | None = None
) -> None:
    """An error in OpenAI's nested shape, for a request that reaches no route."""
    kind = {401: "authentication_error", 403: "permission_error"}.get(status, "invalid_request_error")
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    reply = Reply(send)
    reply.headers = [(b"x-request-id", id_)]
    await reply.whole(status, [(b"content-type", b"application/json"), *(headers or [])], body)
