"""Busy and dead, and one life from another, told apart over real sockets with an engine of a few lines."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from heddle_shim.engine_client import EngineClient
from heddle_shim.engine_watch import EngineSeen, EngineWatch
from heddle_shim.http_server import AppServer
from heddle_shim.telemetry import CACHED, OUTPUT, PROMPT, Telemetry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class FakeEngine:
    """Answers as SGLang does. Its scheduler can fall silent while its HTTP front goes on."""

    def __init__(self) -> None:
        self.seed = 1
        self.weights = "default"
        self.started = True
        self.scheduler = asyncio.Event()
        self.scheduler.set()
        self._server: AppServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """On the port that it had before."""
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        listener.setblocking(False)
        routes = [
            Route("/ping", self.ping),
            Route("/server_info", self.server_info),
            Route("/model_info", self.model_info),
            Route("/v1/loads", self.loads),
            Route("/generate", self.ping, methods=["POST"]),
        ]
        self._server = AppServer(Starlette(routes=routes), listener)
        await self._server.__aenter__()

    async def stop(self) -> None:
        self.scheduler.set()
        if self._server is not None:
            await self._server.__aexit__()
            self._server = None

    async def ping(self, _: Request) -> Response:
        return Response(status_code=200 if self.started else 503)

    async def server_info(self, _: Request) -> Response:
        await self.scheduler.wait()
        return JSONResponse({"version": "0.5.23", "tp_size": 1, "random_seed": self.seed})

    async def model_info(self, _: Request) -> Response:
        return JSONResponse({"weight_version": self.weights})

    async def loads(self, _: Request) -> Response:
        await self.scheduler.wait()
        load = {"num_running_reqs": 2, "num_waiting_reqs": 1, "num_used_tokens": 640}
        return JSONResponse({"loads": [load | {"max_total_num_tokens": 4096, "gen_throughput": 5.5}]})


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    engine = FakeEngine()
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def lives() -> list[EngineSeen]:
    return []


@pytest.fixture
async def watch(engine: FakeEngine, lives: list[EngineSeen]) -> AsyncIterator[EngineWatch]:
    client = EngineClient(engine.url, scheduler_timeout_s=0.5)
    yield EngineWatch(client, lives.append)
    await client.close()


async def looked_until(watch: EngineWatch, state: str) -> None:
    """Looks until it sees this state: a slow machine may see another one in between."""
    async with asyncio.timeout(60):
        while watch.state != state:
            await watch.look()


async def test_an_engine_is_met_once_its_model_is_loaded(
    engine: FakeEngine, watch: EngineWatch, lives: list[EngineSeen]
) -> None:
    engine.started = False
    await watch.look()
    assert (watch.state, lives) == ("starting", [])
    engine.started = True
    await looked_until(watch, "ready")
    [seen] = lives
    assert seen.info["version"] == "0.5.23"
    assert seen.paths == {"/generate"}  # found by asking
    assert watch.load is not None
    assert (watch.load.running, watch.load.waiting, watch.load.kv_used) == (2, 1, 640)


async def test_a_silent_scheduler_behind_a_front_that_answers_is_busy_not_dead(
    engine: FakeEngine, watch: EngineWatch, lives: list[EngineSeen]
) -> None:
    await looked_until(watch, "ready")
    engine.scheduler.clear()
    await looked_until(watch, "busy")
    await watch.look()
    assert watch.state == "busy"
    engine.scheduler.set()
    await looked_until(watch, "ready")
    assert len(lives) == 1  # the same life all the while


async def test_an_engine_that_nobody_reaches_is_dead_and_comes_back_as_another(
    engine: FakeEngine, watch: EngineWatch, lives: list[EngineSeen]
) -> None:
    await looked_until(watch, "ready")
    await engine.stop()
    await looked_until(watch, "dead")
    assert watch.load is None
    await engine.start()
    await looked_until(watch, "ready")
    assert (watch.generation, len(lives)) == (2, 2)


async def test_a_server_that_was_started_again_between_two_looks_is_another(
    engine: FakeEngine, watch: EngineWatch, lives: list[EngineSeen]
) -> None:
    await looked_until(watch, "ready")
    engine.seed = 2
    await looked_until(watch, "dead")
    await looked_until(watch, "ready")
    assert len(lives) == 2


async def test_new_weights_are_seen_in_the_same_life(
    engine: FakeEngine, watch: EngineWatch, lives: list[EngineSeen]
) -> None:
    await looked_until(watch, "ready")
    engine.weights = "step-7"
    async with asyncio.timeout(60):
        while watch.seen is None or watch.seen.weight_version != "step-7":
            await watch.look()
    assert len(lives) == 1


async def test_reports_between_two_looks_at_the_counters_repeat_what_they_told(
    engine: FakeEngine, watch: EngineWatch
) -> None:
    await looked_until(watch, "ready")
    telemetry = Telemetry("shim")
    look = {PROMPT: 1000.0, CACHED: 0.0, OUTPUT: 50.0}
    for second in range(10, 15):
        first = telemetry.report(watch, "default", look, float(second))
        assert (first.cache_hit_rate, first.output_tokens_s) == (None, 5.5)
    look = {PROMPT: 1200.0, CACHED: 150.0, OUTPUT: 550.0}
    for second in range(15, 20):
        then = telemetry.report(watch, "default", look, float(second))
        assert (then.cache_hit_rate, then.output_tokens_s) == (0.75, 100.0)
    # What is not known is not taken for nothing.
    unknown = telemetry.report(watch, "default", {}, 20.0)
    assert (unknown.cache_hit_rate, unknown.output_tokens_s) == (None, 5.5)
    await engine.stop()
    await looked_until(watch, "dead")
    gone = telemetry.report(watch, "default", look, 25.0)
    assert (gone.cache_hit_rate, gone.output_tokens_s) == (None, None)


async def test_a_report_tells_of_the_time_since_the_last(engine: FakeEngine, watch: EngineWatch) -> None:
    await looked_until(watch, "ready")
    telemetry = Telemetry("shim")
    first = telemetry.report(watch, "default", {PROMPT: 1000.0, CACHED: 0.0, OUTPUT: 50.0}, 10.0)
    assert (first.cache_hit_rate, first.output_tokens_s) == (None, 5.5)  # the engine's own figure
    then = telemetry.report(watch, "default", {PROMPT: 1200.0, CACHED: 150.0, OUTPUT: 250.0}, 12.0)
    assert (then.cache_hit_rate, then.output_tokens_s) == (0.75, 100.0)
    assert (then.running, then.waiting, then.kv_used, then.kv_tokens) == (2, 1, 640, 4096)
    assert then.instance == "shim/1"
    # An engine that was started again counts from 0.
    anew = telemetry.report(watch, "default", {PROMPT: 100.0, CACHED: 50.0, OUTPUT: 10.0}, 13.0)
    assert (anew.cache_hit_rate, anew.output_tokens_s) == (0.5, 10.0)
