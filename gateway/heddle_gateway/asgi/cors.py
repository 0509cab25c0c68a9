"""CORS for agents that run in a browser; off unless origins are configured, never for the operator's routes.

Invariant: the layer stands outside the key check, so a preflight needs no key and a 401 is readable.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from heddle_gateway.asgi.access import AGENT_PATHS, AGENT_PREFIXES
from heddle_gateway.asgi.interrupts import Receive
from heddle_gateway.asgi.layer import App, Send

EXPOSED = (
    "x-heddle-trajectory-id",
    "x-heddle-trajectory-source",
    "x-heddle-worker",
    "x-heddle-step",
    "x-request-id",
    "retry-after",
)


class CorsLayer:
    """Starlette's plain-ASGI CORS around the agents' paths."""

    def __init__(self, app: App, origins: Sequence[str]) -> None:
        self._plain = app
        self._cors: App = CORSMiddleware(
            app,  # type: ignore[arg-type]  # same shape, other names for the types
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        agents = scope["type"] == "http" and (path in AGENT_PATHS or path.startswith(AGENT_PREFIXES))
        await (self._cors if agents else self._plain)(scope, receive, send)
