"""Whole systems: a gateway process and emulated workers in processes of their own, driven over sockets.

Everything here is waited for on a condition, with a bound; nothing reaches into a process.
"""

import asyncio
import json
import os
import random
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

WAIT_S = 60.0
POLL_S = 0.02
_numbers = count()


def free_port() -> int:
    """Below those that outgoing connections take, which would have it before its server listens."""
    while True:
        port = random.randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def wait_until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Asks until it holds; fails with ``what`` after WAIT_S."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not await condition():  # noqa: ASYNC110  what is waited for is another process
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        pytest.fail(f"waited {WAIT_S:g} s in vain for: {what}")


class Part:
    """One `heddle` process. Its standard error lies in ``log``."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self.log = log

    @classmethod
    async def start(
        cls, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> "Part":
        """``environment``: variables of this process alone."""
        log = folder / f"{arguments[0]}-{next(_numbers)}.log"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "heddle_cli",
                *arguments,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=errors,
                cwd=folder,
                env=inherited | {"COLUMNS": "200", "NO_COLOR": "1"} | dict(environment or {}),
            )
        return cls(process, log)

    async def line(self, words: str) -> str:
        """The first line of standard output that holds ``words``."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            async for line in self.process.stdout:
                if words in (text := line.decode()):
                    return text
        pytest.fail(f"ended without saying {words!r}: {self.log.read_text()}")

    async def kill(self) -> None:
        """kill -9, and it is gone when this returns."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(WAIT_S):
                await self.process.communicate()
        except TimeoutError:
            await self.kill()
            pytest.fail(f"does not end: {self.log.read_text()}")
        assert self.process.returncode is not None
        return self.process.returncode


@dataclass
class Engine:
    """One emulated worker in its own process; ``start`` again after ``kill`` takes the same port."""

    folder: Path
    options: tuple[str, ...]
    port: int = field(default_factory=free_port)
    part: Part | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        """What answers show in X-Heddle-Worker."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        arguments = ("emulate", "--base-port", str(self.port), *self.options)
        self.part = await Part.start(self.folder, *arguments, environment=self.environment)
        assert json.loads(await self.part.line("ready"))["workers"] == [self.url]

    async def kill(self) -> None:
        assert self.part is not None
        await self.part.kill()

    async def load(self, http: httpx.AsyncClient) -> dict[str, Any]:
        """Its own report: num_running_reqs, num_waiting_reqs, num_used_tokens and more."""
        [load] = (await http.get(f"{self.url}/v1/loads")).raise_for_status().json()["loads"]
        found: dict[str, Any] = load
        return found

    async def metrics(self, http: httpx.AsyncClient) -> dict[str, float]:
        """Its counters and gauges, without labels."""
        return {name: value for name, _, value in _samples((await http.get(f"{self.url}/metrics")).text)}


