"""A worker's shim tells the gateway of its engine, over a real socket."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from heddle_contracts.shim import WorkerReport
from heddle_gateway.fleet import Fleet, FleetTuning, WorkerSpec, WorkerState
from heddle_gateway.routes.registry import RegistryDeps, registry_router

Serve = Callable[..., Awaitable[Any]]

READY = WorkerReport(instance="a/1", engine="ready", running=2, waiting=1, kv_used=640, kv_tokens=4096)


@pytest.fixture
def fleet(new_fleet: Callable[..., Fleet], quick: FleetTuning) -> Fleet:
    """Reports stay fresh for the whole test; nothing is probed unless something asks for it."""
    return new_fleet(replace(quick, report_fresh_s=600.0, probe_period_s=600.0))


async def test_a_report_is_the_workers_load_and_ends_the_polling(
    fleet: Fleet, serve: Serve, listener: Any
) -> None:
    fake = await serve(answers={"/v1/loads": (200, {"loads": [{"num_running_reqs": 9}]})})
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    seen = fleet.take_report(view.worker_id, READY)
    assert (seen.running, seen.waiting, seen.kv_used) == (2, 1, 640)
    assert seen.report == READY
    polls = sum(one.path == "/v1/loads" for one in fake.seen)
    polled = await serve()
    await fleet.add(WorkerSpec(polled.url))
    await listener.until(lambda: sum(one.path == "/v1/loads" for one in polled.seen) >= 5)
    # One poll may have been on its way when the report came.
    assert sum(one.path == "/v1/loads" for one in fake.seen) <= polls + 1
    assert fleet.get(view.worker_id).running == 2


async def test_an_engine_that_is_said_to_be_dead_is_probed_at_once_not_believed(
    fleet: Fleet, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    fleet.take_report(view.worker_id, READY)
    fake.seen.clear()
    fleet.take_report(view.worker_id, WorkerReport(instance="a/1", engine="dead"))
    await listener.until(lambda: any(one.path == "/server_info" for one in fake.seen))
    assert fleet.get(view.worker_id).state is WorkerState.ACTIVE


async def test_a_shim_of_a_worker_that_nobody_knows_is_told_to_register(
    fleet: Fleet, serve: Serve, serve_app: Callable[[Any], Awaitable[str]]
) -> None:
    app = FastAPI()
    app.include_router(registry_router(RegistryDeps(fleet, None)))  # type: ignore[arg-type]
    async with httpx.AsyncClient(base_url=await serve_app(app), trust_env=False, timeout=30) as http:
        body = READY.model_dump(mode="json")
        assert (await http.post("/workers/77/report", json=body)).status_code == 404
        fake = await serve()
        added = (await http.post("/workers", json={"url": fake.url})).json()
        path = f"/workers/{added['worker_id']}/report"
        assert (await http.post(path, json=body)).status_code == 204
        refused = await http.post(path, json=body | {"engine": "asleep"})
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"] == ["body", "engine"]


async def test_a_shim_that_registers_tells_where_it_is_also_of_a_worker_that_was_there_before(
    fleet: Fleet, serve: Serve, serve_app: Callable[[Any], Awaitable[str]], listener: Any
) -> None:
    app = FastAPI()
    app.include_router(registry_router(RegistryDeps(fleet, None)))  # type: ignore[arg-type]
    first, second = await serve(), await serve()
    shim = "http://127.0.0.1:31900"
    async with httpx.AsyncClient(base_url=await serve_app(app), trust_env=False, timeout=30) as http:
        body = {"url": first.url, "shim_url": f"{shim}/", "api_key": "k"}
        added = (await http.post("/workers", json=body)).json()
        await listener.until_told("up", int(added["worker_id"]), 1)
        facts = listener.told[-1].more["facts"]
        assert (facts.shim_url, facts.shim_key) == (shim, "k")

        known = await fleet.add(WorkerSpec(second.url))
        await listener.until_told("up", known.worker_id, 1)
        assert listener.told[-1].more["facts"].shim_url is None
        told = len(listener.told)
        again = (await http.post("/workers", json={"url": second.url, "shim_url": shim})).json()
        assert int(again["worker_id"]) == known.worker_id
        (news,) = [one for one in listener.told[told:] if one.what == "up"]
        assert (news.worker_id, news.generation, news.more["facts"].shim_url) == (known.worker_id, 1, shim)

        refused = await http.post("/workers", json={"url": first.url, "shim_url": "ftp://somewhere"})
    assert refused.status_code == 400


async def test_new_weights_in_a_report_void_what_the_worker_holds(
    fleet: Fleet, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    for version in ("step-7", "step-7", None):
        fleet.take_report(view.worker_id, READY.model_copy(update={"weight_version": version}))
    assert listener.changes() == [("up", 1), ("weights", 1)]
    assert fleet.get(view.worker_id).weight_version == "step-7"
