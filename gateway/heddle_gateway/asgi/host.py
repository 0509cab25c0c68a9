"""Refuses requests whose Host header is no host.

Paths are taken from ``scope["path"]`` alone, so a crafted Host (``localhost/#@x``) cannot change which route is
authorised (CVE-2026-49468 of another gateway); it is refused all the same, since links may be built from it.
"""

import re
from collections.abc import MutableMapping, Sequence
from typing import Any, Final

from heddle_gateway.asgi.interrupts import Receive
from heddle_gateway.asgi.layer import App, Send, refuse

VALID_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]{2,64}\])(?::[0-9]{1,5})?\Z")
# Hosts already looked at; a handful in practice, bounded against made-up ones.
MAX_REMEMBERED: Final = 256


class HostLayer:
    """``allowed``: host names without port; empty allows every well-formed one."""

    def __init__(self, app: App, allowed: Sequence[str] = ()) -> None:
        self._app = app
        self._allowed = frozenset(host.lower().encode() for host in allowed)
        self._good: set[bytes] = set()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = next((value for name, value in scope["headers"] if name == b"host"), None)
            if host is not None and host not in self._good and not self._accept(host):
                await refuse(
                    send, 400, "The Host header is not accepted.", "bad_host", kind="invalid_request_error"
                )
                return
        await self._app(scope, receive, send)

    def _accept(self, host: bytes) -> bool:
        if not VALID_HOST.match(host):
            return False
        name = re.sub(rb":[0-9]+\Z", b"", host).lower()
        if self._allowed and name not in self._allowed:
            return False
        if len(self._good) < MAX_REMEMBERED:
            self._good.add(host)
        return True