def _samples(exposition: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


@dataclass
class Gateway:
    """One gateway process. ``http``: a plain client of its admin API and its operator's routes."""

    part: Part
    url: str
    http: httpx.AsyncClient

    @property
    def base_url(self) -> str:
        """What an agent is given."""
        return f"{self.url}/v1"

    async def get(self, path: str, **query: Any) -> Any:
        return (await self.http.get(f"/admin/v1{path}", params=query)).raise_for_status().json()

    async def worker(self, engine: Engine) -> Any:
        """The admin API's view of this engine."""
        [found] = [one for one in (await self.get("/workers"))["items"] if one["url"] == engine.url]
        return found

    async def serves(self, engine: Engine, generation: int = 1) -> None:
        async def active() -> bool:
            seen = await self.worker(engine)
            return (seen["state"], seen["generation"]) == ("active", generation)

        await wait_until(active, f"start {generation} of {engine.name} in service")

    async def at_rest(self) -> Any:
        """Waits until no step is live, no KV moves, and all that ended is written; the counts then."""
        stats: Any = None

        async def rests() -> bool:
            nonlocal stats
            stats = await self.get("/stats")
            history = stats["history"]
            settled = history["written"] + history["dropped"] + history["refused"]
            at_rest = not stats["steps"]["in_flight"] and settled == history["put"] + history["recovered"]
            return at_rest and await self.ended_moves() is not None

        await wait_until(rests, "the gateway at rest")
        return stats

    async def ended_moves(self) -> int | None:
        """Moves of KV, which are records of the history as steps are; None while one is under way."""
        moves = (await self.get("/migrations", limit=500))["items"]
        return len(moves) if all(move["ended_at"] is not None for move in moves) else None

    async def is_sound(self) -> None:
        """The core's books balance, and it never had to correct anybody."""
        assert (await self.get("/audit"))["broken"] == []
        core = (await self.get("/stats"))["core"]
        assert (core["illegal_moves_total"], core["refused_events_total"]) == (0, 0)

    async def trajectories(self) -> list[Any]:
        """All of them, live and past."""
        found: list[Any] = []
        page = await self.get("/trajectories", limit=500, sort="first_seen")
        found += page["items"]
        while page["next_cursor"] is not None:
            page = await self.get("/trajectories", limit=500, sort="first_seen", cursor=page["next_cursor"])
            found += page["items"]
        return found

    async def steps(self, trajectory_id: str) -> list[Any]:
        """The step records of one trajectory, in the order they ended."""
        detail = await self.get("/trajectories/" + quote(trajectory_id, safe=""), steps_limit=1000)
        assert detail["steps"]["next_after"] is None
        items: list[Any] = detail["steps"]["items"]
        return items

    async def metrics(self) -> list[tuple[str, dict[str, str], float]]:
        """(name, labels, value) of every sample."""
        return list(_samples((await self.http.get("/metrics")).raise_for_status().text))

    async def metric(self, name: str, **labels: str) -> float:
        """Sum over the series of this name and labels."""
        return sum(
            value
            for found, has, value in await self.metrics()
            if found == name and labels.items() <= has.items()
        )


class Parts:
    """Starts parts in ``folder``; leaving it stops them, last first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = AsyncExitStack()

    async def __aenter__(self) -> "Parts":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._started.aclose()

    async def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Part:
        """Any other `heddle` command."""
        part = await Part.start(self._folder, *arguments, environment=environment)
        self._started.push_async_callback(part.stop)
        return part

    async def engine(self, *options: str, environment: Mapping[str, str] | None = None) -> Engine:
        """An emulated worker in a process of its own."""
        engine = Engine(self._folder, options, environment=environment or {})

        async def stop() -> None:
            if engine.part is not None:
                await engine.part.stop()

        self._started.push_async_callback(stop)
        await engine.start()
        return engine

    async def gateway(
        self,
        urls: Sequence[str],
        *options: str,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Gateway:
        """A gateway process that has all these workers in service."""
        port = port or free_port()
        arguments = ["--port", str(port), "--database", str(self._folder / f"{port}.db"), *options]
        arguments += [part for url in urls for part in ("--worker", url)]
        part = await self.run("gateway", *arguments, environment=environment)
        return await self._serving(part, port, len(urls))

    async def up(self, *options: str, workers: int = 2) -> Gateway:
        """`heddle up`: a gateway, a planner, and so many emulated workers."""
        port = free_port()
        tp = ",".join("1" * workers)
        database = str(self._folder / f"{port}.db")
        part = await self.run("up", "--port", str(port), "--database", database, "--tp", tp, *options)
        return await self._serving(part, port, workers)

    async def _serving(self, part: Part, port: int, workers: int) -> Gateway:
        url = f"http://127.0.0.1:{port}"
        http = await self._started.enter_async_context(
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=WAIT_S)
        )

        async def ready() -> bool:
            if part.process.returncode is not None:
                pytest.fail(f"the gateway ended: {part.log.read_text()}")
            try:
                active: int = (await http.get("/ready")).json()["workers"]["active"]
            except httpx.TransportError:
                return False  # not listening yet
            return active >= workers

        await wait_until(ready, f"{workers} workers in service")
        return Gateway(part, url, http)

    def client(self, gateway: Gateway, **options: Any) -> openai.AsyncOpenAI:
        """The plain SDK with nothing but base_url set (it insists on a key)."""
        client = openai.AsyncOpenAI(base_url=gateway.base_url, api_key="unused", **options)
        self._started.push_async_callback(client.close)
        return client


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    async with Parts(tmp_path) as parts:
        yield parts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_parts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    """For tests that only look at answers: their parts are started once a module."""
    async with Parts(tmp_path_factory.mktemp("parts")) as parts:
        yield parts


@pytest.fixture
def until() -> Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]:
    """``await until(condition, "what")``: asks, bounded, until it holds."""
    return wait_until


@pytest.fixture
def unused_port() -> int:
    return free_port()
