"""Messages and Responses when workers are lost, busy or wrong, and when clients leave: as chat's, each in its
family's words. The SDKs are unmodified.
"""

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest

MODEL = "test-model"
ROUND_ROBIN = {"placement": "round_robin", "order": "fcfs", "admission": "unlimited"}
PATHS = ["/v1/messages", "/v1/responses"]
ASK: Any = [{"role": "user", "content": "hi"}]


def body_for(path: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    if path == "/v1/messages":
        messages = [{"role": "user", "content": text}]
        return {"model": MODEL, "max_tokens": 9, "messages": messages, **more}
    return {"model": MODEL, "input": text, **more}


def claude(gateway: Any, **options: Any) -> anthropic.AsyncAnthropic:
    options = {"api_key": "EMPTY", "base_url": gateway.url, "max_retries": 0, "timeout": 60} | options
    return anthropic.AsyncAnthropic(**options)


def codex(gateway: Any, **options: Any) -> openai.AsyncOpenAI:
    options = {"api_key": "EMPTY", "base_url": f"{gateway.url}/v1", "max_retries": 0, "timeout": 60} | options
    return openai.AsyncOpenAI(**options)


async def begin(request: Any, line: Any) -> None:
    """As SGLang begins a stream, before it has a token."""
    if request.path == "/v1/messages":
        await line.begin_message()
    else:
        await line.begin_response({"id": request.json()["request_id"], "object": "response", "model": MODEL})


async def say(request: Any, line: Any, text: str = "Hel") -> None:
    if request.path == "/v1/messages":
        block = {"type": "text", "text": ""}
        await line.named_event({"type": "content_block_start", "index": 0, "content_block": block})
        await line.message_text(text)
    else:
        await line.response_text(text, 2)


# ------------------------------------------------------------------------------------- what the worker gets


async def test_a_message_reaches_the_worker_as_it_came_with_id_and_priority_beside_it(
    new_gateway: Any, worker: Any
) -> None:
    gateway = await new_gateway(worker)
    body = b'{ "model":"test-model", "max_tokens": 9, "messages" : [{"role":"user","content":"\\u0068i"}] }'
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-1m", "x-api-key": "secret"}
    answer = await gateway.client.post("/v1/messages?beta=true", content=body, headers=headers)
    assert answer.status_code == 200
    [request] = worker.received
    assert request.body == body
    assert request.path == "/v1/messages"
    assert len(request.header("x-override-rid")) == 32
    assert int(request.header("x-override-priority")) >= 0
    assert request.header("anthropic-version") == "2023-06-01"
    assert request.header("anthropic-beta") == "context-1m"
    assert request.header("x-api-key") is None


async def test_a_response_is_named_by_the_gateway_and_has_its_priority_in_the_body(
    new_gateway: Any, worker: Any
) -> None:
    gateway = await new_gateway(worker)
    raw = b'{ "model":"test-model", "input" : "\\u0068i", "store": false }'
    answer = await gateway.client.post("/v1/responses", content=raw)
    [request] = worker.received
    sent = request.json()
    assert answer.json()["id"] == sent["request_id"]
    assert len(sent["request_id"]) == len("resp_") + 32
    assert isinstance(sent["priority"], int)
    assert request.body.endswith(raw[1:])
    assert "rid" not in sent


@pytest.mark.parametrize("path", PATHS)
async def test_an_engine_that_knows_no_ids_gets_none(new_gateway: Any, worker: Any, path: str) -> None:
    worker.kind = "openai"

    async def script(request: Any, line: Any) -> None:
        await line.answer(200, {"id": "resp_own", "status": "completed", "output": [], "content": []})

    worker.script = script
    gateway = await new_gateway(worker)
    await gateway.client.post(path, json=body_for(path))
    [request] = worker.received
    assert request.json() == body_for(path)
    assert request.header("x-override-rid") is None
    if path == "/v1/responses":
        # Its own ids are remembered: the next step is for it alone.
        after = await gateway.client.post(path, json=body_for(path, previous_response_id="resp_own"))
        assert after.status_code == 200


# ------------------------------------------------------------------------------------- workers that fail


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_lost_before_it_said_anything_is_replaced_unseen(
    new_gateway: Any, new_worker: Any, path: str, stream: bool
) -> None:
    bad, good = await new_worker(), await new_worker()

    async def script(request: Any, line: Any) -> None:
        if stream:
            await begin(request, line)
        line.reset()

    bad.script = script
    gateway = await new_gateway(bad, good, policy=ROUND_ROBIN)
    answers = [
        await gateway.client.post(f"/t/{number}{path}", json=body_for(path, stream=stream))
        for number in range(4)
    ]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert bad.received, "the bad worker was never tried"
    text = answers[0].text
    assert text.count("event: message_start" if path == "/v1/messages" else "event: response.created") == int(
        stream
    )
    records = await gateway.records(4)
    assert all(record.outcome == "done" for record in records)
    assert sum(record.attempts for record in records) == 4 + len(bad.received)
    assert gateway.at_rest()
    assert gateway.parts.driver.audit() == []


@pytest.mark.parametrize("path", PATHS)
async def test_a_full_queue_that_is_said_in_the_stream_is_another_workers_turn(
    new_gateway: Any, new_worker: Any, path: str
) -> None:
    """SGLang's status 200 is out before its queue refuses: the refusal is an event."""
    full, free = await new_worker(), await new_worker()

    async def script(request: Any, line: Any) -> None:
        await begin(request, line)
        text = "The request queue is full."
        if path == "/v1/messages":
            error = {"type": "overloaded_error", "message": text}
            await line.named_event({"type": "error", "error": error})
            await line.named_event({"type": "message_stop"})
        else:
            response = {"id": request.json()["request_id"], "status": "failed"}
            response |= {"error": {"code": "server_error", "message": text}}
            await line.named_event({"type": "response.failed", "sequence_number": 2, "response": response})
        await line.end_stream()

    full.script = script
    gateway = await new_gateway(full, free, policy=ROUND_ROBIN)
    for number in range(2):
        answer = await gateway.client.post(f"/t/{number}{path}", json=body_for(path, stream=True))
        assert answer.status_code == 200
        assert "queue is full" not in answer.text
        assert ("message_stop" if path == "/v1/messages" else "response.completed") in answer.text
    assert full.received, "the full worker was never tried"
    assert gateway.at_rest()


async def test_a_message_broken_off_ends_with_an_error_that_the_sdk_raises(
    new_gateway: Any, worker: Any
) -> None:
    async def script(request: Any, line: Any) -> None:
        await begin(request, line)
        await say(request, line)
        line.reset()

    worker.script = script
    gateway = await new_gateway(worker)
    async with claude(gateway) as client:
        with pytest.raises(anthropic.APIStatusError, match="lost in mid-answer") as broken:
            async with client.messages.stream(model=MODEL, messages=ASK, max_tokens=9) as stream:
                [_ async for _ in stream]
    body: Any = broken.value.body
    assert body["type"] == "error"
    [step] = await gateway.records(1)
    assert (step.outcome, step.output_tokens) == ("worker_lost", 1)
    assert gateway.at_rest()


async def test_a_response_broken_off_ends_with_response_failed(new_gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await begin(request, line)
        await say(request, line)
        line.reset()

    worker.script = script
    gateway = await new_gateway(worker)
    async with codex(gateway) as client:
        events = [
            event async for event in await client.responses.create(model=MODEL, input="hi", stream=True)
        ]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.sequence_number == 3
    assert last.response.id == worker.received[0].json()["request_id"]
    assert last.response.error is not None
    assert "lost in mid-answer" in last.response.error.message
    [step] = await gateway.records(1)
    assert (step.outcome, step.output_tokens) == ("worker_lost", 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "claudes", "openais"),
    [
        (400, anthropic.BadRequestError, openai.BadRequestError),
        (401, anthropic.AuthenticationError, openai.AuthenticationError),
        (404, anthropic.NotFoundError, openai.NotFoundError),
        (500, anthropic.InternalServerError, openai.InternalServerError),
    ],
)
async def test_a_workers_error_is_the_sdks_exception_with_the_workers_words(
    new_gateway: Any, worker: Any, status: int, claudes: Any, openais: Any, stream: bool
) -> None:
    async def script(request: Any, line: Any) -> None:
        # Flat, as SGLang's chat says it; a proxy in front of a worker knows no families.
        await line.answer(status, {"object": "error", "message": "so it is", "code": status})

    worker.script = script
    gateway = await new_gateway(worker)
    async with claude(gateway) as client:
        with pytest.raises(claudes, match="so it is") as raised:
            await client.messages.create(model=MODEL, messages=ASK, max_tokens=9, stream=stream)
        body: Any = raised.value.body
        assert body["type"] == "error"
        assert body["error"]["message"] == "so it is"
    async with codex(gateway) as other:
        with pytest.raises(openais, match="so it is"):
            await other.responses.create(model=MODEL, input="hi", stream=stream)
    assert gateway.at_rest()


async def test_an_error_in_its_familys_shape_passes_as_the_same_bytes(new_gateway: Any, worker: Any) -> None:
    said = b'{ "type":"error", "error": {"type":"invalid_request_error","message":"\\u0073o"} }'

    async def script(request: Any, line: Any) -> None:
        await line.answer(400, said)

    worker.script = script
    gateway = await new_gateway(worker)
    answer = await gateway.client.post("/v1/messages", json=body_for("/v1/messages"))
    assert answer.content == said


async def test_a_busy_fleet_is_overloaded_and_says_when_to_come_back(new_gateway: Any, worker: Any) -> None:
    limits = {"retry-after": "7", "anthropic-ratelimit-requests-remaining": "0"}

    async def script(request: Any, line: Any) -> None:
        await line.answer(
            429, {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}, limits
        )

    worker.script = script
    gateway = await new_gateway(worker)
    async with claude(gateway) as client:
        with pytest.raises(anthropic.APIStatusError, match="slow") as refused:
            await client.messages.create(model=MODEL, messages=ASK, max_tokens=9)
    error = refused.value
    body: Any = error.body
    assert (error.status_code, body["error"]["type"]) == (503, "overloaded_error")
    assert error.response.headers["retry-after"] == "7"
    assert error.response.headers["anthropic-ratelimit-requests-remaining"] == "0"


@pytest.mark.parametrize("path", PATHS)
async def test_no_worker_is_said_in_the_familys_words(new_gateway: Any, path: str) -> None:
    gateway = await new_gateway(policy={"worker_wait_ms": 0})
    answer = await gateway.client.post(path, json=body_for(path))
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    body = answer.json()
    assert body.get("type") == ("error" if path == "/v1/messages" else None)
    assert "No worker" in body["error"]["message"]
    counted = await gateway.client.post("/v1/messages/count_tokens", json=body_for("/v1/messages"))
    assert (counted.status_code, counted.json()["error"]["type"]) == (503, "overloaded_error")


async def test_the_sdk_repeats_what_failed_and_it_is_the_same_step(new_gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        if len(worker.received) < 3:
            await line.answer(500, b"oops")
        else:
            await line.stream_message()

    worker.script = script
    gateway = await new_gateway(worker)
    async with (
        claude(gateway, max_retries=2) as client,
        client.messages.stream(model=MODEL, messages=ASK, max_tokens=9) as stream,
    ):
        assert await stream.get_final_text() == "Hello."
    records = await gateway.records(3)
    assert [record.step for record in records] == [0, 0, 0]
    assert len({record.trajectory_id for record in records}) == 1
    assert [record.outcome for record in records] == ["worker_error", "worker_error", "done"]


async def test_an_engine_that_cannot_count_says_so_in_anthropics_words(new_gateway: Any, worker: Any) -> None:
    gateway = await new_gateway(worker)  # the scripted worker has no such route
    async with claude(gateway) as client:
        with pytest.raises(anthropic.NotFoundError, match="Not Found"):
            await client.messages.count_tokens(model=MODEL, messages=ASK)


# ------------------------------------------------------------------------------------- clients that leave


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("said", [False, True])
async def test_a_client_that_leaves_stops_the_engine(
    new_gateway: Any, worker: Any, until: Any, path: str, said: bool
) -> None:
    async def script(request: Any, line: Any) -> None:
        await begin(request, line)
        if said:
            await say(request, line)
        await request.client_left.wait()

    worker.script = script
    gateway = await new_gateway(worker)

    async def ask() -> None:
        async with gateway.client.stream("POST", path, json=body_for(path, stream=True)) as answer:
            async for _ in answer.aiter_bytes():
                pass

    task = asyncio.create_task(ask())
    await until(lambda: len(worker.received) == 1, "the worker has the request")
    if said:
        [run] = gateway.parts.steps.running._runs.values()
        await until(lambda: run.account.answer_began, "the answer has begun")
    task.cancel()
    await asyncio.wait({task})
    request = worker.received[0]
    await asyncio.wait_for(request.client_left.wait(), 10)
    rid = request.header("x-override-rid") or request.json()["request_id"]
    await until(lambda: worker.aborts == [rid], "the engine was told to stop")
    await until(gateway.at_rest, "the step has ended")
    [step] = await gateway.records(1)
    assert (step.outcome, step.output_tokens) == ("aborted", int(said))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_waiting_step_that_an_operator_aborts_ends_as_its_clients_know_it(
    new_gateway: Any, until: Any, path: str, stream: bool
) -> None:
    gateway = await new_gateway(policy={"worker_wait_ms": 60_000})
    asking = asyncio.create_task(gateway.client.post(path, json=body_for(path, stream=stream)))
    await until(lambda: len(gateway.parts.steps.running) == 1, "the step waits")
    assert (await gateway.client.post("/abort_request", json={"abort_all": True})).status_code == 200
    answer = await asking
    assert answer.status_code == 200
    data = answer.text.partition("data: ")[2] if stream else answer.text
    said = json.loads(data)
    assert (
        said["type" if path == "/v1/messages" or stream else "status"]
        in {
            ("/v1/messages", False): "message",
            ("/v1/messages", True): "error",
            ("/v1/responses", False): "failed",
            ("/v1/responses", True): "response.failed",
        }[path, stream]
    )
    [step] = await gateway.records(1)
    assert step.outcome == "aborted"
