"""What the caller and the worker see of a step that goes well."""

import asyncio
import gzip
import json
from typing import Any

import pytest

EMOJI = "héllo 👩‍👩‍👧 wörld"


async def test_the_body_reaches_the_worker_byte_for_byte_but_for_rid_and_priority(
    gateway: Any, worker: Any
) -> None:
    body = (
        b'{ "messages":[{"role":"user","content":"a\\u00e9\\ud83d\\ude00"}],\n\t"model": "test-model" ,'
        b'"temperature":1.0,"return_token_ids":true,'
        b'"unknown":{"z":1,"a":[1e400,null]}, "seed":12345678901234567890}'
    )
    answer = await gateway.client.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200
    sent = worker.received[0].body
    rid = worker.received[0].json()["rid"]
    priority = worker.received[0].json()["priority"]
    assert sent == b'{"rid":"%s","priority":%d,' % (rid.encode(), priority) + body[1:]


async def test_a_callers_rid_and_priority_are_replaced_and_not_doubled(gateway: Any, worker: Any) -> None:
    await gateway.chat(rid="mine", priority=7)
    body = worker.received[0].body
    assert body.count(b'"rid"') == 1
    assert body.count(b'"priority"') == 1
    sent = worker.received[0].json()
    assert len(sent["rid"]) == 32
    assert sent["rid"] != "mine"


async def test_each_attempt_has_its_own_rid_of_32_hex_digits(gateway: Any, worker: Any) -> None:
    for _ in range(5):
        await gateway.chat()
    rids = [request.json()["rid"] for request in worker.received]
    assert len(set(rids)) == 5
    assert all(len(rid) == 32 and int(rid, 16) >= 0 for rid in rids)


async def test_an_answer_says_which_trajectory_step_and_worker_it_was(gateway: Any, worker: Any) -> None:
    answer = await gateway.chat(headers={"X-Heddle-Trajectory-Id": "run-7"})
    assert answer.headers["x-heddle-trajectory-id"] == "run-7"
    assert answer.headers["x-heddle-worker"] == f"127.0.0.1:{worker.port}"
    assert answer.headers["x-heddle-step"] == "0"
    assert answer.headers["x-heddle-trajectory-source"]
    assert answer.headers["x-request-id"]
    assert answer.json()["choices"][0]["message"]["content"] == "Hello."


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/", "/t/run-1/v1/chat/completions", "/sessions/a/b:0/v1/chat/completions"]
)
async def test_prefixed_and_slashed_paths_are_served_in_place(gateway: Any, worker: Any, path: str) -> None:
    answer = await gateway.chat(path=path)
    assert answer.status_code == 200
    assert worker.received[0].path == "/v1/chat/completions"
    if path.startswith("/t/"):
        assert answer.headers["x-heddle-trajectory-id"] == "run-1"
    if path.startswith("/sessions/"):
        assert answer.headers["x-heddle-trajectory-id"] == "a/b:0"


async def test_generate_takes_tokens_in_and_gives_tokens_out(gateway: Any, worker: Any) -> None:
    answer = await gateway.client.post("/generate", json={"input_ids": [1, 2, 3], "sampling_params": {}})
    assert answer.json()["output_ids"] == [7, 8]
    (record,) = await gateway.records(1)
    assert (record.dialect, record.prompt_tokens, record.output_tokens, record.cached_tokens) == (
        "generate",
        4,
        2,
        1,
    )


