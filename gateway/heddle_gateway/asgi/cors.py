"""CORS for agents that run in a browser; off unless origins are configured, never for operators' routes.

Invariant: it stands outside the front door, so a preflight needs no key and a 401 can be read.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware

from heddle_gateway.asgi.access import is_agents_path
from heddle_gateway.asgi.front_door import App, Receive, Send

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
        self._rule = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )

    def answer_lines(self, origin: str) -> bytes:
        """What an answer of the data path says of this origin, as Starlette's layer would say it."""
        headers = dict(self._rule.simple_headers)
        if not self._rule.allow_all_origins and self._rule.is_allowed_origin(origin):
            headers |= {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        return "".join(f"{name}: {text}\r\n" for name, text in headers.items()).encode("latin-1")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        agents = scope["type"] == "http" and is_agents_path(self._route_path(scope["path"]))
        await (self._rule if agents else self._plain)(scope, receive, send)
