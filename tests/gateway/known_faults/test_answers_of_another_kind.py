"""Answers that are not what was asked for: half ones, pages of proxies, documents for streams and streams for
documents. What the worker says of its answer counts; what is no answer is asked for elsewhere.
"""

import asyncio
import gzip
import json
from typing import Any

import pytest

from tests.gateway.kit.answers import chat_answer, chat_chunk

CLOSED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\n<html"
ANSWER = json.dumps(chat_answer()).encode()


def sends(answer: bytes) -> Any:
    """A script that sends this and closes the connection."""

    async def script(request: Any, line: Any) -> None:
        await line.send(answer)
        line.writer.close()

    return script


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + (json.dumps(event).encode()) + b"\n\n" for event in events)


NO_ANSWERS = [
    pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", False, id="empty"),
    pytest.param(PAGE, False, id="page"),
    pytest.param(PAGE, True, id="page for a stream"),
    pytest.param(CLOSED + ANSWER[:60], False, id="half"),
    pytest.param(CLOSED + ANSWER[:60], True, id="half for a stream"),
]


@pytest.mark.parametrize(("sent", "stream"), NO_ANSWERS)
async def test_what_is_no_answer_is_asked_for_elsewhere(
    new_gateway: Any, new_worker: Any, sent: bytes, stream: bool
) -> None:
    workers = [await new_worker(), await new_worker()]
    gateway = await new_gateway(*workers)

    def first_sends(request: Any, line: Any) -> Any:
        """Whoever is asked first has nothing."""
        for worker in workers:
            worker.script = None
        return sends(sent)(request, line)

    for worker in workers:
        worker.script = first_sends
    found = await gateway.chat(stream=stream)
    assert found.status_code == 200
    assert "Hello." in found.text if not stream else "[DONE]" in found.text
    (record,) = await gateway.records(1)
    assert (record.outcome, record.attempts) == ("done", 2)
    assert [view["suspect_until"] for view in gateway.parts.driver.worker_views()] == [None, None]


@pytest.mark.parametrize(("sent", "stream"), NO_ANSWERS)
async def test_where_no_worker_has_an_answer_that_is_said(
    gateway: Any, worker: Any, sent: bytes, stream: bool
) -> None:
    worker.script = sends(sent)
    found = await gateway.chat(stream=stream)
    assert found.status_code == 503
    assert int(found.headers["retry-after"]) >= 1
    assert "no JSON" in found.json()["error"]["message"]
    worker.script = None
    assert (await gateway.chat(stream=stream)).status_code == 200


DEEP = b'{"choices": [], "more": ' + b"[" * 600 + b"]" * 600 + b"}"
CODED = gzip.compress(ANSWER)


@pytest.mark.parametrize("body", [DEEP, CODED], ids=["deep", "coded"])
async def test_an_answer_that_only_the_client_can_read_passes_as_it_is(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any, body: bytes
) -> None:
    coding = b"content-encoding: gzip\r\n" if body is CODED else b""
    worker.script = sends(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (coding, len(body), body))
    client = await connect(gateway.url)
    await client.send(make_request(chat_body()))
    status, _, passed = await client.answer()
    assert (status, passed) == (200, body)
    assert len(worker.received) == 1


async def test_a_document_for_a_stream_passes_once(new_gateway: Any, new_worker: Any) -> None:
    workers = [await new_worker(), await new_worker()]

    async def script(request: Any, line: Any) -> None:
        await line.answer(200, ANSWER, {"content-type": "application/json; charset=utf-8"})

    for worker in workers:
        worker.script = script
    gateway = await new_gateway(*workers)
    found = await gateway.chat(stream=True)
    assert (found.status_code, found.content) == (200, ANSWER)
    assert found.headers["content-type"] == "application/json; charset=utf-8"
    assert sum(len(worker.received) for worker in workers) == 1
    (record,) = await gateway.records(1)
    assert (record.outcome, record.attempts, record.output_tokens) == ("done", 1, 3)


async def test_a_document_behind_comments_is_an_error_of_the_stream(new_gateway: Any, worker: Any) -> None:
    gateway = await new_gateway(worker, ping_period_s=0.02)
    comments = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        await comments.wait()
        await line.answer(200, ANSWER)

    worker.script = script
    body = {"model": "test-model", "messages": [], "stream": True}
    async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as found:
        parts = found.aiter_bytes()
        text = await anext(parts)
        comments.set()
        text += b"".join([part async for part in parts])
    assert b"no stream of events" in text
    assert b"Hello." not in text
    (record,) = await gateway.records(1)
    assert (record.outcome, record.output_tokens) == ("worker_error", 3)


@pytest.mark.parametrize("said", [1, "true"])
async def test_a_stream_that_the_worker_took_the_body_to_ask_for_is_passed_on_as_it_comes(
    gateway: Any, worker: Any, said: Any
) -> None:
    """pydantic's engines take 1 for true."""
    begun = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chat_event({"role": "assistant", "content": "Hel"})
        await begun.wait()
        await line.chat_event({"content": "lo."}, finish="stop")
        await line.event("[DONE]")
        await line.end_stream()

    worker.script = script
    body = {"model": "test-model", "messages": [], "stream": said}
    async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as found:
        parts = found.aiter_bytes()
        text = await anext(parts)
        assert b"Hel" in text
        begun.set()
        text += b"".join([part async for part in parts])
    assert text.endswith(b"data: [DONE]\n\n")
    (record,) = await gateway.records(1)
    assert (record.outcome, record.finish_reason, record.output_tokens) == ("done", "stop", 2)


async def test_a_stream_that_comes_in_one_piece_is_one(gateway: Any, worker: Any) -> None:
    events = sse(chat_chunk({"content": "Hello."}, "stop")) + b"data: [DONE]\n\n"
    worker.script = sends(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b"
        % (len(events), events)
    )
    found = await gateway.chat(stream=1)
    assert (found.status_code, found.content) == (200, events)
    (record,) = await gateway.records(1)
    assert (record.outcome, record.finish_reason) == ("done", "stop")


def of_choice(index: int, finish: str | None = None) -> dict[str, Any]:
    choices = [{"index": index, "delta": {"content": "x"}, "finish_reason": finish}]
    return {**chat_chunk({}), "choices": choices}


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([of_choice(0), of_choice(1), of_choice(0, "stop")], "worker_lost"),
        ([of_choice(0), of_choice(0, "stop")], "worker_lost"),
        ([of_choice(0, "stop"), of_choice(1, "length")], "done"),
    ],
    ids=["one did not end", "one did not begin", "both ended"],
)
async def test_a_stream_without_a_last_word_is_whole_when_every_choice_has_ended(
    gateway: Any, worker: Any, events: list[Any], outcome: str
) -> None:
    worker.script = sends(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + sse(*events)
    )
    found = await gateway.chat(stream=True, n=2)
    assert ("error" in found.text) == (outcome != "done")
    (record,) = await gateway.records(1)
    assert record.outcome == outcome
