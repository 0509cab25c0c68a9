"""``heddle gateway`` as a process: how it starts, what it refuses, how it says goodbye, what it survives."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from heddle_core import replay

pytestmark = pytest.mark.system
HEDDLE = str(Path(sys.executable).with_name("heddle"))
Until = Callable[..., Awaitable[None]]
Start = Callable[..., Awaitable[Process]]
GO_ON = {"role": "user", "content": "go on"}
LISTENING = re.compile(r"listening on (http://\S+)")


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts ``heddle ...``; what still runs afterwards is killed."""
    processes: list[Process] = []

    async def run(*arguments: str, **environment: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            HEDDLE, *arguments, stdout=PIPE, stderr=PIPE, env=os.environ | environment
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line_with(process: Process, pattern: re.Pattern[str]) -> str:
    """The first group of the first line of stderr that matches."""
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while line := (await process.stderr.readline()).decode():
            if found := pattern.search(json.loads(line)["message"]):
                return found.group(1)
    raise AssertionError("the process ended without the line")


async def ready(client: httpx.AsyncClient, workers: int) -> None:
    async with asyncio.timeout(30):
        while True:
            answer = (await client.get("/ready")).json()
            if answer["workers"]["active"] == workers:
                return
            await asyncio.sleep(0.05)


def chat(number: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"task {number}"}]
    return {"model": "heddle-emulated-8b", "messages": messages, **more}


async def test_a_running_step_may_end_after_sigterm(
    start: Start, worker: Any, until: Until, tmp_path: Path
) -> None:
    go_on = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        await go_on.wait()
        await line.answer_chat()

    worker.script = script
    database = str(tmp_path / "h.db")
    process = await start("gateway", "--port", "0", "--worker", worker.url, "--database", database)
    url = await line_with(process, LISTENING)
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        await ready(client, 1)
        call = asyncio.create_task(client.post("/v1/chat/completions", json=chat(1)))
        await until(lambda: worker.received, "the step at the worker")
        process.send_signal(signal.SIGTERM)
        await line_with(process, re.compile(r"(Shutting down|Waiting for)"))
        go_on.set()
        assert (await call).status_code == 200
    async with asyncio.timeout(30):
        assert await process.wait() == 0
    restarted = await start("gateway", "--port", "0", "--database", database)
    async with httpx.AsyncClient(base_url=await line_with(restarted, LISTENING)) as client:
        (kept,) = (await client.get("/admin/v1/trajectories")).json()["items"]
        assert kept["outcomes"] == {"done": 1}


async def test_a_taken_port_is_said_and_ends_it(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await start("gateway", "--port", str(taken.getsockname()[1]))
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"cannot listen" in errors


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--order", "fastest"], 2, b"order"),
        (["--policy", "{"], 2, b"policy"),
        (["--port", "70000"], 2, b"port"),
        (["--config", "/no/such/file.toml"], 2, b"/no/such/file.toml"),
        (["--worker", "ftp://x"], 2, b"ftp"),
        (["--worker", "http://169.254.169.254"], 2, b"169.254.169.254"),
        # Known only once the name is resolved: while the gateway starts.
        (["--worker", "http://0xA9FEA9FE"], 1, b"workers: "),
        (["--database", "mysql://x/y"], 2, b"mysql"),
    ],
)
async def test_what_cannot_be_ends_it_with_the_reason(
    start: Start, arguments: list[str], code: int, words: bytes
) -> None:
    process = await start("gateway", "--port", "0", *arguments)
    async with asyncio.timeout(30):
        _, errors = await process.communicate()
    assert process.returncode == code
    assert words in errors
    assert b"Traceback" not in errors
    if code == 2:
        assert errors.startswith(b"heddle gateway: "), "a line for people, before anything is logged"


async def test_a_worker_key_is_sent_to_the_workers_named_beside_it(start: Start) -> None:
    heads: asyncio.Queue[bytes] = asyncio.Queue()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.put_nowait(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await start("gateway", "--port", "0", "--database", ":memory:", "--worker", url, "--worker-key", "k")
        async with asyncio.timeout(30):
            assert b"authorization: bearer k\r\n" in (await heads.get()).lower()


async def test_an_unknown_variable_ends_it_by_name(start: Start) -> None:
    process = await start("gateway", HEDDLE_PROT="1")
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"HEDDLE_PROT" in errors


async def test_a_worker_killed_in_mid_rollout_is_not_noticed_by_agents(start: Start, tmp_path: Path) -> None:
    """kill -9 while 24 agents are busy: every answer is 200, no trajectory is lost, nothing goes on."""
    engines = [await start("emulate", "--base-port", "0", "--speed", "20", "--slots", "8") for _ in range(2)]
    urls = []
    for engine in engines:
        assert engine.stdout is not None
        urls.append(json.loads(await engine.stdout.readline())["workers"][0])
    arguments = [word for url in urls for word in ("--worker", url)]
    journal = tmp_path / "journal.jsonl"
    gateway = await start(
        *("gateway", "--port", "0", "--database", str(tmp_path / "h.db"), "--journal", str(journal)),
        *arguments,
    )
    url = await line_with(gateway, LISTENING)
    killed = asyncio.Event()
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=64)) as client:
        await ready(client, 2)
        served_by: set[str] = set()

        async def agent(number: int) -> int:
            body = chat(number, max_tokens=200)
            for step in range(4):
                answer = await client.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, answer.text
                assert answer.headers["x-heddle-step"] == str(step)
                served_by.add(answer.headers["x-heddle-worker"])
                body["messages"] += [
                    answer.json()["choices"][0]["message"],
                    {"role": "user", "content": "go on"},
                ]
                if step == 1 and number == 0:
                    engines[0].kill()
                    killed.set()
            return number

        finished = await asyncio.gather(*(agent(number) for number in range(24)))
        assert len(finished) == 24
        assert killed.is_set()
        assert len(served_by) == 2, "the killed worker never served: nothing was tested"
        stats = (await client.get("/admin/v1/stats")).json()
        assert stats["steps"]["in_flight"] == 0
        assert stats["steps"]["ended"]["done"] == 96
        assert stats["core"]["attempts_failed_total"] > 0, "no step was on the killed worker"
        trajectories = (await client.get("/admin/v1/trajectories?limit=100")).json()["items"]
        assert len(trajectories) == 24
    gateway.terminate()
    assert await gateway.wait() == 0
    assert replay(journal.read_bytes())["events"] >= 2 * 96
