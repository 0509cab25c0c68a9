"""What HTTP/1 allows clients and proxies to do: served alike on the data path and beside it."""

import asyncio
from typing import Any

import pytest


async def test_a_second_host_is_refused_on_every_path(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    client = await connect(gateway.url)
    for path, method in (("/v1/chat/completions", "POST"), ("/health", "GET")):
        await client.send(make_request(chat_body(), path, method=method, headers=("host: y",)))
        status, headers, body = await client.answer()
        assert status == 400, path
        assert b"bad_host" in body
        assert "x-request-id" in headers
    assert worker.received == []


async def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection(
    gateway: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    client = await connect(gateway.url)
    await client.send(make_request(chat_body(stream=True), version="1.0"))
    async with asyncio.timeout(10):
        head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_an_http_1_0_client_gets_a_whole_answer_with_its_length(
    gateway: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    client = await connect(gateway.url)
    await client.send(make_request(chat_body(), version="1.0"))
    status, headers, body = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert b"chat.completion" in body
    assert await client.reader.read() == b""


async def test_a_client_that_asks_first_is_told_to_go_on(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    head, _, body = make_request(chat_body(), headers=("expect: 100-continue",)).partition(b"\r\n\r\n")
    client = await connect(gateway.url)
    await client.send(head + b"\r\n\r\n")
    async with asyncio.timeout(10):
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert worker.received == []
    await client.send(body)
    assert (await client.answer())[0] == 200


async def test_a_client_that_asks_first_is_told_of_a_body_too_large(
    new_gateway: Any, worker: Any, connect: Any
) -> None:
    gateway = await new_gateway(worker, max_body_bytes=1024)
    client = await connect(gateway.url)
    await client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
        b"content-length: 5000\r\n\r\n"
    )
    assert (await client.answer())[0] == 413


@pytest.mark.parametrize("size", [7_000, 1_000_000])
async def test_a_chunked_request_is_one_body(
    new_gateway: Any, worker: Any, connect: Any, chat_body: Any, make_request: Any, size: int
) -> None:
    gateway = await new_gateway(worker, policy={"admission": "unlimited"})
    body = make_request(chat_body("x" * 300_000)).partition(b"\r\n\r\n")[2]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    client = await connect(gateway.url)
    await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for part in parts:
        await client.send(b"%x\r\n%b\r\n" % (len(part), part))
    await client.send(b"0\r\n\r\n")
    assert (await client.answer())[0] == 200
    assert len(worker.received[0].json()["messages"][0]["content"]) == 300_000


async def test_both_kinds_of_requests_wait_for_each_other_on_one_line(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    health = make_request(b"", "/health", method="GET")
    models = make_request(b"", "/v1/models", method="GET")
    chat = make_request(chat_body())
    stream = make_request(chat_body("more", stream=True))
    client = await connect(gateway.url)
    await client.send(health + chat + models + stream + stream + health)
    bodies = []
    for _ in range(6):
        status, _, body = await client.answer()
        assert status == 200
        bodies.append(body)
    marks = [None, b'"chat.completion"', b'"list"', b"[DONE]", b"[DONE]", None]
    for mark, body in zip(marks, bodies, strict=True):
        assert mark is None or mark in body


async def test_a_request_that_comes_byte_by_byte_is_served(
    gateway: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    client = await connect(gateway.url)
    for byte in make_request(chat_body()):
        await client.send(bytes((byte,)))
        await asyncio.sleep(0)
    assert (await client.answer())[0] == 200
