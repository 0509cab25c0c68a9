"""Questions to one worker over the admin connection: bounded in time and size, no proxy, no redirect.

This is not the byte path. One httpx client serves the whole fleet; its pools are apart from those that
carry steps, so a fleet full of long generations cannot starve the probes.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import certifi
import httpx

from heddle_gateway.fleet.errors import BadAnswer, CannotAsk, NoAnswerInTime, Unreachable
from heddle_gateway.open_files import is_lack_of_files

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""SGLang's /server_info holds its environment and arguments, a few hundred KB at most."""

CONNECT_TIMEOUT_S = 5.0


CONNECTIONS_EACH = 32
"""To one server. Control calls may hang there; its probes must still get through."""
UNUSED_POOL_S = 300.0
"""Longer than any call lasts, so that what is dropped is not in use."""


def new_admin_client() -> httpx.AsyncClient:
    """Of the whole fleet. Close it."""
    return httpx.AsyncClient(
        transport=PoolPerServer(),
        trust_env=False,
        follow_redirects=False,
        headers={"accept-encoding": "identity", "user-agent": "heddle-gateway"},
    )


class PoolPerServer(httpx.AsyncBaseTransport):
    """A pool for each server, and no server waits for another one's connections.

    At every request httpcore goes through all connections of a pool, and for each idle one through all of
    them again: one pool for 500 workers kept the event loop busy for good.
    """

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str, int | None], httpx.AsyncHTTPTransport] = {}
        self._used_at: dict[tuple[str, str, int | None], float] = {}
        self._looked_at = time.monotonic()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        server = (url.scheme, url.host, url.port)
        self._used_at[server] = time.monotonic()
        pool = self._pools.get(server)
        if pool is None:
            pool = self._pools[server] = httpx.AsyncHTTPTransport(
                verify=_certificates(),
                trust_env=False,
                # Servers close idle connections after 5 s (uvicorn's default): let go of ours before that.
                limits=httpx.Limits(max_connections=CONNECTIONS_EACH, keepalive_expiry=2.0),
            )
        await self._drop_unused()
        return await pool.handle_async_request(request)

    async def _drop_unused(self) -> None:
        """Now and then: workers come and go under new addresses."""
        now = time.monotonic()
        if now - self._looked_at < UNUSED_POOL_S:
            return
        self._looked_at = now
        for server in [server for server, at in self._used_at.items() if now - at > UNUSED_POOL_S]:
            del self._used_at[server]
            await self._pools.pop(server).aclose()

    async def aclose(self) -> None:
        pools = list(self._pools.values())
        self._pools.clear()
        self._used_at.clear()
        for pool in pools:
            await pool.aclose()


@cache
def _certificates() -> ssl.SSLContext:
    """The system's authorities (a company's own are there) and the public ones. Loading takes 80 ms: once."""
    context = ssl.create_default_context(cafile=certifi.where())
    context.load_default_certs()
    return context


@dataclass(frozen=True, slots=True)
class Reply:
    """Any HTTP answer, whatever its status."""

    path: str
    status: int
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise BadAnswer(f"{self.path}: not JSON: {self.excerpt(80)!r}", self.status) from error

    def excerpt(self, length: int = 200) -> str:
        return self.body[: length * 4].decode("utf-8", "replace")[:length]


class Asking:
    """Asks one worker. ``timeout_s`` bounds each question as a whole (connecting has its own, shorter
    bound).
    """

    def __init__(
        self, client: httpx.AsyncClient, base_url: str, api_key: str | None, timeout_s: float
    ) -> None:
        self._client = client
        self.base_url = base_url
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s))

    async def request(
        self, method: str, path: str, *, body: Any = None, params: Mapping[str, str] | None = None
    ) -> Reply:
        """Raises Unreachable, NoAnswerInTime, CannotAsk, or BadAnswer for an answer that is too long or no
        HTTP.
        """
        try:
            # httpx bounds each read; a server that sends a byte now and then would never be given up.
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(method, path, body, params)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise NoAnswerInTime(f"{path}: no answer in time") from error
        except httpx.TransportError as error:
            if is_lack_of_files(error):
                raise CannotAsk(f"{path}: not asked, the gateway can open no more files") from error
            raise Unreachable(f"{path}: {type(error).__name__} {error}".rstrip()) from error

    async def _exchange(self, method: str, path: str, body: Any, params: Mapping[str, str] | None) -> Reply:
        async with self._client.stream(
            method,
            self.base_url + path,
            headers=self._headers,
            timeout=self._timeout,
            json=body,
            params=params,
        ) as response:
            chunks = bytearray()
            async for chunk in response.aiter_raw():
                chunks += chunk
                if len(chunks) > MAX_ANSWER_BYTES:
                    raise BadAnswer(f"{path}: answer over {MAX_ANSWER_BYTES} bytes", response.status_code)
            return Reply(path, response.status_code, bytes(chunks))

    async def get_json(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The JSON object at ``path``. Raises BadAnswer (with the status) unless it is one, with status
        200.
        """
        reply = await self.request("GET", path, params=params)
        if reply.status != 200:
            key = "it wants a key, or another one: `--worker-key`. " if reply.status == 401 else ""
            raise BadAnswer(f"{path}: {key}HTTP {reply.status} {reply.excerpt()}".rstrip(), reply.status)
        found = reply.json()
        if not isinstance(found, dict):
            raise BadAnswer(f"{path}: not a JSON object", reply.status)
        return found

    async def has(self, path: str) -> bool:
        """Whether a POST route exists, found without calling it: GET answers 405 (or asks for a key), not
        404.
        """
        reply = await self.request("GET", path)
        return reply.status in {401, 403, 405}
