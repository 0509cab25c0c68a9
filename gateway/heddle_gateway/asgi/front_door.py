"""What every request passes before it is served: request id, host, path, key.

Requests of the data path that pass become exchanges, straight from the parser. Everything else takes the ASGI
way: to the FastAPI application, or to the refusal of what may not pass.

Invariant: both ways ask the same rules; the first admits, the second says why not.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, Protocol
from urllib.parse import unquote

import httptools
from heddle_core import forward_lines

from heddle_gateway.asgi.access import AccessRule
from heddle_gateway.asgi.client_exchange import ClientExchange, Connection, Endpoint, Headers
from heddle_gateway.asgi.host import HostRule
from heddle_gateway.asgi.request_id import request_id
from heddle_gateway.dialects.errors import error_body, shape_for

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
# In a decoded path: of no route and of no id, and not for a log.
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class OriginRule(Protocol):
    """Says what a browser may do with an answer (asgi.cors.CorsLayer)."""

    def answer_lines(self, origin: str) -> bytes: ...


class FrontDoor:
    """``data_path``: endpoints by path, for POST. ``app``: the rest."""

    def __init__(
        self,
        app: App,
        data_path: Mapping[str, Endpoint],
        *,
        hosts: HostRule,
        access: AccessRule,
        route_path: Callable[[str], str],
    ) -> None:
        self._app = app
        self._data_path = dict(data_path)
        self._plain = {path.encode("ascii"): (path, endpoint) for path, endpoint in data_path.items()}
        self._hosts = hosts
        self._access = access
        self._route_path = route_path
        self.origins: OriginRule | None = None

    # ---------------------------------------------------------------- the data path

    def plain_exchange(
        self, connection: Connection, url: bytes, texts: Mapping[str, str], forward: bytes, body: bytes
    ) -> ClientExchange | None:
        """Of a POST that came whole and plainly framed, with one Host (heddle_core.plain_request); None where
        it is none of the data path, its body is coded, or it may not pass.
        """
        if "content-encoding" in texts:
            return None  # one such header may be followed by another: the long way sees both
        return self._admit(connection, url, texts, forward, body=body, keep_alive=True, http_1_0=False)

    def exchange(
        self, connection: Connection, url: bytes, headers: Headers, *, keep_alive: bool, http_1_0: bool
    ) -> ClientExchange | None:
        """Of any other POST, whose body is to be read. ``headers``: lower-case names."""
        texts = _texts(headers)
        if _has_two_hosts(headers, texts):
            return None
        return self._admit(
            connection,
            url,
            texts,
            forward_lines(headers),
            body=None,
            keep_alive=keep_alive,
            http_1_0=http_1_0,
        )

    def _admit(
        self,
        connection: Connection,
        url: bytes,
        texts: Mapping[str, str],
        forward: bytes,
        *,
        body: bytes | None,
        keep_alive: bool,
        http_1_0: bool,
    ) -> ClientExchange | None:
        plain = self._plain.get(url)
        if plain is not None:
            path, endpoint = plain
            routed, query = path, b""
        else:
            parsed = httptools.parse_url(url)
            path = unquote(parsed.path.decode("ascii"))
            if CONTROL.search(path):
                return None
            routed, query = self._route_path(path), parsed.query or b""
            found = self._data_path.get(routed)
            if found is None:
                return None
            endpoint = found
        host = texts.get("host")
        if host is not None and not self._hosts.accepts(host):
            return None
        if self._access.applies and self._access.denial("POST", routed, texts) is not None:
            return None
        id_ = request_id(texts.get("x-request-id"))
        id_line = b"x-request-id: %b\r\n" % id_
        lines = id_line
        if self.origins is not None and "origin" in texts:
            lines += self.origins.answer_lines(texts["origin"])
        return ClientExchange(
            connection,
            endpoint,
            path=path,
            query=query,
            headers=texts,
            forward=forward + id_line,
            request_id=id_,
            lines=lines,
            body=body,
            keep_alive=keep_alive,
            http_1_0=http_1_0,
        )

    # ---------------------------------------------------------------- everything else

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        texts = _texts(scope["headers"])
        id_ = request_id(texts.get("x-request-id"))
        host = texts.get("host")
        if _has_two_hosts(scope["headers"], texts) or (host is not None and not self._hosts.accepts(host)):
            await _refuse(send, id_, scope["path"], 400, "The Host header is not accepted.", "bad_host")
            return
        if CONTROL.search(scope["path"]):
            text = "The path has control characters."
            await _refuse(send, id_, scope["path"], 400, text, "bad_path")
            return
        path = self._route_path(scope["path"])
        if self._access.applies and (denial := self._access.denial(scope["method"], path, texts)):
            challenge = [(b"www-authenticate", b"Bearer")] if denial.status == 401 else []
            await _refuse(send, id_, path, denial.status, denial.message, denial.code, challenge)
            return
        if path in self._data_path:
            if scope["method"] != "POST":
                await _refuse(send, id_, path, 405, "Use POST.", "method_not_allowed", [(b"allow", b"POST")])
            else:
                text = "The data path is served by the gateway's own protocol: start it by `heddle gateway`."
                await _refuse(send, id_, path, 501, text, "foreign_server")
            return
        if path != scope["path"]:
            scope["path"] = path
            scope["raw_path"] = path.encode("utf-8")
        await self._app(scope, receive, _with_request_id(send, id_))


def _texts(headers: Headers) -> dict[str, str]:
    """By name; the last of a repeated one, but all codings of a body that was coded more than once, in their
    order (RFC 9110, 8.4).
    """
    texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    if len(texts) != len(headers) and "content-encoding" in texts:
        codings = [value.decode("latin-1") for name, value in headers if name == b"content-encoding"]
        texts["content-encoding"] = ", ".join(codings)
    return texts


def _has_two_hosts(headers: Headers, texts: Mapping[str, str]) -> bool:
    """They may mean two servers to two readers (RFC 9112, 3.2)."""
    return len(texts) != len(headers) and sum(name == b"host" for name, _ in headers) > 1


def _with_request_id(send: Send, id_: bytes) -> Send:
    async def send_with_id(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", id_)]
        await send(message)

    return send_with_id


async def _refuse(
    send: Send,
    id_: bytes,
    path: str,
    status: int,
    message: str,
    code: str,
    headers: Headers | None = None,
) -> None:
    """An error in the path's family's shape, for a request that reaches no route."""
    body = error_body(shape_for(path), status, message, code=code)
    lines = [
        (b"content-type", b"application/json"),
        *(headers or []),
        (b"x-request-id", id_),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
