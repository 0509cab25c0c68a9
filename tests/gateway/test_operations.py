"""Models, liveness, readiness, metrics."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

Until = Callable[..., Awaitable[None]]


async def samples(gateway: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = (await gateway.client.get("/metrics")).text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def named(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str) -> list[float]:
    return [value for (sample, _), value in found.items() if sample == name]


async def test_models_are_the_union_of_all_serving_workers(new_gateway: Any, new_worker: Any) -> None:
    gateway = await new_gateway(await new_worker(), await new_worker())
    (model,) = (await gateway.client.get("/v1/models")).json()["data"]
    assert (model["id"], model["object"], model["workers"]) == ("test-model", "model", 2)
    assert (await gateway.client.get("/t/run/v1/models/test-model")).json()["id"] == "test-model"
    missing = await gateway.client.get("/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("kind", ["sglang", "openai"])
async def test_a_model_takes_what_each_of_its_workers_takes(
    new_gateway: Any, new_worker: Any, kind: str
) -> None:
    workers = [await new_worker() for _ in range(3)]
    for worker, said in zip(workers, ({"max_model_len": 8192}, {"max_model_len": 4096}, {}), strict=True):
        worker.kind, worker.card = kind, said
    gateway = await new_gateway(*workers)
    (model,) = (await gateway.client.get("/v1/models")).json()["data"]
    assert model["max_model_len"] == 4096
    silent = await new_gateway(workers[2])
    (model,) = (await silent.client.get("/v1/models")).json()["data"]
    assert model["max_model_len"] is None


async def test_liveness_holds_without_workers_and_readiness_does_not(
    new_gateway: Any, worker: Any, until: Until
) -> None:
    gateway = await new_gateway()
    assert (await gateway.client.get("/health")).status_code == 200
    unready = await gateway.client.get("/ready")
    assert unready.status_code == 503
    assert unready.headers["retry-after"]
    added = await gateway.client.post("/admin/v1/workers", json={"url": worker.url})
    assert added.status_code == 201
    await until(lambda: gateway.parts.fleet.active() == 1, "the worker to be active")
    ready = await gateway.client.get("/ready")
    assert ready.status_code == 200
    assert ready.json()["workers"]["active"] == 1
    said = {
        "ready",
        "workers",
        "aside",
        "planner",
        "history",
        "live_state",
        "paused",
        "role",
        "leader",
        "alone_because",
        "epoch",
    }
    assert said == ready.json().keys()
    assert (ready.json()["role"], ready.json()["leader"]) == ("alone", None)


async def test_every_ended_step_is_counted_by_outcome_rule_and_worker(gateway: Any, worker: Any) -> None:
    await gateway.chat(headers={"X-Heddle-Trajectory-Id": "t"})
    await gateway.chat(stream=True)

    async def script(request: Any, line: Any) -> None:
        await line.answer(400, {"message": "no"})

    worker.script = script
    await gateway.chat()
    found = await samples(gateway)
    steps = {labels: value for (name, labels), value in found.items() if name == "heddle_steps_total"}
    assert sum(steps.values()) == 3
    assert sum(value for labels, value in steps.items() if ("outcome", "client_error") in labels) == 1
    assert sum(value for labels, value in steps.items() if ("model", "test-model") in labels) == 3
    where = frozenset({("worker", f"127.0.0.1:{worker.port}"), ("outcome", "done")})
    assert found["heddle_worker_steps_total", where] == 2
    assert named(found, "heddle_prompt_tokens_total")[0] >= 22
    assert named(found, "heddle_step_seconds_count") == [3]
    assert named(found, "heddle_core_steps_arrived_total") == [3]
    assert named(found, "heddle_fleet_workers_active") == [1]
    assert named(found, "heddle_history_put_total") == [3]


async def test_what_clients_make_up_never_becomes_a_label(new_gateway: Any, worker: Any) -> None:
    gateway = await new_gateway(worker)
    for number in range(20):
        await gateway.chat(model=f"made-up-{number}", headers={"X-Heddle-Trajectory-Id": f"run-{number}"})
    text = (await gateway.client.get("/metrics")).text
    assert "made-up" not in text
    assert "run-1" not in text
    steps = [line for line in text.splitlines() if line.startswith("heddle_steps_total{")]
    assert len(steps) == 1
    assert 'model="other"' in steps[0]


async def test_gauges_of_live_steps_are_read_from_the_core(gateway: Any, worker: Any, until: Until) -> None:
    hold = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        await hold.wait()
        await line.answer_chat()

    worker.script = script
    calls = [asyncio.create_task(gateway.chat(path=f"/t/{n}/v1/chat/completions")) for n in range(3)]
    await until(lambda: len(worker.received) == 3, "three steps at the worker")
    assert named(await samples(gateway), "heddle_core_steps_live") == [3]
    assert named(await samples(gateway), "heddle_upstream_connections_busy") == [3]
    hold.set()
    await asyncio.gather(*calls)
    assert named(await samples(gateway), "heddle_core_steps_live") == [0]


async def test_a_removed_workers_series_go(gateway: Any, worker: Any, until: Until) -> None:
    await gateway.chat()
    assert f'worker="127.0.0.1:{worker.port}"' in (await gateway.client.get("/metrics")).text
    await gateway.client.delete("/admin/v1/workers/1")
    await until(lambda: not gateway.parts.fleet.list(), "the worker to be removed")
    assert f'worker="127.0.0.1:{worker.port}"' not in (await gateway.client.get("/metrics")).text


async def test_finished_trajectories_are_forgotten_and_kept_in_history(gateway: Any, until: Until) -> None:
    await gateway.chat(path="/t/run/v1/chat/completions")
    finished = await gateway.client.post("/admin/v1/trajectories/run/finish")
    assert finished.status_code == 200
    assert len(gateway.parts.driver.directory) == 0
    await gateway.chat(path="/t/other/v1/chat/completions", headers={"X-Heddle-Final": "true"})
    assert len(gateway.parts.driver.directory) == 0
    records = await gateway.records(2)
    assert {record.trajectory_id for record in records} == {"run", "other"}


@pytest.mark.parametrize(
    "key",
    [{"authorization": "Bearer sk-mine"}, {"x-api-key": "sk-mine"}, {"x-goog-api-key": "sk-mine"}],
    ids=str,
)
async def test_a_session_is_closed_by_its_own_caller(gateway: Any, key: dict[str, str]) -> None:
    await gateway.chat(headers=key | {"X-Session-Id": "s-1"})
    other = await gateway.client.post(
        "/finish_session?session_id=s-1", headers={"authorization": "Bearer sk-x"}
    )
    assert other.json()["finished"] is False
    mine = await gateway.client.post("/finish_session?session_id=s-1", headers=key)
    assert mine.json()["finished"] is True


async def test_one_that_reaches_neither_redis_nor_a_leader_says_that_it_decides_alone(
    new_gateway: Any, worker: Any
) -> None:
    gateway = await new_gateway(worker, redis_url="redis://127.0.0.1:1/0")
    ready = (await gateway.client.get("/ready")).json()
    assert (ready["ready"], ready["role"], ready["live_state"]) == (True, "alone", "local")
    assert ready["alone_because"] == "Redis is away, and no leader answers"
    assert (await gateway.chat()).status_code == 200
    lines = (await gateway.client.get("/metrics")).text.splitlines()
    assert "heddle_peers_is_alone 1.0" in lines
    assert "heddle_peers_times_alone_total 1.0" in lines
    assert "heddle_peers_untold_ends 1.0" in lines
