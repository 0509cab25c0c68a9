"""A whole gateway on a free port, with fake workers, in the test's own process."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import uvicorn
from heddle_contracts.steps import StepRecord
from heddle_gateway.app import create_app
from heddle_gateway.asgi.server_protocol import GatewayProtocol
from heddle_gateway.lifetime import Gateway
from heddle_gateway.settings import load_settings

from .answers import MODEL
from .fake_worker import FakeWorker
from .state_dump import Heartbeat, state_of
from .waiting import WAIT_S, wait_until


class QuietServer(uvicorn.Server):
    """uvicorn inside a test: the signals belong to pytest."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class TellingClient(httpx.AsyncClient):
    """A client whose requests that get no answer in time say what the gateway knew then."""

    def __init__(self, says: Callable[[], str], **options: Any) -> None:
        super().__init__(**options)
        self._says = says

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        began = time.monotonic()
        try:
            return await super().send(request, **options)
        except httpx.TimeoutException as error:
            waited = time.monotonic() - began
            error.add_note(f"{request.method} {request.url.path}: {waited:.1f} s in vain\n{self._says()}")
            raise


@dataclass
class RunningGateway:
    """A whole gateway on a free port. ``parts``: app.Gateway. ``client``: httpx, follows no redirect.
    ``stop`` ends it ahead of the test's end. ``says``: all it knows, as text.
    """

    parts: Gateway
    url: str
    client: httpx.AsyncClient
    stop: Callable[[], Awaitable[None]]
    says: Callable[[], str]

    async def chat(
        self, content: str = "hi", path: str = "/v1/chat/completions", **more: Any
    ) -> httpx.Response:
        """One chat request of one user message; ``headers`` go as headers, the rest into the body."""
        headers = more.pop("headers", None)
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}
        return await self.client.post(path, json=body, headers=headers)

    async def records(self, count: int) -> list[StepRecord]:
        """All step records in the history, once there are ``count``; oldest first."""
        await wait_until(lambda: self.parts.history.stats().put >= count, f"{count} ended steps", self.says)
        assert await self.parts.history.flush(WAIT_S)
        pages = (await self.client.get("/admin/v1/trajectories?limit=500")).json()["items"]
        found: list[StepRecord] = []
        for item in pages:
            one = await self.client.get("/admin/v1/trajectories/" + quote(item["trajectory_id"], safe=""))
            found += [StepRecord.model_validate(step) for step in one.json()["steps"]["items"]]
        return sorted(found, key=lambda record: record.arrived_at)

    def at_rest(self) -> bool:
        """No step is live anywhere, and the core's books balance."""
        stats = self.parts.driver.stats()
        return (
            stats["steps_live"] == 0
            and len(self.parts.steps.running) == 0
            and self.parts.driver.live_steps == 0
            and stats["steps_arrived_total"] == stats["steps_ended_total"]
        )


NewGateway = Callable[..., Awaitable[RunningGateway]]


@contextlib.asynccontextmanager
async def gateways(folder: Path) -> AsyncIterator[NewGateway]:
    """``await start(*workers, **settings)``: serves, with the given fake workers active. The history lies in
    ``folder``.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def start(*workers: FakeWorker, **settings: Any) -> RunningGateway:
            settings.setdefault("database", str(folder / "history.db"))
            app = create_app(load_settings(workers=[worker.url for worker in workers], **settings))
            listening = socket.create_server(("127.0.0.1", 0))
            server = QuietServer(
                uvicorn.Config(
                    app,
                    http=GatewayProtocol,
                    lifespan="on",
                    log_config=None,
                    server_header=False,
                    timeout_graceful_shutdown=5,
                )
            )
            heartbeat = Heartbeat()
            stack.callback(heartbeat.stop)
            task = asyncio.create_task(server.serve(sockets=[listening]))

            async def stop() -> None:
                server.should_exit = True
                await task

            def says() -> str:
                return state_of(app.state.gateway, workers, heartbeat)

            stack.push_async_callback(stop)
            await wait_until(lambda: server.started or task.done(), "the gateway to start", says)
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            client = await stack.enter_async_context(
                TellingClient(says, base_url=url, timeout=WAIT_S, trust_env=False)
            )
            gateway = RunningGateway(app.state.gateway, url, client, stop, says)
            await wait_until(lambda: gateway.parts.fleet.active() >= len(workers), "active workers", says)
            return gateway

        yield start
