"""What a lack of open files does: it is the gateway's own, and no worker answers for it."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

CONNECTIONS = 300


@pytest.mark.parametrize("stream", [False, True])
async def test_a_step_without_a_file_for_it_is_told_to_come_back_and_blames_no_worker(
    gateway: Any,
    worker: Any,
    connect: Any,
    make_request: Any,
    chat_body: Any,
    no_more_files: Any,
    stream: bool,
) -> None:
    client = await connect(gateway.url)
    with no_more_files():
        await client.send(make_request(chat_body(stream=stream)))
        status, headers, body = await client.answer()
    assert status == 503
    assert int(headers["retry-after"]) >= 1
    assert b"Too many open files" in body
    assert worker.received == []
    (view,) = gateway.parts.fleet.list()
    assert (view.state, view.passive_failures) == ("active", 0)
    assert gateway.parts.driver.worker_views()[0]["suspect_until"] is None
    await client.send(make_request(chat_body(stream=stream)))
    assert (await client.answer())[0] == 200


@pytest.mark.system
async def test_a_gateway_takes_the_open_files_that_the_system_lets_it_have(tmp_path: Path) -> None:
    """Started as a shell starts it, with few. Without that more clients than these are cut off."""
    heddle = str(Path(sys.executable).with_name("heddle"))
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", 'ulimit -Sn 128; exec "$@"', "sh"),
        *(heddle, "gateway", "--port", "0", "--database", str(tmp_path / "h.db")),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    writers = []
    try:
        async with asyncio.timeout(30):
            while b"listening on http://" not in (line := await process.stderr.readline()):
                assert line, "it ended before it listened"
        port = int(line.partition(b"listening on http://")[2].partition(b'"')[0].rpartition(b":")[2])
        async with asyncio.timeout(30):
            for _ in range(CONNECTIONS):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writers.append(writer)
                writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    finally:
        for writer in writers:
            writer.close()
        process.kill()
        await process.communicate()
