"""Serves the shim's own HTTP app inside an event loop that has other work."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Final

import uvicorn

GRACE_S: Final = 5


class AppServer:
    """``async with`` serves ``app`` on a listening socket."""

    def __init__(self, app: Any, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
        )
        self._server = _NoSignals(config)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "AppServer":
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="shim's HTTP")
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.005)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        assert self._task is not None
        await self._task


class _NoSignals(uvicorn.Server):
    """uvicorn without its signal handlers: the shim has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
