"""The byte path to one worker, against a scripted worker over a real socket."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from heddle_gateway.upstream.connection import LEGAL_MOVES, ConnectionState
from heddle_gateway.upstream.errors import (
    WorkerLost,
    WorkerOverCommitted,
    WorkerSilent,
    WorkerUnreachable,
)
from heddle_gateway.upstream.forward import Upstream
from heddle_gateway.upstream.pool import PoolLimits

Until = Callable[..., Awaitable[None]]
CHAT = b"/v1/chat/completions"
HEADERS = b"content-type: application/json\r\n"


@dataclass
class Endpoint:
    base_url: str
    api_key: str | None = None


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream(PoolLimits())
    yield made
    made.close()


async def test_a_whole_answer_arrives_with_status_headers_and_body(upstream: Upstream, worker: Any) -> None:
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b'{"a": 1}', whole=True)
    assert exchange.status == 200
    assert exchange.lines() == b"content-type: application/json\r\n"
    assert b'"Hello."' in exchange.body()
    exchange.close()
    sent = worker.received[0]
    assert (sent.method, sent.path, sent.body) == ("POST", "/v1/chat/completions", b'{"a": 1}')
    assert sent.header("host") == f"127.0.0.1:{worker.port}"


async def test_a_finished_connection_is_used_again(upstream: Upstream, worker: Any) -> None:
    for _ in range(5):
        exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
        exchange.close()
    assert worker.accepted == 1
    assert upstream.connections() == {worker.url: (0, 1)}


async def test_a_connection_the_worker_wants_closed_is_not_used_again(
    upstream: Upstream, worker: Any
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.answer(200, b"{}", {"connection": "close"})

    worker.script = script
    for _ in range(2):
        exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
        exchange.close()
    assert worker.accepted == 2


async def test_an_idle_connection_older_than_the_keepalive_is_not_used(worker: Any) -> None:
    upstream = Upstream(PoolLimits(keepalive_s=0.001))
    for _ in range(2):
        exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
        exchange.close()
        await asyncio.sleep(0.002)  # longer than the keepalive: time itself is what is tested
    assert worker.accepted == 2
    upstream.close()


async def test_a_request_that_meets_a_closing_connection_is_sent_again_once(
    upstream: Upstream, worker: Any
) -> None:
    """The worker's keep-alive runs out at the very moment a request goes out."""
    answered = 0

    async def script(request: Any, line: Any) -> None:
        nonlocal answered
        if len(worker.received) == 2:
            line.reset()
            return
        answered += 1
        await line.answer(200, b"{}")

    worker.script = script
    for _ in range(2):
        exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
        exchange.close()
    assert (answered, len(worker.received), worker.accepted) == (2, 3, 2)


async def test_a_new_connection_that_dies_is_not_tried_again(upstream: Upstream, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        line.reset()

    worker.script = script
    with pytest.raises(WorkerLost) as lost:
        await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
    assert not lost.value.answer_began
    assert len(worker.received) == 1


async def test_a_refused_connection_is_unreachable(upstream: Upstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(WorkerUnreachable, match=str(port)):
        await upstream.open(Endpoint(f"http://127.0.0.1:{port}"), CHAT, HEADERS, b"{}", whole=True)


@pytest.mark.parametrize("whole", [True, False])
async def test_a_line_cut_in_the_middle_of_a_body_is_lost_with_the_answer_begun(
    upstream: Upstream, worker: Any, whole: bool
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        line.writer.close()

    async def fetch() -> None:
        exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=whole)
        try:
            assert await exchange.read() == b"half"
            await exchange.read()
        finally:
            exchange.close()

    worker.script = script
    with pytest.raises(WorkerLost) as lost:
        await fetch()
    assert lost.value.answer_began


async def test_cancelling_before_the_headers_closes_the_line_at_once(
    upstream: Upstream, worker: Any, until: Until
) -> None:
    async def script(request: Any, line: Any) -> None:
        await request.client_left.wait()

    worker.script = script
    task = asyncio.create_task(upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True))
    await until(lambda: len(worker.received) == 1, "the request")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(worker.received[0].client_left.is_set, "the worker to see its client leave")
    assert upstream.connections() == {worker.url: (0, 0)}


async def test_leaving_a_stream_half_read_closes_the_line_at_once(
    upstream: Upstream, worker: Any, until: Until
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chunk(b"one")
        await request.client_left.wait()

    worker.script = script
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=False)
    assert await exchange.read() == b"one"
    exchange.close()
    await until(worker.received[0].client_left.is_set, "the worker to see its client leave")


async def test_stream_chunks_arrive_as_they_are_sent(upstream: Upstream, worker: Any) -> None:
    go_on = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chunk(b"one")
        await go_on.wait()
        await line.chunk(b"two")
        await line.end_stream()

    worker.script = script
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=False)
    assert await exchange.read() == b"one"
    go_on.set()
    assert await exchange.read() == b"two"
    assert await exchange.read() == b""
    exchange.close()
    assert upstream.connections() == {worker.url: (0, 1)}


