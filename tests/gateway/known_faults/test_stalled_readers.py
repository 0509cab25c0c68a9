"""Clients that stop reading their answer: they keep no seat of a worker for ever; slow ones are served."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from heddle_gateway.asgi.client_exchange import ClientExchange
from heddle_gateway.asgi.server_protocol import GatewayProtocol
from heddle_gateway.heddle_app import HeddleApp
from heddle_gateway.settings import load_settings
from uvicorn.server import ServerState

from tests.simulate.virtual_time import run_in_virtual_time

CHAT = "/v1/chat/completions"
WRITE_S = 50.0
PART = b"x" * 65536
PARTS = 400
"""More than the system's own buffers hold."""
ONE_SLOT = {"order": "fcfs", "placement": "sticky", "admission": "slots"}


async def stream_much(client: ClientExchange) -> None:
    await client.begin(200, b"")
    for _ in range(PARTS):
        await client.part(PART)
    await client.end()


async def answer_much(client: ClientExchange) -> None:
    await client.whole(200, b"", PART * PARTS)


@pytest.fixture
def read_by(connect_to: Callable[[str, int], Awaitable[Any]], tmp_path: Path) -> Callable[..., Any]:
    """``read_by(endpoint, every_s)``: how many bytes of its answer a client had that reads so seldom, and
    when that ended.
    """

    async def read(endpoint: Any, every_s: float) -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        app = HeddleApp()
        settings = load_settings(write_timeout_s=WRITE_S, database=str(tmp_path / "history.db"))
        app.open_door(settings, {CHAT: endpoint})
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        config.load()
        state = ServerState()
        server = await loop.create_server(
            lambda: GatewayProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        async with server:
            line = await connect_to(*server.sockets[0].getsockname())
            await line.send(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
            had = 0
            with contextlib.suppress(ConnectionError):
                while had < PARTS * len(PART):
                    await asyncio.sleep(every_s)
                    part = await line.reader.read(1024 * 1024)
                    if not part:
                        break
                    had += len(part)
            line.leave()
        return had, loop.time()

    return read


@pytest.mark.parametrize("endpoint", [stream_much, answer_much])
def test_a_client_that_takes_nothing_is_cut_off(read_by: Any, endpoint: Any) -> None:
    had, _ = run_in_virtual_time(read_by(endpoint, 3 * WRITE_S))
    assert had < PARTS * len(PART)


@pytest.mark.parametrize("endpoint", [stream_much, answer_much])
def test_a_client_that_reads_slowly_has_its_whole_answer(read_by: Any, endpoint: Any) -> None:
    had, ended_at = run_in_virtual_time(read_by(endpoint, WRITE_S / 10))
    assert had >= PARTS * len(PART)
    assert ended_at > 10 * WRITE_S, "it was done before any time-out: nothing was tested"


async def test_the_seat_of_a_client_that_reads_nothing_goes_to_another_agent(
    new_gateway: Any, worker: Any, until: Any, make_request: Any, chat_body: Any
) -> None:
    worker.features["max_running_requests"] = 1

    async def script(request: Any, line: Any) -> None:
        if not request.json().get("stream"):
            await line.answer_chat()
            return
        await line.begin_stream()
        while not request.client_left.is_set():
            await line.chat_event({"content": "x" * 50_000})

    worker.script = script
    gateway = await new_gateway(worker, policy=ONE_SLOT, write_timeout_s=0.3)
    at = urlsplit(gateway.url)
    with socket.create_connection((at.hostname, at.port)) as stalled:
        stalled.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(stalled, make_request(chat_body(stream=True)))
        await until(lambda: worker.received, "the stream at the worker")
        assert (await gateway.chat("another agent")).status_code == 200
    assert worker.aborts == [worker.received[0].json()["rid"]]
    outcomes = sorted(record.outcome for record in await gateway.records(2))
    assert outcomes == ["aborted", "done"]
