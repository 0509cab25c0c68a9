"""Clients that stop in the middle of a request, or send it byte by byte, or never send any."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

NewGateway = Callable[..., Awaitable[Any]]

HEAD_S = 0.5


async def closed(line: Any) -> bytes:
    """All that still comes until the gateway closes the connection."""
    found = b""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            while part := await line.reader.read(65536):
                found += part
    return found


@pytest.mark.parametrize("sent", [1, 20, 60])
async def test_headers_that_stall_are_answered_408_and_the_line_is_closed(
    new_gateway: NewGateway, worker: Any, connect: Any, make_request: Any, chat_body: Any, sent: int
) -> None:
    gateway = await new_gateway(worker, head_timeout_s=HEAD_S)
    line = await connect(gateway.url)
    await line.send(make_request(chat_body())[:sent])
    assert (await closed(line)).startswith(b"HTTP/1.1 408 ")
    assert worker.received == []


async def test_headers_that_drip_are_bounded_as_a_whole(
    new_gateway: NewGateway, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    gateway = await new_gateway(worker, head_timeout_s=HEAD_S)
    line = await connect(gateway.url)
    answer = asyncio.create_task(closed(line))
    await line.send(b"POST / HTTP/1.1\r\n")
    for number in range(10_000):
        if answer.done():
            break
        try:
            await line.send(f"x-{number}: 1\r\n".encode())
        except ConnectionError:
            break
        await asyncio.sleep(HEAD_S / 10)  # slower than no pause, faster than any time-out between bytes
    # A byte that meets the closed line resets it, and the answer with it.
    assert (await answer) == b"" or answer.result().startswith(b"HTTP/1.1 408 ")
    assert answer.done()
    assert number < 9_999


async def test_a_second_request_whose_headers_stall_is_cut_off_too(
    new_gateway: NewGateway, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    gateway = await new_gateway(worker, head_timeout_s=HEAD_S)
    for first in (make_request(chat_body()), make_request({}, "/health", method="GET")):
        line = await connect(gateway.url)
        await line.send(first)
        assert (await line.answer())[0] == 200
        await line.send(first[:20])
        assert (await closed(line)).startswith(b"HTTP/1.1 408 ")


async def test_what_stalls_behind_a_running_step_does_not_cut_it(
    new_gateway: NewGateway, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    gateway = await new_gateway(worker, head_timeout_s=HEAD_S)
    release = asyncio.Event()

    async def held(request: Any, line: Any) -> None:
        await release.wait()
        await line.answer_chat()

    worker.script = held
    line = await connect(gateway.url)
    data = make_request(chat_body())
    await line.send(data + data[:20])
    await asyncio.sleep(2 * HEAD_S)  # longer than the headers behind it may take
    release.set()
    assert (await line.answer())[0] == 200
    assert (await closed(line)).startswith(b"HTTP/1.1 408 ")


async def test_a_slow_body_is_waited_for(
    new_gateway: NewGateway, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    gateway = await new_gateway(worker, head_timeout_s=HEAD_S)
    line = await connect(gateway.url)
    data = make_request(chat_body())
    body_at = data.index(b"\r\n\r\n") + 4
    await line.send(data[: body_at + 5])
    await asyncio.sleep(2 * HEAD_S)  # longer than headers may take
    await line.send(data[body_at + 5 :])
    assert (await line.answer())[0] == 200


async def test_a_connection_that_never_sends_anything_is_closed(
    new_gateway: NewGateway, worker: Any, connect: Any
) -> None:
    # The test's server keeps idle connections for uvicorn's five seconds.
    gateway = await new_gateway(worker)
    line = await connect(gateway.url)
    assert await closed(line) == b""
