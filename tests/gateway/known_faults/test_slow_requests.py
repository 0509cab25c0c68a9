"""Clients that stop in the middle of a request, or send it byte by byte, or never send any.

All but the first on simulated time: the server's protocol and its clients on one loop, and an endpoint that
answers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from heddle_gateway.asgi.client_exchange import ClientExchange
from heddle_gateway.asgi.request_body import read_body
from heddle_gateway.asgi.server_protocol import GatewayProtocol
from heddle_gateway.heddle_app import HeddleApp
from heddle_gateway.settings import load_settings
from uvicorn.server import ServerState

from tests.simulate.virtual_time import run_in_virtual_time

NewGateway = Callable[..., Awaitable[Any]]
Endpoint = Callable[[ClientExchange], Awaitable[None]]
Connect = Callable[[], Awaitable[Any]]
Served = Callable[..., contextlib.AbstractAsyncContextManager[Connect]]

HEAD_S = 60.0
IDLE_S = 75.0
CHAT = "/v1/chat/completions"


async def healthy() -> dict[str, str]:
    return {}


async def answer_ok(client: ClientExchange) -> None:
    await read_body(client.next_part, client.headers)
    await client.whole(200, b"", b"{}")


@pytest.fixture
def served(connect_to: Callable[[str, int], Awaitable[Any]], tmp_path: Path) -> Served:
    """``async with served(endpoint) as connect``: the protocol on the running loop, before this endpoint."""

    @contextlib.asynccontextmanager
    async def serve(endpoint: Endpoint = answer_ok) -> AsyncIterator[Connect]:
        app = HeddleApp()
        app.add_api_route("/health", healthy, methods=["GET"])
        settings = load_settings(head_timeout_s=HEAD_S, database=str(tmp_path / "history.db"))
        app.open_door(settings, {CHAT: endpoint})
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_keep_alive=int(IDLE_S))
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: GatewayProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        lines = []

        async def connect() -> Any:
            lines.append(await connect_to(*server.sockets[0].getsockname()))
            return lines[-1]

        async with server:
            yield connect
            for line in lines:
                line.leave()

    return serve


async def closed(line: Any) -> bytes:
    """All that still comes until the gateway closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := await line.reader.read(65536):
            found += part
    return found


@pytest.mark.parametrize("sent", [1, 20, 60])
async def test_headers_that_stall_are_answered_408_and_the_line_is_closed(
    new_gateway: NewGateway, worker: Any, connect: Any, make_request: Any, chat_body: Any, sent: int
) -> None:
    gateway = await new_gateway(worker, head_timeout_s=0.5)
    line = await connect(gateway.url)
    await line.send(make_request(chat_body())[:sent])
    async with asyncio.timeout(30):
        assert (await closed(line)).startswith(b"HTTP/1.1 408 ")
    assert worker.received == []


def test_headers_that_drip_are_bounded_as_a_whole(served: Served) -> None:
    async def main() -> tuple[bytes, float]:
        async with served() as connect:
            line = await connect()
            answer = asyncio.create_task(closed(line))
            await line.send(b"POST / HTTP/1.1\r\n")
            number = 0
            while not answer.done():
                number += 1
                with contextlib.suppress(ConnectionError):
                    await line.send(f"x-{number}: 1\r\n".encode())
                # Faster than any time-out between bytes.
                await asyncio.sleep(HEAD_S / 10)
            return await answer, asyncio.get_running_loop().time()

    said, ended_at = run_in_virtual_time(main())
    # A byte that meets the closed line resets it, and the answer with it.
    assert said == b"" or said.startswith(b"HTTP/1.1 408 ")
    assert HEAD_S <= ended_at <= 1.2 * HEAD_S


@pytest.mark.parametrize(("method", "path"), [("POST", CHAT), ("GET", "/health")])
def test_a_second_request_whose_headers_stall_is_cut_off_too(
    served: Served, make_request: Any, method: str, path: str
) -> None:
    async def main() -> tuple[int, bytes, float]:
        async with served() as connect:
            line = await connect()
            first = make_request({}, path, method=method)
            await line.send(first)
            status, _, _ = await line.answer()
            await line.send(first[:20])
            return status, await closed(line), asyncio.get_running_loop().time()

    status, said, ended_at = run_in_virtual_time(main())
    assert status == 200
    assert said.startswith(b"HTTP/1.1 408 ")
    assert ended_at == pytest.approx(HEAD_S)


def test_what_stalls_behind_a_running_step_does_not_cut_it(served: Served, make_request: Any) -> None:
    async def main() -> tuple[int, bytes, float]:
        async def slow(client: ClientExchange) -> None:
            # Longer than the headers behind it may take.
            await asyncio.sleep(2 * HEAD_S)
            await answer_ok(client)

        async with served(slow) as connect:
            line = await connect()
            data = make_request({})
            await line.send(data + data[:20])
            head = await line.reader.readuntil(b"\r\n\r\n")
            await line.reader.readexactly(2)
            return int(head.split()[1]), await closed(line), asyncio.get_running_loop().time()

    status, said, ended_at = run_in_virtual_time(main())
    assert status == 200
    assert said.startswith(b"HTTP/1.1 408 ")
    assert ended_at == pytest.approx(3 * HEAD_S), "they have their time once they could be answered"


def test_a_slow_body_is_waited_for(served: Served, make_request: Any) -> None:
    async def main() -> int:
        async with served() as connect:
            line = await connect()
            data = make_request({"messages": []})
            body_at = data.index(b"\r\n\r\n") + 4
            await line.send(data[: body_at + 5])
            await asyncio.sleep(10 * HEAD_S)
            await line.send(data[body_at + 5 :])
            head = await line.reader.readuntil(b"\r\n\r\n")
            return int(head.split()[1])

    assert run_in_virtual_time(main()) == 200


def test_a_connection_that_never_sends_anything_is_closed(served: Served) -> None:
    async def main() -> tuple[bytes, float]:
        async with served() as connect:
            return await closed(await connect()), asyncio.get_running_loop().time()

    said, ended_at = run_in_virtual_time(main())
    assert said == b""
    assert ended_at == pytest.approx(IDLE_S)
