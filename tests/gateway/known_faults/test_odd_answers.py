"""Workers that answer nonsense: the client has its answer in bounded time, the step ends once, books hold."""

import json
from typing import Any

import pytest

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def whole(text: str) -> bytes:
    return HEAD + b"content-length: %d\r\n\r\n" % len(text.encode()) + text.encode()


def choice(**more: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop", **more}


def answer(usage: Any, **more: Any) -> bytes:
    return whole(json.dumps({"choices": [choice(**more)], "usage": usage}))


def used(number: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": number,
        "completion_tokens": number,
        "prompt_tokens_details": {"cached_tokens": number},
    }


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def delta(**more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": "x"}, **more}]})


ANSWERS = [
    *(answer(used(number)) for number in (-5, 2**31, 2**32, 2**53, 2**63, 2**64 - 1, 10**30, 1.5, "7", None)),
    answer([]),
    answer(7),
    answer(used(1), finish_reason={"type": "stop"}),
    answer(used(1), index=4_000_000_000),
    answer(used(1), index=-1),
    answer(used(1), message={"tool_calls": [{"index": 4_000_000_000, "function": {"name": "a" * 100_000}}]}),
    answer(used(1), message={"tool_calls": [{"function": {"name": f"f{i}"}} for i in range(5000)]}),
    answer(used(1), message=[]),
    whole("[]"),
    whole("null"),
    whole("no json"),
    whole("[" * 100_000),
    whole('{"choices": ' + "[" * 5000 + "]" * 5000 + "}"),
    whole(""),
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + answer(used(1)),
    answer(used(1)) + b"\r\n\r\nleft over",
    HEAD + b"transfer-encoding: chunked\r\ntrailer: x\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n",
    HEAD + b"connection: close\r\n\r\n{}",
    HEAD + b"x-odd: \x80\xff\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b"x-heddle-step: 99\r\nx-request-id: theirs\r\nset-cookie: a=b\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08\x00",
]


STREAMS = [
    b"",
    b"\n\n\n\n",
    b": comment\n\n",
    event(b"[DONE]"),
    event(b"no json") + event(b"[DONE]"),
    event(b"[" * 10_000) + event(b"[DONE]"),
    delta() + event(b"[DONE]") + delta() + event(b"[DONE]"),
    delta(finish_reason="stop"),
    delta(finish_reason="stop").replace(b"\n", b"\r"),
    delta(finish_reason="stop").replace(b"\n", b"\r\n"),
    delta(finish_reason="stop")[:-2],
    event({"choices": [{"index": 4_000_000_000, "delta": {"content": "x"}, "finish_reason": "stop"}]}),
    event({"choices": [{"index": -1, "delta": {"content": "x"}, "finish_reason": "stop"}]}),
    event(
        {
            "choices": [
                {"index": 0, "delta": {"tool_calls": [{"index": 4_000_000_000}]}, "finish_reason": "stop"}
            ]
        }
    ),
    delta() + event({"choices": [], "usage": used(2**64 - 1)}) + event(b"[DONE]"),
    delta() + event({"choices": [], "usage": used(-1)}) + event(b"[DONE]"),
    delta() + event({"choices": [], "usage": used(10**30)}) + event(b"[DONE]"),
    event({"choices": None}) + event({"error": "x"}),
    event({"error": {"message": "m" * 1000}}) + event(b"[DONE]"),
    b"event: x\nid: 1\nretry: 1\ndata: {\ndata: }\n\n" + event(b"[DONE]"),
    b"\xff\xfe\x00" * 50 + b"\n\n" + event(b"[DONE]"),
    b"data: " + b"x" * 3_000_000 + b"\n\n" + event(b"[DONE]"),
    b'{"choices": [{"index": 0, "message": {"content": "no stream"}}]}',
]


def sends(answer: bytes) -> Any:
    """A script that sends this and closes the connection."""

    async def script(request: Any, line: Any) -> None:
        await line.send(answer)
        line.writer.close()

    return script


@pytest.mark.parametrize("stream", [False, True])
async def test_odd_answers_are_passed_on_and_end_their_steps(
    gateway: Any, worker: Any, until: Any, stream: bool
) -> None:
    cases = [SSE + events for events in STREAMS] if stream else ANSWERS
    for sent in cases:
        worker.script = sends(sent)
        found = await gateway.chat(stream=stream)
        assert found.status_code < 400 or found.json()["error"]["code"] != "gateway_defect", sent[:200]
        assert found.headers.get_list("x-request-id") == [found.headers["x-request-id"]] != ["theirs"], sent
        await until(gateway.at_rest, f"the step of {sent[:200]!r} to end")
        # A worker that sends rubbish is not trusted for a moment; the next case needs it.
        await until(lambda: gateway.parts.fleet.active() == 1, "the worker in service")
    assert len(await gateway.records(len(cases))) == len(cases)
    history = gateway.parts.history.stats()
    assert (history.refused, history.dropped) == (0, 0)
    assert gateway.parts.upstream.stats()["connections_busy"] == 0
    worker.script = None
    assert (await gateway.chat("next")).status_code == 200


async def test_an_absurd_count_is_not_believed(gateway: Any, worker: Any) -> None:
    for number in (2**31, 2**64 - 1):
        worker.script = sends(answer(used(number)))
        assert (await gateway.chat()).status_code == 200
    records = await gateway.records(2)
    assert all(not record.usage_known and record.prompt_tokens < 100 for record in records)


async def test_a_stream_of_one_event_without_a_blank_line_is_an_answer(gateway: Any, worker: Any) -> None:
    only = delta(finish_reason="stop")[:-2]
    worker.script = sends(SSE + only)
    found = await gateway.chat(stream=True)
    assert (found.status_code, found.content) == (200, only)
    (record,) = await gateway.records(1)
    assert (record.outcome, record.finish_reason) == ("done", "stop")


NO_HTTP = [
    b"",
    b"\x00\x01\x02 no HTTP at all\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000,
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 99999 X\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_no_http_ends_as_no_worker(gateway: Any, worker: Any, until: Any, stream: bool) -> None:
    for sent in NO_HTTP:
        worker.script = sends(sent)
        found = await gateway.chat(stream=stream)
        assert found.status_code == 503, sent[:200]
        assert int(found.headers["retry-after"]) >= 1
        await until(gateway.at_rest, f"the step of {sent[:200]!r} to end")
        await until(lambda: gateway.parts.fleet.active() == 1, "the worker in service")


FAULTS = [
    (400, b"[" * 100_000),
    (400, b"\xff\xfe"),
    (400, b""),
    (422, b'{"detail": [{"loc": ["body"], "msg": "m", "input": ' + b"[" * 900 + b"]" * 900 + b"}]}"),
    (404, b"<html>not here</html>"),
    (418, b'{"error": null, "message": 7}'),
    (500, b'{"error": [], "code": {}}'),
    (599, b"odd"),
    (302, b""),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_odd_faults_are_told_in_the_callers_shape(
    gateway: Any, worker: Any, until: Any, stream: bool
) -> None:
    for status, body in FAULTS:

        async def script(request: Any, line: Any, status: int = status, body: bytes = body) -> None:
            await line.answer(status, body, {"location": "http://169.254.169.254/"})

        worker.script = script
        found = await gateway.chat(stream=stream)
        assert found.status_code == (status if status >= 400 else 502)
        assert isinstance(found.json()["error"]["message"], str)
        assert found.json()["error"]["code"] != "gateway_defect"
        await until(gateway.at_rest, "the step to end")
        await until(lambda: gateway.parts.fleet.active() == 1, "the worker in service")
