"""``heddle emulate`` as a process, and sixty-four workers in one."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

pytestmark = pytest.mark.system


@contextmanager
def emulating(*options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command on free ports; gives the process and the workers' URLs."""
    command = [sys.executable, "-m", "heddle_shim.emulator", "--base-port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            ready = json.loads(line)
            assert ready["ready"] is True
            yield process, ready["workers"]
        finally:
            process.kill()


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    with open(f"/proc/{process.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_cleanly_with_requests_in_flight(number: signal.Signals) -> None:
    with emulating("--tp", "2,1") as (process, urls):
        assert len(urls) == 2
        degrees = [httpx.get(url + "/server_info", trust_env=False).json()["tp_size"] for url in urls]
        assert degrees == [2, 1]
        body = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 100_000}}
        with httpx.stream("POST", urls[0] + "/generate", json=body, trust_env=False) as stream:
            lines = stream.iter_lines()
            assert next(lines)
            process.send_signal(number)
            assert process.wait(timeout=10) == 0
            assert "data: [DONE]" in list(lines)
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tp", "4,x"], "not a list of numbers"),
        (["--tp", "0"], "degrees of at least 1"),
        (["--speed", "0"], "--speed"),
        (["--profile", "/nowhere.json"], "/nowhere.json"),
        (["--page-size", "64", "--chunked-prefill-size", "32"], "chunked_prefill_size"),
    ],
)
def test_bad_options_end_it_with_a_message(options: list[str], message: str) -> None:
    command = [sys.executable, "-m", "heddle_shim.emulator", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "heddle_shim.emulator", "--base-port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


async def bare_post(url: str, path: str, body: object) -> object:
    """One request by hand: a client library would cost more than the sixty-four workers."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(payload) + payload)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    status, _, rest = answer.partition(b"\r\n")
    assert status == b"HTTP/1.1 200 OK", answer
    return json.loads(rest.partition(b"\r\n\r\n")[2])


async def test_sixty_four_workers_in_one_process_serve_a_thousand_requests_at_once() -> None:
    with emulating("--tp", ",".join(["4", "2", "1", "1"] * 16), "--speed", "50") as (process, urls):

        async def one(number: int) -> object:
            content = f"request {number} " + "word " * 500
            body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 3000}
            return await bare_post(urls[number % 64], "/v1/chat/completions", body)

        before = cpu_seconds(process)
        async with asyncio.timeout(120):
            answers = await asyncio.gather(*(one(number) for number in range(1024)))
        spent = cpu_seconds(process) - before
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {3000}  # type: ignore[index]
    # Three million tokens: work per token would take minutes of CPU, work per event takes seconds.
    assert spent < 15
