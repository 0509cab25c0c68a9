"""The data path's routes: raw ASGI endpoints, one per dialect."""

from collections.abc import MutableMapping
from typing import Any

from starlette.routing import Route

from heddle_gateway.asgi.interrupts import Receive
from heddle_gateway.asgi.reply import Send
from heddle_gateway.dialects.dialect import DIALECTS, Dialect
from heddle_gateway.serve_step import StepServer


class DataEndpoint:
    """An instance, not a function: Starlette then passes scope, receive and send through untouched."""

    def __init__(self, server: StepServer, dialect: Dialect) -> None:
        self._server = server
        self._dialect = dialect

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await self._server.serve(self._dialect, scope, receive, send)


def data_routes(server: StepServer) -> list[Route]:
    """``Mount`` would redirect the bare path; a Route with an ASGI endpoint does not."""
    return [
        Route(dialect.path, DataEndpoint(server, dialect), methods=["POST"], name=dialect.name)
        for dialect in DIALECTS
    ]
