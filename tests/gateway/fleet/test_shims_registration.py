"""A shim's registration and the registry, over a socket: a gateway that forgets, and drains that hold."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from heddle_contracts.shim import WorkerReport
from heddle_gateway.fleet import Fleet, FleetTuning, WorkerSpec, WorkerState
from heddle_gateway.fleet.errors import UnknownWorker
from heddle_gateway.routes.registry import RegistryDeps, registry_router
from heddle_shim.registration import Registration

Serve = Callable[..., Awaitable[Any]]


class Gateway:
    """An address whose registry may be exchanged for one that knows nothing, as a restart does."""

    def __init__(self, fleet: Fleet) -> None:
        self.answers_instead: PlainTextResponse | None = None
        self.asked_in_vain = 0
        self.begin(fleet)

    def begin(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._app = FastAPI()
        self._app.include_router(registry_router(RegistryDeps(fleet, None)))  # type: ignore[arg-type]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked_in_vain += self.answers_instead is not None
        await (self.answers_instead or self._app)(scope, receive, send)


class ScriptedShim:
    """Reports when it is told to, and says when the gateway has heard it."""

    def __init__(self, gateway_url: str, engine_url: str, name: str) -> None:
        self._registration = Registration(
            gateway_url,
            None,
            engine_url=engine_url,
            shim_url="http://127.0.0.1:31900",
            name=name,
            engine_key=None,
        )
        self._report = WorkerReport(instance=f"{name}/1", engine="ready", running=0, waiting=0, kv_used=0)
        self._wanted: asyncio.Queue[None] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._telling = asyncio.create_task(self._registration.run(self))  # type: ignore[arg-type]

    async def next_report(self) -> WorkerReport:
        self._idle.set()
        await self._wanted.get()
        return self._report

    async def reports(self, running: int = 0) -> None:
        """One look at the engine, told."""
        self._report = self._report.model_copy(update={"running": running})
        async with asyncio.timeout(30):
            await self._idle.wait()
            self._idle.clear()
            self._wanted.put_nowait(None)
            await self._idle.wait()

    async def ends(self, **how: float) -> None:
        """As `heddle shim` does at SIGTERM."""
        if not self._telling.done():
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
            await self._registration.leave(**how)


StartShim = Callable[..., ScriptedShim]


@pytest.fixture
def fleet_of(new_fleet: Callable[..., Fleet], quick: FleetTuning) -> Callable[[], Fleet]:
    return lambda: new_fleet(replace(quick, report_fresh_s=600.0))


@pytest.fixture
def gateway(fleet_of: Callable[[], Fleet]) -> Gateway:
    return Gateway(fleet_of())


@pytest.fixture
async def start_shim(
    gateway: Gateway, serve_app: Callable[[Any], Awaitable[str]]
) -> AsyncIterator[StartShim]:
    url = await serve_app(gateway)
    shims: list[ScriptedShim] = []

    def start(engine: Any, name: str) -> ScriptedShim:
        shims.append(ScriptedShim(url, engine.url, name))
        return shims[-1]

    yield start
    for shim in shims:
        await shim.ends()


def names(fleet: Fleet) -> dict[str, str]:
    return {view.url: view.name for view in fleet.list()}


async def test_after_a_restart_ids_mean_other_workers_and_each_shim_finds_its_own(
    gateway: Gateway, start_shim: StartShim, serve: Serve, fleet_of: Callable[[], Fleet], listener: Any
) -> None:
    first, second = await serve(), await serve()
    a, b = start_shim(first, "a"), start_shim(second, "b")
    await a.reports()
    await b.reports()
    assert [view.name for view in gateway.fleet.list()] == ["a", "b"]

    gateway.begin(fleet_of())
    # B is the first to find out, and gets the id that A had.
    for shim in (b, b, a, a):
        await shim.reports()
    assert {view.worker_id: view.name for view in gateway.fleet.list()} == {1: "b", 2: "a"}
    await listener.until(lambda: all(view.state == "active" for view in gateway.fleet.list()))
    await b.reports(running=5)
    await a.reports(running=3)
    assert {view.name: view.running for view in gateway.fleet.list()} == {"b": 5, "a": 3}


async def test_a_shim_that_ends_takes_out_its_own_worker_whatever_its_id_means_now(
    gateway: Gateway, start_shim: StartShim, serve: Serve, fleet_of: Callable[[], Fleet]
) -> None:
    first, second = await serve(), await serve()
    a, b = start_shim(first, "a"), start_shim(second, "b")
    await a.reports()
    gateway.begin(fleet_of())
    await b.reports()
    await a.ends()
    assert names(gateway.fleet) == {second.url: "b"}


async def test_a_worker_that_was_drained_by_hand_stays_out_until_it_is_added_again(
    gateway: Gateway,
    start_shim: StartShim,
    serve: Serve,
    fleet_of: Callable[[], Fleet],
    live: Any,
    listener: Any,
) -> None:
    engine = await serve()
    shim = start_shim(engine, "a")
    await shim.reports()
    await listener.until_told("up", 1, 1)
    live.steps[1] = 1
    gateway.fleet.drain(1)
    await shim.reports()
    assert [view.state for view in gateway.fleet.list()] == [WorkerState.DRAINING]
    live.steps[1] = 0
    await listener.until_told("removed", 1, 1)
    for _ in range(3):
        await shim.reports()
    assert gateway.fleet.list() == []

    # Nor does it come back because the gateway has forgotten.
    gateway.begin(fleet_of())
    await shim.reports()
    await shim.reports()
    assert gateway.fleet.list() == []

    await gateway.fleet.add(WorkerSpec(engine.url))
    await shim.reports(running=4)
    [back] = gateway.fleet.list()
    assert back.shim_url == "http://127.0.0.1:31900"
    assert back.report is not None
    assert back.report.running == 4


async def drained(gateway: Gateway, start_shim: StartShim, serve: Serve, listener: Any) -> tuple[Any, Any]:
    """An engine whose worker somebody takes out, and its shim, which has not heard of it."""
    engine = await serve()
    shim = start_shim(engine, "a")
    await shim.reports()
    await listener.until_told("up", 1, 1)
    gateway.fleet.drain(1)
    return engine, shim


async def test_a_drain_that_the_shim_slept_through_holds_as_well(
    gateway: Gateway, start_shim: StartShim, serve: Serve, listener: Any
) -> None:
    _, shim = await drained(gateway, start_shim, serve, listener)
    await listener.until_told("removed", 1, 1)
    await shim.reports()
    await shim.reports()
    assert gateway.fleet.list() == []


async def test_a_shim_that_was_started_again_brings_a_drained_worker_back(
    gateway: Gateway, start_shim: StartShim, serve: Serve, listener: Any
) -> None:
    engine, shim = await drained(gateway, start_shim, serve, listener)
    await shim.reports()
    await shim.ends()
    await listener.until_told("removed", 1, 1)
    await start_shim(engine, "again").reports()
    assert names(gateway.fleet) == {engine.url: "again"}


async def test_a_shim_that_ends_does_not_keep_its_successor_out(
    gateway: Gateway, start_shim: StartShim, serve: Serve
) -> None:
    engine = await serve()
    old, new = start_shim(engine, "old"), start_shim(engine, "new")
    await old.reports()
    await new.reports()
    await old.ends()
    for _ in range(3):
        await new.reports()
    assert names(gateway.fleet) == {engine.url: "new"}


async def test_a_shim_that_drains_waits_for_a_leader_to_tell_and_then_for_its_steps(
    gateway: Gateway, start_shim: StartShim, serve: Serve, live: Any, listener: Any
) -> None:
    engine = await serve()
    shim = start_shim(engine, "a")
    await shim.reports()
    await listener.until_told("up", 1, 1)
    live.steps[1] = 1
    gateway.answers_instead = PlainTextResponse("the leader is away", 503)
    ending = asyncio.create_task(shim.ends(drain_s=30.0, away_s=0.0))
    async with asyncio.timeout(30):
        while gateway.asked_in_vain < 2:  # noqa: ASYNC110  the shim is waited for
            await asyncio.sleep(0.01)
    gateway.answers_instead = None
    await listener.until_told("draining", 1, 1)
    assert not ending.done()
    live.steps[1] = 0
    await listener.until_told("removed", 1, 1)
    async with asyncio.timeout(10):
        await ending
    assert gateway.fleet.list() == []


async def test_something_else_in_the_gateways_place_does_not_end_the_reports(
    gateway: Gateway, start_shim: StartShim, serve: Serve
) -> None:
    engine = await serve()
    shim = start_shim(engine, "a")
    gateway.answers_instead = PlainTextResponse("<html>Back soon</html>")
    await shim.reports()
    gateway.answers_instead = None
    await shim.reports()
    assert names(gateway.fleet) == {engine.url: "a"}


async def test_a_report_for_an_id_of_another_worker_is_not_taken(
    gateway: Gateway, start_shim: StartShim, serve: Serve
) -> None:
    first, second = await serve(), await serve()
    view = await gateway.fleet.add(WorkerSpec(first.url))
    report = WorkerReport(instance="b/1", engine="ready", url=second.url, running=9)
    with pytest.raises(UnknownWorker):
        gateway.fleet.take_report(view.worker_id, report)
    assert gateway.fleet.get(view.worker_id).report is None
    same = report.model_copy(update={"url": f"{first.url}/"})
    assert gateway.fleet.take_report(view.worker_id, same).report == same
