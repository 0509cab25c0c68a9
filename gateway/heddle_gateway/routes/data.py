"""The data path's routes: raw ASGI endpoints, one per dialect."""

from collections.abc import Mapping, MutableMapping
from typing import Any

from heddle_gateway.asgi.front_door import App
from heddle_gateway.asgi.interrupts import Receive
from heddle_gateway.asgi.reply import Send
from heddle_gateway.dialects.dialect import DIALECTS, Dialect
from heddle_gateway.serve_step import StepServer


def data_endpoints(server: StepServer) -> Mapping[str, App]:
    """Endpoint by path, for POST."""
    return {dialect.path: _endpoint(server, dialect) for dialect in DIALECTS}


def _endpoint(server: StepServer, dialect: Dialect) -> App:
    async def serve(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await server.serve(dialect, scope, receive, send)

    return serve
