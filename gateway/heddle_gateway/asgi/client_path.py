"""Takes identity prefixes and a trailing slash off the path, in place.

``/t/{id}/v1/chat/completions/`` is served as ``/v1/chat/completions``; a redirect would lose the body or the key in
many clients. What the client called stays in ``scope["heddle.client_path"]`` for identity to read.

Invariant: only what agents call can stand behind a prefix, so no prefix reaches an operator's route.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

from heddle_gateway.asgi.access import AGENT_PATHS, AGENT_PREFIXES
from heddle_gateway.asgi.interrupts import Receive
from heddle_gateway.asgi.layer import App, Send


class ClientPathLayer:
    """``rest_of``: what an identity prefix leaves of a path; the path itself where there is none."""

    def __init__(self, app: App, rest_of: Callable[[str], str]) -> None:
        self._app = app
        self._rest_of = rest_of

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["path"]
            scope["heddle.client_path"] = path
            if path not in AGENT_PATHS:
                path = path.rstrip("/") or "/"
                if path not in AGENT_PATHS:
                    rest = self._rest_of(path)
                    if rest in AGENT_PATHS or rest.startswith(AGENT_PREFIXES):
                        path = rest
                scope["path"] = path
                scope["raw_path"] = path.encode("utf-8")
        await self._app(scope, receive, send)
