"""The application: FastAPI behind the front door, and a start that fails with a reason."""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, cast

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from heddle_gateway.asgi.access import AccessRule
from heddle_gateway.asgi.client_exchange import Endpoint
from heddle_gateway.asgi.client_path import route_path
from heddle_gateway.asgi.cors import CorsLayer
from heddle_gateway.asgi.front_door import App, FrontDoor
from heddle_gateway.asgi.host import HostRule
from heddle_gateway.identity.urls import split_path
from heddle_gateway.settings import Settings


class StartError(Exception):
    """The gateway cannot start as it is configured; the message says why."""


class HeddleApp(FastAPI):
    """FastAPI behind the front door: the data path never enters FastAPI's own layers."""

    door: FrontDoor
    head_timeout_s: float
    write_timeout_s: float

    def open_door(
        self,
        settings: Settings,
        data_path: Mapping[str, Endpoint],
        around: Callable[[App], App] = lambda app: app,
    ) -> None:
        """``around``: what stands between the door and FastAPI."""

        def path_of(path: str) -> str:
            return route_path(path, lambda called: split_path(called).rest)

        self.head_timeout_s = settings.head_timeout_s
        self.write_timeout_s = settings.write_timeout_s
        self.door = FrontDoor(
            around(cast(App, super().__call__)),
            data_path,
            hosts=HostRule(settings.allowed_hosts),
            access=AccessRule(
                agent_keys=[key.get_secret_value() for key in settings.api_keys],
                admin_keys=[key.get_secret_value() for key in settings.admin_keys],
            ),
            route_path=path_of,
        )
        self._outermost: App = self.door
        if settings.cors_origins:
            self._outermost = self.door.origins = CorsLayer(self.door, settings.cors_origins, path_of)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            send = _reason_alone(send)
        await self._outermost(scope, receive, send)


def _reason_alone(send: Send) -> Send:
    """Of a start that failed for a StartError: its message, without the traceback Starlette makes of it."""
    mark = f"{StartError.__module__}.{StartError.__qualname__}: "

    async def send_reason(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "lifespan.startup.failed" and mark in message["message"]:
            message["message"] = message["message"].rpartition(mark)[2].strip()
        await send(message)

    return send_reason
