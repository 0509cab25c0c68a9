"""``/abort_request`` as rollout loops call it: by rid to the owner, or all of them, held ones too."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Until = Callable[..., Awaitable[None]]
ONE_SLOT = {"order": "fcfs", "placement": "sticky", "admission": "slots"}


def rid_of(request: Any) -> str:
    return str(json.loads(request.body, parse_int=str)["rid"])


@pytest.fixture
async def one_slot(new_gateway: Any, worker: Any, until: Until) -> Any:
    worker.features["max_running_requests"] = 1

    async def script(request: Any, line: Any) -> None:
        """Like SGLang: the aborted request gets a normal answer that says so."""
        rid = rid_of(request)
        await until(lambda: rid in worker.aborts, "the abort")
        meta = {"id": rid, "finish_reason": {"type": "abort"}, "completion_tokens": 3}
        await line.answer(200, {"text": "Hel", "meta_info": meta})

    worker.script = script
    return await new_gateway(worker, policy=ONE_SLOT)


async def test_a_callers_own_rid_aborts_the_attempt_it_became(
    one_slot: Any, worker: Any, until: Until
) -> None:
    call = asyncio.create_task(one_slot.client.post("/generate", json={"text": "hi", "rid": "mine-1"}))
    await until(lambda: worker.received, "the step at the worker")
    minted = worker.received[0].json()["rid"]
    other = await one_slot.client.post("/abort_request", json={"rid": "mine"})
    assert worker.aborts == [], "a prefix of a rid must abort nothing"
    assert other.status_code == 200
    await one_slot.client.post("/abort_request", json={"rid": "mine-1"})
    answer = await call
    assert worker.aborts == [minted]
    assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
    (record,) = await one_slot.records(1)
    assert (record.outcome, record.finish_reason, record.output_tokens) == ("aborted", "abort", 3)


@pytest.mark.parametrize("dialect", ["generate", "tokens", "chat", "chat-stream"])
async def test_held_steps_are_answered_as_aborted_at_once(
    one_slot: Any, worker: Any, until: Until, dialect: str
) -> None:
    running = asyncio.create_task(one_slot.client.post("/generate", json={"text": "first"}))
    await until(lambda: worker.received, "the first step at the worker")
    if dialect == "generate":
        held = asyncio.create_task(one_slot.client.post("/generate", json={"text": "second", "rid": "mine"}))
    elif dialect == "tokens":
        body = {"token_ids": [1, 2], "sampling_params": {}, "request_id": "mine"}
        held = asyncio.create_task(one_slot.client.post("/inference/v1/generate", json=body))
    else:
        held = asyncio.create_task(one_slot.chat("second", rid="mine", stream=dialect == "chat-stream"))
    await until(lambda: one_slot.parts.driver.stats()["steps_live"] == 2, "the second step to be held")
    await one_slot.client.post("/abort_request", json={"rid": "mine"})
    answer = await held
    assert answer.status_code == 200
    if dialect == "generate":
        assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
    elif dialect in ("chat", "tokens"):
        assert answer.json()["choices"][0]["finish_reason"] == "abort"
    else:
        first = answer.text.split("\n\n")[0]
        assert json.loads(first.removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
    assert len(worker.received) == 1
    worker.aborts.append(worker.received[0].json()["rid"])
    assert (await running).status_code == 200
    records = await one_slot.records(2)
    assert {record.attempts: record.outcome for record in records} == {1: "aborted", 0: "aborted"}


@pytest.mark.parametrize("odd", ["1" * 5000, "[" * 400 + "]" * 400, "1e999", "NaN"])
async def test_another_bodys_oddities_stop_no_abort(
    one_slot: Any, worker: Any, until: Until, odd: str
) -> None:
    """It holds the same rid as text, so that it is read as well: Python's reader knows limits."""
    stranger = f'{{"text": "mine-1", "more": {odd}}}'
    other = asyncio.create_task(one_slot.client.post("/generate", content=stranger))
    await until(lambda: worker.received, "the stranger's step at the worker")
    held = asyncio.create_task(one_slot.client.post("/generate", json={"text": "hi", "rid": "mine-1"}))
    await until(lambda: one_slot.parts.driver.stats()["steps_live"] == 2, "the second step to be held")
    answer = await one_slot.client.post("/abort_request", json={"rid": "mine-1"})
    assert (answer.status_code, answer.json()["waiting_aborted"]) == (200, 1)
    assert (await held).json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert worker.aborts == []
    worker.aborts.append(rid_of(worker.received[0]))
    assert (await other).status_code == 200


@pytest.fixture
async def deaf(new_gateway: Any, worker: Any) -> Any:
    """A gateway before an engine that knows no aborts, and writes until its line is cut."""
    worker.kind = "openai"

    async def script(request: Any, line: Any) -> None:
        if request.json().get("stream"):
            await line.begin_stream()
            await line.chat_event({"role": "assistant", "content": "Hel"})
        await request.client_left.wait()

    worker.script = script
    return await new_gateway(worker)


@pytest.mark.parametrize("body", [{"rid": "mine"}, {"abort_all": True}], ids=["by rid", "all"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_knows_no_aborts_loses_the_connection(
    deaf: Any, worker: Any, until: Until, body: dict[str, Any], stream: bool
) -> None:
    call = asyncio.create_task(deaf.chat(rid="mine", stream=stream))
    await until(lambda: worker.received, "the step at the worker")
    if stream:
        (run,) = deaf.parts.steps.running
        await until(lambda: run.account.answer_began, "the stream to begin")
    told = await deaf.client.post("/abort_request", json=body)
    assert (told.status_code, told.json()["success"], told.json()["waiting_aborted"]) == (200, True, 1)
    answer = await call
    await until(worker.received[0].client_left.is_set, "the connection to the worker to be closed")
    if stream:
        events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "abort"
        assert json.loads(events[0])["choices"][0]["delta"]["content"] == "Hel"
    else:
        assert answer.json()["choices"][0]["finish_reason"] == "abort"
    (record,) = await deaf.records(1)
    assert (record.outcome, record.output_tokens) == ("aborted", int(stream))


async def test_another_id_aborts_nothing_on_an_engine_that_knows_no_aborts(
    deaf: Any, worker: Any, until: Until
) -> None:
    call = asyncio.create_task(deaf.chat(rid="mine"))
    await until(lambda: worker.received, "the step at the worker")
    told = await deaf.client.post("/abort_request", json={"rid": "min"})
    assert told.json()["waiting_aborted"] == 0
    assert not call.done()
    await deaf.client.post("/abort_request", json={"abort_all": True})
    assert (await call).status_code == 200
