"""Requests that no SDK sends. Whatever comes in is answered below 500, and leaves no step behind."""

import asyncio
import gzip
import json
from typing import Any

import pytest

BODY = json.dumps({"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}).encode()
DIGITS = "9" * 5000


HEADERS = [
    f"x-stainless-retry-count: {DIGITS}",
    "x-stainless-retry-count: -1",
    f"x-heddle-trajectory-id: s\r\nx-heddle-group: g\r\nx-heddle-sample: {DIGITS}",
    f"x-heddle-trajectory-id: s\r\nx-heddle-group: g\r\nx-heddle-sample: {2**70}",
    "x-heddle-trajectory-id: s\r\nx-heddle-parent: s",
    "x-heddle-trajectory-id: caf\xe9",
    "x-heddle-trajectory-id: a\tb",
    "x-heddle-final: perhaps",
    "authorization: Bearer sk-heddle-",
    "authorization: Bearer sk-heddle-\x80\xff",
    "authorization: Basic abc",
    "content-type: multipart/form-data; boundary=x",
    "expect: nothing in particular",
    f"traceparent: {DIGITS}",
]


async def test_odd_headers_are_taken_or_refused(gateway: Any, connect: Any, make_request: Any) -> None:
    client = await connect(gateway.url)
    for line in HEADERS:
        await client.send(make_request(BODY, headers=(line,)))
        status, headers, _ = await client.answer()
        assert status in (200, 400), line[:200]
        assert "x-request-id" in headers


PATHS = [
    ("/t/..%2f..%2fadmin/v1/chat/completions", 200),
    ("/t/../../admin/v1/chat/completions", 200),
    ("/t/%ff%fe/v1/chat/completions", 200),
    ("/t/a%00/v1/chat/completions", 400),
    ("/t/a%0Ab/v1/chat/completions", 400),
    ("/v1/chat/completions%0D%0A", 400),
    ("/admin/v1/trajectories/%7F", 400),
    (f"/t/x{'/v1/a' * 12_000}%0A", 400),
    ("/t/%20/v1/chat/completions", 200),
    (f"/t/{'a' * 300}/v1/chat/completions", 400),
    ("//v1/chat/completions", 200),
    ("/v1//chat/completions/", 200),
    ("/t/x//v1/chat/completions", 200),
    ("/t/x/admin/v1/policy", 404),
    ("/t/x/abort_request", 404),
    ("/v1/chat/completions?session_id=%ff&&&=&session_id=%0a&a=%00", 200),
    ("http://elsewhere/v1/chat/completions", 200),
]


async def test_paths_lead_to_agents_routes_or_nowhere(gateway: Any, connect: Any, make_request: Any) -> None:
    client = await connect(gateway.url)
    for path, status in PATHS:
        await client.send(make_request(BODY, path))
        assert (await client.answer())[0] == status, path


BODIES = [
    (b"", 400),
    (b"[]", 400),
    (b"1", 400),
    (b"[" * 100_000, 400),
    (BODY + BODY, 400),
    (b"\xef\xbb\xbf" + BODY, 400),
    (BODY.decode().encode("utf-16"), 400),
    (BODY.replace(b"hi", b"h\xff"), 400),
    (BODY.replace(b"hi", b"\\ud800"), 200),
    (BODY[:-1] + b', "temperature": 1e999, "seed": NaN}', 200),
    (BODY[:-1] + b', "session_id": "a\\u0000b", "user": [1], "metadata": 7}', 200),
    (BODY[:-1] + b', "session_id": "\\ud800"}', 200),
    (BODY[:-1] + b', "session_id": "' + b"a" * 5000 + b'"}', 200),
    (BODY[:-1] + b', "max_tokens": 1' + b"0" * 400 + b', "n": -1' + b"0" * 400 + b"}", 200),
    (BODY.replace(b"test-model", b"m" * 1024), 200),
    (BODY.replace(b"test-model", b"m" * 1025), 400),
    (BODY.replace(b"test-model", b"m" * 1_000_000), 400),
    (BODY.replace(b"test-model", b"\\u0000\\ud800"), 200),
    (b'{"messages": 7, "model": [], "stream_options": "x", "stream": 1}', 200),
    (b'{"messages": [1, null, {"content": {"a": 1}}, {"role": 7, "tool_calls": 3}]}', 200),
]


async def test_bodies_are_refused_or_left_to_the_worker(
    new_gateway: Any, worker: Any, connect: Any, make_request: Any
) -> None:
    gateway = await new_gateway(worker)

    async def answer(request: Any, line: Any) -> None:
        await line.answer_chat()

    worker.script = answer
    client = await connect(gateway.url)
    for body, status in BODIES:
        await client.send(make_request(body))
        found, _, text = await client.answer()
        assert found == status, body[:200]
        if status != 200:
            assert json.loads(text)["error"]["type"] == "invalid_request_error"
    understood = [body for body, status in BODIES if status == 200]
    records = await gateway.records(len(understood))
    assert [record.outcome for record in records] == ["done"] * len(understood)
    assert gateway.parts.history.stats().refused == 0


@pytest.mark.parametrize("layers", [1, 2])
async def test_a_bomb_is_refused_before_it_unfolds(
    new_gateway: Any, worker: Any, connect: Any, make_request: Any, layers: int
) -> None:
    gateway = await new_gateway(worker, max_body_bytes=1024 * 1024)
    bomb = b" " * (64 * 1024 * 1024)
    for _ in range(layers):
        bomb = gzip.compress(bomb)
    client = await connect(gateway.url)
    coding = ", ".join(["gzip"] * layers)
    await client.send(make_request(bomb, headers=(f"content-encoding: {coding}",)))
    assert (await client.answer())[0] == 413
    assert worker.received == []


async def test_of_a_field_that_stands_twice_the_worker_gets_one_of_ours(
    gateway: Any, worker: Any, connect: Any, make_request: Any
) -> None:
    client = await connect(gateway.url)
    await client.send(make_request(BODY[:-1] + b', "rid": "a", "priority": 9, "rid": "b", "priority": 99}'))
    assert (await client.answer())[0] == 200
    sent = json.loads(worker.received[0].body, object_pairs_hook=list)
    rids = [value for name, value in sent if name == "rid"]
    assert len(rids) == 1
    assert len(rids[0]) == 32
    assert [name for name, _ in sent].count("priority") == 1


@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_request_that_asks_for_http_2_as_well_keeps_its_body(
    gateway: Any, worker: Any, connect: Any, make_request: Any, pieces: int
) -> None:
    """Java's HTTP client does so with every request, and sends the body right behind."""
    asks = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQCAAAAAAIAAAAA")
    data = make_request(BODY, headers=asks)
    client = await connect(gateway.url)
    size = len(data) // pieces + 1
    for at in range(0, len(data), size):
        await client.send(data[at : at + size])
        await asyncio.sleep(0)
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert worker.received[0].json()["messages"] == json.loads(BODY)["messages"]


async def test_an_upgrade_without_a_body_is_answered_as_if_it_had_not_asked(
    gateway: Any, connect: Any, make_request: Any
) -> None:
    client = await connect(gateway.url)
    asks = ("connection: Upgrade", "upgrade: h2c")
    await client.send(make_request(b"", "/health", method="GET", headers=asks))
    assert (await client.answer())[0] == 200