async def test_a_silent_worker_is_given_up_after_the_idle_timeout(worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await request.client_left.wait()

    worker.script = script
    upstream = Upstream(PoolLimits(idle_timeout_s=0.05))
    with pytest.raises(WorkerSilent) as silent:
        await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
    assert not silent.value.answer_began
    upstream.close()


async def test_bytes_keep_a_slow_answer_alive(worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        for _ in range(6):
            await asyncio.sleep(0.05)
            await line.chunk(b"x")
        await line.end_stream()

    worker.script = script
    upstream = Upstream(PoolLimits(idle_timeout_s=0.2))
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=False)
    assert await exchange.read_rest(100) == b"xxxxxx"
    exchange.close()
    upstream.close()


async def test_what_is_no_http_is_a_lost_worker(upstream: Upstream, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.send(b"SSH-2.0-OpenSSH_9.2\r\n")

    worker.script = script
    with pytest.raises(WorkerLost, match="not HTTP"):
        await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)


async def test_interim_answers_are_passed_over(upstream: Upstream, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await line.answer(200, b"real")

    worker.script = script
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
    assert (exchange.status, exchange.body()) == (200, b"real")
    assert b"link" not in dict(exchange.headers)
    exchange.close()


async def test_a_body_without_length_ends_with_the_connection(upstream: Upstream, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nall there is")
        line.writer.close()

    worker.script = script
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
    assert exchange.body() == b"all there is"
    exchange.close()
    assert upstream.connections() == {worker.url: (0, 0)}


async def test_an_answer_that_ended_with_its_connection_is_whole_however_late_it_is_read(
    worker: Any, until: Until
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nall there is")
        line.writer.close()

    worker.script = script
    upstream = Upstream(PoolLimits(idle_timeout_s=0.05))
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=False)
    await until(lambda: worker.open_lines == 0)
    loop = asyncio.get_running_loop()
    silence_is_over = asyncio.Event()
    loop.call_later(0.2, silence_is_over.set)
    await silence_is_over.wait()
    assert await exchange.read_rest(100) == b"all there is"
    exchange.close()
    upstream.close()


async def test_bytes_behind_an_answer_close_the_connection(
    upstream: Upstream, worker: Any, until: Until
) -> None:
    go_on = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        await line.answer(200, b"{}")
        await go_on.wait()
        await line.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")

    worker.script = script
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
    exchange.close()
    go_on.set()
    await until(lambda: worker.open_lines == 0, "the line to be closed")
    worker.script = None
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
    assert exchange.status == 200
    exchange.close()


async def test_a_fast_worker_waits_for_a_slow_reader(upstream: Upstream, worker: Any, until: Until) -> None:
    sent = 0
    block = b"x" * 65536

    async def script(request: Any, line: Any) -> None:
        nonlocal sent
        await line.begin_stream()
        for _ in range(400):
            await line.chunk(block)
            sent += 1
        await line.end_stream()

    worker.script = script
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=False)
    before = -1
    while sent != before:
        before = sent
        await asyncio.sleep(0.05)
    assert sent < 400, "the worker could send everything although nobody read"
    assert len(await exchange.read_rest(400 * 65536)) == 400 * 65536
    exchange.close()


async def test_more_connections_than_allowed_are_refused_here(worker: Any, until: Until) -> None:
    async def script(request: Any, line: Any) -> None:
        await request.client_left.wait()

    worker.script = script
    upstream = Upstream(PoolLimits(max_connections=1))
    first = asyncio.create_task(upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True))
    await until(lambda: len(worker.received) == 1, "the first request")
    with pytest.raises(WorkerOverCommitted):
        await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    upstream.close()


async def test_an_abort_names_the_rid_and_carries_the_workers_key(upstream: Upstream, worker: Any) -> None:
    rid = "0123456789abcdef" * 2
    assert await upstream.abort(Endpoint(worker.url, api_key="worker-key"), rid)
    assert worker.aborts == [rid]


async def test_an_abort_at_a_dead_worker_is_only_a_no(upstream: Upstream, worker: Any) -> None:
    await worker.stop()
    assert not await upstream.abort(Endpoint(worker.url), "0" * 32)


async def test_ipv6_workers_and_path_prefixes_are_reached() -> None:
    seen: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(accept, "::1", 0)
    port = server.sockets[0].getsockname()[1]
    upstream = Upstream(PoolLimits())
    exchange = await upstream.open(Endpoint(f"http://[::1]:{port}/engine"), CHAT, b"", b"", whole=True)
    exchange.close()
    upstream.close()
    server.close()
    assert seen[0].startswith(b"POST /engine/v1/chat/completions HTTP/1.1\r\n")
    assert b"host: [::1]:%d\r\n" % port in seen[0]


async def test_proxies_of_the_environment_do_not_catch_worker_traffic(
    upstream: Upstream, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    exchange = await upstream.open(Endpoint(worker.url), CHAT, HEADERS, b"{}", whole=True)
    assert exchange.status == 200
    exchange.close()


def test_every_state_of_a_connection_has_its_moves() -> None:
    assert set(LEGAL_MOVES) == set(ConnectionState)
    assert LEGAL_MOVES[ConnectionState.CLOSED] == frozenset()
    assert all(ConnectionState.CLOSED in moves for state, moves in LEGAL_MOVES.items() if moves)
