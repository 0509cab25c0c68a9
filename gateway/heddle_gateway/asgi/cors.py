"""CORS for agents that run in a browser; off unless origins are configured, never for operators' routes.

Invariant: it stands outside the front door, so a preflight needs no key and a 401 can be read.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware

from heddle_gateway.asgi.access import is_agents_path
from heddle_gateway.asgi.front_door import App
from heddle_gateway.asgi.interrupts import Receive
from heddle_gateway.asgi.reply import Send

EXPOSED: Final = (
    "x-heddle-trajectory-id",
    "x-heddle-trajectory-source",
    "x-heddle-worker",
    "x-heddle-step",
    "x-request-id",
    "retry-after",
)


class CorsLayer:
    """Starlette's plain-ASGI CORS around the agents' paths. ``route_path``: see asgi.client_path."""

    def __init__(self, app: App, origins: Sequence[str], route_path: Callable[[str], str]) -> None:
        self._plain = app
        self._route_path = route_path
        self._cors: App = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        agents = scope["type"] == "http" and is_agents_path(self._route_path(scope["path"]))
        await (self._cors if agents else self._plain)(scope, receive, send)