async def test_text_completions_are_served(gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        choice = {"index": 0, "text": " there", "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        await line.answer(200, {"id": "c", "object": "text_completion", "choices": [choice], "usage": usage})

    worker.script = script
    answer = await gateway.client.post("/v1/completions", json={"model": "test-model", "prompt": "hi"})
    assert answer.json()["choices"][0]["text"] == " there"
    (record,) = await gateway.records(1)
    assert (record.dialect, record.finish_reason, record.output_tokens) == ("completions", "length", 1)


async def test_a_stream_comes_through_unchanged_but_for_the_usage_nobody_asked_for(
    gateway: Any, worker: Any
) -> None:
    answer = await gateway.chat(stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in answer.headers
    events = [text for text in answer.text.split("\n\n") if text]
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(text.removeprefix("data: ")) for text in events[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hello."
    assert all(chunk["choices"] for chunk in chunks)
    assert worker.received[0].json()["stream_options"] == {"include_usage": True}
    (record,) = await gateway.records(1)
    assert (record.prompt_tokens, record.output_tokens, record.usage_known) == (11, 3, True)


@pytest.mark.parametrize("asked", [True, False])
async def test_the_usage_chunk_is_shown_exactly_to_those_who_asked(
    gateway: Any, worker: Any, asked: bool
) -> None:
    answer = await gateway.chat(stream=True, stream_options={"include_usage": asked})
    assert ('"choices": []' in answer.text) is asked
    assert worker.received[0].json()["stream_options"]["include_usage"] is True


async def test_an_emoji_split_at_every_byte_arrives_whole(gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        event = json.dumps({"choices": [{"index": 0, "delta": {"content": EMOJI}}]}, ensure_ascii=False)
        for byte in f"data: {event}\n\n".encode():
            await line.chunk(bytes([byte]))
        await line.chat_event({}, finish="stop")
        await line.event("[DONE]")
        await line.end_stream()

    worker.script = script
    answer = await gateway.chat(stream=True)
    first = json.loads(answer.content.decode().split("\n\n")[0].removeprefix("data: "))
    assert first["choices"][0]["delta"]["content"] == EMOJI


async def test_unknown_fields_of_an_answer_survive(gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.answer_chat(prompt_token_ids=[1, 2], metadata={"weight_version": "7"})

    worker.script = script
    answer = (await gateway.chat()).json()
    assert answer["prompt_token_ids"] == [1, 2]
    assert answer["metadata"] == {"weight_version": "7"}


async def test_a_worker_that_compresses_all_the_same_is_passed_on_as_it_is(gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        assert request.header("accept-encoding") == "identity"
        await line.answer(200, gzip.compress(b'{"choices": []}'), {"content-encoding": "gzip"})

    worker.script = script
    assert (await gateway.chat()).json() == {"choices": []}


async def test_credentials_and_engine_commands_of_a_caller_do_not_reach_the_worker(
    gateway: Any, worker: Any
) -> None:
    headers = {
        "Authorization": "Bearer sk-secret",
        "X-Api-Key": "sk-secret",
        "X-Override-Priority": "99",
        "X-Override-Rid": "x",
        "X-Heddle-Internal-Level": "31",
        "Cookie": "session=1",
        "X-Forwarded-For": "10.0.0.1",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "X-Custom-Thing": "kept",
    }
    await gateway.chat(headers=headers)
    names = {name for name, _ in worker.received[0].headers}
    assert not names & {"authorization", "x-api-key", "x-override-priority", "x-override-rid", "cookie"}
    assert not any(name.startswith(("x-heddle", "x-forwarded")) for name in names)
    assert worker.received[0].header("traceparent") == headers["traceparent"]
    assert worker.received[0].header("x-custom-thing") == "kept"


@pytest.mark.parametrize("sent", ["text/plain", "application/json; charset=utf-8", None])
async def test_the_worker_always_gets_a_json_content_type(
    gateway: Any, worker: Any, sent: str | None
) -> None:
    headers = {"content-type": sent} if sent else {}
    body = b'{"model":"test-model","messages":[{"role":"user","content":"x"}]}'
    await gateway.client.post("/v1/chat/completions", content=body, headers=headers)
    kept = sent if sent and sent.startswith("application/json") else "application/json"
    assert worker.received[0].header("content-type") == kept


async def test_headers_of_the_worker_cross_except_those_of_its_connection(gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        headers = {
            "x-engine": "yes",
            "server": "uvicorn",
            "x-request-id": "theirs",
            "keep-alive": "timeout=5",
        }
        await line.answer(200, b"{}", headers)

    worker.script = script
    answer = await gateway.chat(headers={"x-request-id": "ours-1"})
    assert answer.headers["x-engine"] == "yes"
    assert answer.headers.get_list("x-request-id") == ["ours-1"]
    assert "keep-alive" not in answer.headers
    assert "server" not in answer.headers


async def test_fields_that_speak_to_the_gateway_are_taken_off(gateway: Any, worker: Any) -> None:
    answer = await gateway.chat(program_id="prog-1", metadata={"a": "b"})
    assert answer.headers["x-heddle-trajectory-id"] == "prog-1"
    assert "program_id" not in worker.received[0].json()
    assert worker.received[0].json()["metadata"] == {"a": "b"}


async def test_engines_without_rid_and_priority_get_neither(new_gateway: Any, new_worker: Any) -> None:
    worker = await new_worker()
    worker.kind = "openai"
    gateway = await new_gateway(worker)
    await gateway.chat(priority=3, rid="mine")
    assert not {"rid", "priority"} & worker.received[0].json().keys()


async def test_an_engine_that_serves_low_priorities_first_gets_the_number_negated(
    new_gateway: Any, new_worker: Any
) -> None:
    high, low = await new_worker(), await new_worker()
    low.features["schedule_low_priority_values_first"] = True
    sent = {}
    for name, worker in (("high", high), ("low", low)):
        gateway = await new_gateway(worker)
        await gateway.chat()
        sent[name] = worker.received[0].json()["priority"]
    assert sent["high"] > 0
    assert sent["low"] == -sent["high"]


async def test_a_record_is_written_for_every_step(gateway: Any, worker: Any) -> None:
    await gateway.chat(headers={"X-Heddle-Trajectory-Id": "t", "X-Heddle-Group": "g", "X-Heddle-Sample": "3"})
    (record,) = await gateway.records(1)
    assert (record.trajectory_id, record.group_id, record.sample, record.step) == ("t", "g", 3, 0)
    assert (record.outcome, record.status, record.attempts, record.worker) == (
        "done",
        200,
        1,
        f"127.0.0.1:{worker.port}",
    )
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (11, 5, 3)
    assert record.finish_reason == "stop"
    assert record.arrived_at <= (record.dispatched_at or 0) <= (record.first_byte_at or 0) <= record.ended_at


async def test_the_next_step_of_a_conversation_is_found_and_knows_its_gap(gateway: Any, worker: Any) -> None:
    first = await gateway.chat("question")
    history = [
        {"role": "user", "content": "question"},
        first.json()["choices"][0]["message"],
        {"role": "user", "content": "more"},
    ]
    second = await gateway.client.post(
        "/v1/chat/completions", json={"model": "test-model", "messages": history}
    )
    assert second.headers["x-heddle-trajectory-id"] == first.headers["x-heddle-trajectory-id"]
    assert second.headers["x-heddle-step"] == "1"
    records = await gateway.records(2)
    assert records[0].gap_before_s is None
    assert 0 <= (records[1].gap_before_s or -1) < 10


async def test_a_streamed_step_is_known_as_done_when_its_done_event_arrives(
    gateway: Any, worker: Any
) -> None:
    """A client may leave at [DONE] and come back at once, while the worker's stream is still open."""
    hold = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chat_event({"role": "assistant", "content": "Hello."})
        await line.chat_event({}, finish="stop")
        await line.event("[DONE]")
        await hold.wait()
        await line.end_stream()

    worker.script = script
    body = {"model": "test-model", "stream": True, "messages": [{"role": "user", "content": "question"}]}
    async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for text in answer.aiter_lines():
            if text == "data: [DONE]":
                break
        worker.script = None
        history = [
            *body["messages"],
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "more"},
        ]
        second = await gateway.client.post(
            "/v1/chat/completions", json={"model": "test-model", "messages": history}
        )
    hold.set()
    assert second.headers["x-heddle-trajectory-id"] == answer.headers["x-heddle-trajectory-id"]
    assert worker.aborts == []
    records = await gateway.records(2)
    assert [record.outcome for record in records] == ["done", "done"]
