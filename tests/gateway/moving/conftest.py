"""Shims over real sockets: scripted ones, and those of emulated workers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from heddle_contracts.kv import EngineFacts, Handshake, KvLayout, KvNamespace
from heddle_shim.emulator.engine_config import EngineConfig
from heddle_shim.emulator.fleet_server import FleetServer, build_workers
from heddle_shim.emulator.timing import TimingProfile
from heddle_shim.emulator.worker import WorkerSettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn import Config, Server


class QuietServer(Server):
    """uvicorn inside a test: the signals belong to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ScriptedShim:
    """Answers a migration with ``states`` in turn, one for each request; the last one stays."""

    def __init__(self) -> None:
        self.url = ""
        self.states: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.cancelled = asyncio.Event()
        self.hold = False
        self.layout = KvLayout(dtype="bfloat16", item_bytes=2, page_size=16, layers=4, kv_heads=2, head_dim=8)
        self.rate: float | None = 1e6
        self.cannot: str | None = None

    def app(self) -> Starlette:
        one = "/shim/v1/migrations/{name}"
        return Starlette(
            routes=[
                Route("/shim/v1/handshake", self._handshake),
                Route("/shim/v1/migrations", self._start, methods=["POST"]),
                Route(one, self._status, methods=["GET"]),
                Route(one, self._cancel, methods=["DELETE"]),
            ]
        )

    async def _handshake(self, _: Request) -> Response:
        namespace = KvNamespace(model="m", weight_version="default", layout=self.layout)
        found = Handshake(
            shim_version="0",
            instance="i",
            engine=EngineFacts(),
            namespace=namespace,
            transfer_bytes_s=self.rate,
            cannot_migrate=self.cannot,
        )
        return Response(found.model_dump_json(), media_type="application/json")

    async def _start(self, request: Request) -> Response:
        self.asked.append(await request.json())
        return self._next(202)

    async def _status(self, _: Request) -> Response:
        if self.hold:
            await self.cancelled.wait()
        return self._next(200)

    async def _cancel(self, _: Request) -> Response:
        self.cancelled.set()
        return self._next(200)

    def _next(self, status: int) -> Response:
        state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
        asked = self.asked[-1]
        whose = {name: asked[name] for name in ("id", "trajectory", "target")}
        return JSONResponse({**whose, **state}, status_code=status)


NewShim = Callable[[], Awaitable[ScriptedShim]]


@pytest.fixture
async def new_shim() -> AsyncIterator[NewShim]:
    async with AsyncExitStack() as stack:

        async def start() -> ScriptedShim:
            shim = ScriptedShim()
            listening = socket.create_server(("127.0.0.1", 0))
            server = QuietServer(Config(shim.app(), log_config=None, lifespan="off"))
            serving = asyncio.create_task(server.serve(sockets=[listening]))

            async def stop() -> None:
                shim.cancelled.set()
                server.should_exit = True
                await serving

            stack.push_async_callback(stop)
            async with asyncio.timeout(30):
                while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
                    await asyncio.sleep(0.005)
            shim.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            return shim

        yield start


NewWorkers = Callable[..., Awaitable[FleetServer]]


@pytest.fixture
async def new_workers() -> AsyncIterator[NewWorkers]:
    """Emulated workers of these degrees, a thousand times as fast as real ones."""
    async with AsyncExitStack() as stack:

        async def start(*degrees: int) -> FleetServer:
            workers = build_workers(
                degrees,
                settings=replace(WorkerSettings(), engine=EngineConfig(page_size=16)),
                kv_tokens=20_000,
                profile=TimingProfile(),
                speed=1000.0,
            )
            return await stack.enter_async_context(FleetServer(workers, "127.0.0.1", 0))

        yield start
