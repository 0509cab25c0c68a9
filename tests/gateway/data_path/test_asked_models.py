"""A request for a model that no worker has is refused at once, in its caller's dialect, and is no step."""

from typing import Any

import pytest


@pytest.fixture
async def gateway(new_gateway: Any, worker: Any) -> Any:
    return await new_gateway(worker, check_models=True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_404_and_the_known_ones_are_named(
    gateway: Any, worker: Any, path: str, body: dict[str, Any], stream: bool
) -> None:
    answer = await gateway.client.post(path, json={"model": "llama", "stream": stream, **body})
    said = answer.json()
    assert answer.status_code == 404
    assert "'test-model'" in said["error"]["message"]
    assert answer.headers["x-request-id"]
    if path.startswith("/v1/messages"):
        assert (said["type"], said["error"]["type"]) == ("error", "not_found_error")
    else:
        assert (said["error"]["code"], said["error"]["param"]) == ("model_not_found", "model")
    assert worker.received == []
    assert gateway.parts.driver.stats()["steps_arrived_total"] == 0


@pytest.mark.parametrize("model", ["m" * 1000, "a\0b", "grün\n"])
async def test_an_odd_name_is_refused_like_any_other(gateway: Any, worker: Any, model: str) -> None:
    answer = await gateway.chat(model=model)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert len(answer.content) < 1500
    assert worker.received == []


@pytest.mark.parametrize("model", [None, "", "default", "test-model", "test-model:adapter"])
async def test_what_the_engine_takes_for_its_own_passes(gateway: Any, worker: Any, model: str | None) -> None:
    assert (await gateway.chat(model=model)).status_code == 200
    assert worker.received[0].json()["model"] == model


async def test_an_adapter_can_be_asked_for_as_soon_as_it_is_loaded(gateway: Any, worker: Any) -> None:
    assert (await gateway.chat(model="my-adapter")).status_code == 404
    worker.models = ("test-model", "my-adapter")
    assert (await gateway.chat(model="my-adapter")).status_code == 200


async def test_new_weights_that_rename_the_model_orphan_nobody(gateway: Any, worker: Any, until: Any) -> None:
    await gateway.chat(headers={"x-heddle-trajectory-id": "t"})
    worker.models = ("/ckpt/1",)
    assert (await gateway.chat(model="/ckpt/1")).status_code == 200
    again = await gateway.chat(headers={"x-heddle-trajectory-id": "t"})
    assert (again.status_code, again.headers["x-heddle-step"]) == (200, "1")
    listed = (await gateway.client.get("/v1/models")).json()["data"]
    assert {card["id"] for card in listed} == {"test-model", "/ckpt/1"}


async def test_a_model_whose_workers_are_away_is_503_and_not_404(
    new_gateway: Any, worker: Any, until: Any
) -> None:
    gateway = await new_gateway(worker, check_models=True)
    await worker.stop()
    for _ in range(2):
        assert (await gateway.chat()).status_code == 503
    await until(lambda: gateway.parts.fleet.active() == 0, "the worker to be down")
    assert (await gateway.chat(model="llama")).status_code == 503


async def test_a_worker_of_another_model_is_shown_and_gets_nothing(
    gateway: Any, new_worker: Any, until: Any
) -> None:
    other = await new_worker()
    other.models = ("llama",)
    added = (await gateway.client.post("/admin/v1/workers", json={"url": other.url})).json()
    await until(lambda: gateway.parts.fleet.stats()["workers_aside"] == 1, "the worker to be kept aside")
    shown = (await gateway.client.get(f"/admin/v1/workers/{added['id']}")).json()
    assert (shown["state"], shown["models"]) == ("aside", ["llama"])
    assert "'test-model'" in shown["last_error"]
    ready = (await gateway.client.get("/ready")).json()
    assert (ready["ready"], ready["workers"]["aside"]) == (True, 1)
    assert ready["aside"] == {shown["name"]: shown["last_error"]}
    for number in range(4):
        await gateway.chat(f"{number}")
    assert other.received == []
    assert (await gateway.chat(model="llama")).status_code == 404


async def test_unless_it_is_asked_for_every_name_goes_to_any_worker(
    new_gateway: Any, worker: Any, new_worker: Any
) -> None:
    other = await new_worker()
    other.models = ("llama",)
    gateway = await new_gateway(worker, other)
    assert (await gateway.chat(model="anything")).status_code == 200
