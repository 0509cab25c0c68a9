"""A scripted planner over a real socket, and a real one as a child process."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

WAIT_S = 60.0

Answer = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""(path, body) to what is answered: an object for 200, (status, object), or bytes for a body as it is."""


class FakePlanner:
    """Listens on a free port. ``bodies``: what was posted, by path; ``answer`` may be exchanged at any
    time.
    """

    def __init__(self) -> None:
        self.bodies: dict[str, list[dict[str, Any]]] = {}
        self.answer: Answer = says(mean=500.0)
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def steps(self) -> list[dict[str, Any]]:
        """All step records that came."""
        return [step for body in self.bodies.get("/planner/v1/steps", []) for step in body["steps"]]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                path = head.split(" ", 2)[1]
                lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = json.loads(await reader.readexactly(int(lines.get("content-length", 0))) or b"{}")
                self.bodies.setdefault(path, []).append(body)
                said = await self.answer(path, body)
                status, said = said if isinstance(said, tuple) else (200, said)
                data = said if isinstance(said, bytes) else json.dumps(said).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


def forecast(of: dict[str, Any], **fields: Any) -> dict[str, Any]:
    named = {"tenant": of["tenant"], "trajectory_id": of["trajectory_id"], "step": of["step"]}
    return {**named, "mean": 500.0, "sigma": 0.5, "gap_s": 1.0, **fields}


def says(**fields: Any) -> Answer:
    """Answers each step with such a forecast, everything else with 404."""

    async def answer(path: str, body: dict[str, Any]) -> Any:
        if path != "/planner/v1/steps":
            return 404, {"detail": "not here"}
        return {"forecasts": [forecast(step, **fields) for step in body["steps"]], "model": "fake"}

    return answer


@pytest.fixture
async def fake_planner() -> AsyncIterator[FakePlanner]:
    planner = FakePlanner()
    await planner.start()
    yield planner
    await planner.stop()


@pytest.fixture
def forecasting() -> Callable[..., Answer]:
    """``forecasting(mean=7.0)``: what a fake planner answers with."""
    return says


@pytest.fixture(scope="session")
def real_planner() -> Iterator[str]:
    """URL of a `heddle planner`. One for all tests: it takes seconds to load, and what it learns of their
    trajectories changes its estimates, not its behaviour.
    """
    command = [sys.executable, "-m", "heddle_cli", "planner", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["planner"]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture
def until() -> Callable[[Callable[[], bool], str], Awaitable[None]]:
    """As everywhere, but more patient: a round takes a second of a processor that others may want too."""

    async def wait(condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition():  # noqa: ASYNC110  what is waited for has no event to wait on
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pytest.fail(f"waited {WAIT_S:g} s in vain for: {what}")

    return wait
