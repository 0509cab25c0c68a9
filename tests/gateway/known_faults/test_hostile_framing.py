"""Bytes on either line that a reader before us, or the parser behind the short way, would take otherwise."""

import asyncio
import contextlib
import json
import logging
from typing import Any

import pytest

PATH = "/v1/chat/completions"


async def rest_of(line: Any) -> bytes:
    """What comes until the gateway closes the connection."""
    found = b""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            while part := await line.reader.read(65536):
                found += part
    return found


@pytest.mark.parametrize(
    "request_line",
    [
        "POST /t/caf\xc3\xa9/v1/chat/completions HTTP/1.1",
        "POST /v1/chat/completions?session_id=caf\xc3\xa9 HTTP/1.1",
        f"POST {PATH}?a={'a' * 70_000} HTTP/1.1",
    ],
    ids=["path", "query", "length"],
)
async def test_a_target_that_is_no_url_is_a_bad_request(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any, request_line: str, caplog: Any
) -> None:
    data = make_request(chat_body())
    client = await connect(gateway.url)
    await client.send(request_line.encode("latin-1") + data[data.index(b"\r\n") :])
    assert (await rest_of(client)).startswith(b"HTTP/1.1 400 ")
    assert worker.received == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_long_query_that_is_still_a_url_is_served(
    gateway: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    client = await connect(gateway.url)
    await client.send(make_request(chat_body(), f"{PATH}?a={'a' * 20_000}"))
    assert (await client.answer())[0] == 200


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
async def test_a_line_that_ends_in_lf_alone_is_no_line(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any, ending: bytes
) -> None:
    """A proxy in front may have passed it on as a part of a value, and so a header that it would take off."""
    data = make_request(chat_body(), headers=("x-note: aENDx-heddle-group: injected",))
    client = await connect(gateway.url)
    await client.send(data.replace(b"END", ending))
    if ending == b"\n":
        assert (await rest_of(client)).startswith(b"HTTP/1.1 400 ")
        assert worker.received == []
    else:
        assert (await client.answer())[0] == 200


@pytest.mark.parametrize("path", [PATH, "/v1/models"])
@pytest.mark.parametrize(
    ("start", "more"),
    [(b"0\r\n", b"x-t: 1\r\n" * 8000), (b"0\r\nx-t: ", b"a" * 64_000), (b"5;", b"a" * 64_000)],
    ids=["trailers", "one trailer", "chunk extension"],
)
async def test_what_never_ends_behind_a_body_is_cut_off(
    gateway: Any, connect: Any, path: str, start: bytes, more: bytes
) -> None:
    client = await connect(gateway.url)
    await client.send(
        b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n" % path.encode()
    )
    await client.send(start)

    async def send_on() -> None:
        for _ in range(200):
            await client.send(more)

    with pytest.raises(ConnectionError):
        await send_on()


async def test_trailers_of_a_chunked_body_are_passed_over(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    body = make_request(chat_body()).partition(b"\r\n\r\n")[2]
    client = await connect(gateway.url)
    await client.send(b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % PATH.encode())
    await client.send(b"%x\r\n%b\r\n0\r\nx-late: 1\r\n\r\n" % (len(body), body))
    assert (await client.answer())[0] == 200
    assert worker.received[0].header("x-late") is None


async def test_who_was_refused_before_being_told_to_go_on_gets_no_second_answer_there(
    new_gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    """The next request would be taken for the body that was never sent."""
    gateway = await new_gateway(worker, max_body_bytes=1024)
    client = await connect(gateway.url)
    await client.send(
        b"POST %b HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5000\r\n\r\n" % PATH.encode()
    )
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (413, "close")
    assert await rest_of(client) == b""


async def test_an_http_1_0_client_is_not_told_to_go_on(
    gateway: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    client = await connect(gateway.url)
    await client.send(make_request(chat_body(), version="1.0", headers=("expect: 100-continue",)))
    assert (await client.answer())[0] == 200


async def test_what_follows_a_request_to_upgrade_is_not_its_body(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    asks = ("connection: Upgrade", "upgrade: h2c")
    client = await connect(gateway.url)
    await client.send(make_request(chat_body(), headers=asks) + make_request(chat_body("more")))
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert [request.json()["messages"][0]["content"] for request in worker.received] == ["hi"]


@pytest.mark.parametrize(("path", "method", "status"), [("/health", "GET", 200), ("/health", "POST", 405)])
async def test_a_websocket_is_not_opened_and_the_request_is_answered(
    gateway: Any, connect: Any, make_request: Any, path: str, method: str, status: int
) -> None:
    asks = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13")
    client = await connect(gateway.url)
    await client.send(make_request(b"", path, method=method, headers=asks))
    assert (await client.answer())[0] == status


@pytest.mark.parametrize(
    "noise", [b"\x00\x01\r\n\r\n", b"POST / HTTP/1.1\r\nx: " + b"a" * 1_000_000], ids=["400", "431"]
)
async def test_what_is_no_http_is_not_answered_in_the_middle_of_a_stream(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any, noise: bytes
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chat_event({"content": "a"})
        await request.client_left.wait()

    worker.script = script
    client = await connect(gateway.url)
    await client.send(make_request(chat_body(stream=True)))
    async with asyncio.timeout(10):
        await client.reader.readuntil(b"}\n\n\r\n")
    with contextlib.suppress(ConnectionError):
        await client.send(noise)
    assert await rest_of(client) == b""


@pytest.mark.parametrize("path", [PATH, "/v1/models"])
async def test_a_body_that_is_no_chunked_one_is_a_bad_request(gateway: Any, connect: Any, path: str) -> None:
    client = await connect(gateway.url)
    await client.send(
        b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnone\r\n" % path.encode()
    )
    assert (await rest_of(client)).startswith(b"HTTP/1.1 400 ")


# ------------------------------------------------------------------ the worker's line


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 099 Odd\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\nx-a: b\ncontent-length: 2\n\n{}",
    ],
    ids=["another protocol", "status", "bare LF"],
)
async def test_an_answer_that_is_none_is_a_lost_worker_and_no_fault_of_ours(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any, answer: bytes, caplog: Any
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.send(answer)

    worker.script = script
    client = await connect(gateway.url)
    await client.send(make_request(chat_body()))
    status, _, body = await client.answer()
    assert status == 503
    assert json.loads(body)["error"]["code"] == "attempts_exhausted"
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_what_a_workers_connection_header_names_stays_here(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.answer(200, b"{}", {"connection": "x-hop, keep-alive", "x-hop": "1", "x-kept": "1"})

    worker.script = script
    client = await connect(gateway.url)
    await client.send(make_request(chat_body()))
    _, headers, _ = await client.answer()
    assert "x-hop" not in headers
    assert headers["x-kept"] == "1"
