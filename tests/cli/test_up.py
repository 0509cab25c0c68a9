"""`heddle up` as a user starts it: real gateway, real emulated workers, real signals."""

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.system

WAIT_S = 60.0
Start = Callable[..., Awaitable["Running"]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Running:
    """A `heddle` process and what it has said."""

    process: Process
    said: list[str] = field(default_factory=list)

    async def until_said(self, words: str) -> str:
        """The first line of standard output that holds ``words``."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            while line := (await self.process.stdout.readline()).decode():
                self.said.append(line)
                if words in line:
                    return line
        assert self.process.stderr is not None
        pytest.fail(f"ended without saying {words!r}: {self.said} {await self.process.stderr.read()!r}")

    async def ended(self) -> tuple[int, str]:
        """Exit code and standard error."""
        async with asyncio.timeout(WAIT_S):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()

    def children(self) -> dict[str, int]:
        """Sub-command to process id."""
        found = {}
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"heddle_cli" in words:
                found[words[words.index(b"heddle_cli") + 1].decode()] = int(pid)
        return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_gone(*pids: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while any(is_alive(pid) for pid in pids):  # noqa: ASYNC110 - not our children, nothing to wait on
            await asyncio.sleep(0.02)


@pytest.fixture
async def start(tmp_path: Path, environment: dict[str, str]) -> AsyncIterator[Start]:
    """``await start(*arguments)`` runs `heddle`; what is left is killed."""
    started: list[Process] = []

    async def run(*arguments: str) -> Running:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "heddle_cli",
            *arguments,
            stdout=PIPE,
            stderr=PIPE,
            cwd=tmp_path,
            env=environment,
        )
        started.append(process)
        return Running(process)

    yield run
    for process in started:
        if process.returncode is None:
            process.terminate()
            await process.communicate()


async def test_up_serves_emulated_workers_until_ctrl_c(start: Start) -> None:
    port = free_port()
    up = await start("up", "--port", str(port), "--tp", "2,1", "--speed", "50", "--order", "fcfs")
    assert f"http://127.0.0.1:{port}/v1" in await up.until_said("base_url")
    curl = await up.until_said("curl")
    await up.until_said("Ctrl-C stops.")
    body = json.loads(curl.partition("-d '")[2].rpartition("'")[0])
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:
        answer = await http.post("/v1/chat/completions", json={**body, "max_tokens": 5})
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 5
        workers = (await http.get("/admin/v1/workers")).json()["items"]
        assert sorted((one["degree"], one["state"], one["emulated"]) for one in workers) == [
            (1, "active", True),
            (2, "active", True),
        ]
        assert (await http.get("/admin/v1/policy")).json()["order"] == "fcfs"
    children = up.children()
    assert set(children) == {"gateway", "emulate", "planner"}
    up.process.send_signal(signal.SIGINT)
    assert (await up.ended())[0] == 0
    assert not any(is_alive(pid) for pid in children.values())


async def test_up_serves_running_servers(start: Start, tmp_path: Path) -> None:
    engine = await start("emulate", "--tp", "1", "--base-port", "0", "--model", "mine")
    [worker] = json.loads(await engine.until_said("ready"))["workers"]
    port = free_port()
    config = tmp_path / "heddle.toml"
    config.write_text(f'port = {port}\n[policy]\nplacement = "least_load"\n')
    absent = f"http://127.0.0.1:{free_port()}"
    up = await start("up", "--worker", worker, "--worker", absent, "--config", str(config))
    assert "models: mine" in await up.until_said("heddle is up")
    assert f"{absent} is probing: " in await up.until_said(absent)
    await up.until_said("Ctrl-C stops.")
    assert set(up.children()) == {"gateway", "planner"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:
        assert (await http.get("/admin/v1/policy")).json()["placement"] == "least_load"
    up.process.send_signal(signal.SIGTERM)
    assert (await up.ended())[0] == 0


async def test_a_gateway_with_keys_says_where_they_go_and_shows_none(start: Start, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "heddle.toml").write_text(
        f'port = {port}\napi_keys = ["sesame"]\nadmin_keys = ["secret-of-operators"]\n'
    )
    up = await start("up", "--config", "heddle.toml", "--tp", "1", "--no-planner")
    await up.until_said("Ctrl-C stops.")
    said = "".join(up.said)
    assert "models: heddle-emulated-8b" in said
    assert "'authorization: Bearer AGENT-KEY'" in said
    assert "--key ADMIN-KEY" in said
    assert "sesame" not in said
    assert "secret" not in said


async def test_a_second_ctrl_c_does_not_wait_for_running_steps(start: Start) -> None:
    port = free_port()
    up = await start("up", "--port", str(port), "--tp", "1")
    await up.until_said("Ctrl-C stops.")
    children = up.children()
    body = {"max_tokens": 200_000, "ignore_eos": True, "stream": True}
    body |= {"model": "default", "messages": [{"role": "user", "content": "hi"}]}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with (
        httpx.AsyncClient(trust_env=False, timeout=30) as http,
        http.stream("POST", url, json=body) as answer,
    ):
        chunks = answer.aiter_raw()
        await anext(chunks)
        up.process.send_signal(signal.SIGINT)
        await up.until_said("Ctrl-C again cuts them off")
        assert is_alive(children["gateway"]), "the step runs on"
        up.process.send_signal(signal.SIGINT)
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in chunks:
                pass
    code, errors = await up.ended()
    assert code == 0
    assert "leaked" not in errors, "the planner ends in order"
    assert not any(is_alive(pid) for pid in children.values())


@pytest.mark.parametrize("command", ["up", "demo"])
@pytest.mark.parametrize(
    ("option", "value"),
    [("--tp", "a,b"), ("--tp", "4,0"), ("--tp", ""), ("--speed", "0"), ("--speed", "-1"), ("--speed", "nan")],
)
async def test_emulated_workers_that_cannot_be_are_wrong_usage(
    start: Start, command: str, option: str, value: str
) -> None:
    code, errors = await (await start(command, option, value)).ended()
    assert code == 2
    assert option in errors
    assert f"heddle {command}" in errors, "no part is started to find it out"


async def test_a_taken_port_is_said_at_once_and_nothing_is_started(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = await (await start("up", "--port", str(port))).ended()
    assert code == 1
    assert errors == (
        f"heddle: cannot listen on 127.0.0.1:{port} (Address already in use). Choose another --port.\n"
    )


async def test_an_address_of_another_machine_is_not_blamed_on_the_port(start: Start) -> None:
    up = await start("up", "--host", "192.0.2.1", "--port", "8000")
    code, errors = await up.ended()
    assert code == 1
    assert errors == (
        "heddle: cannot listen on 192.0.2.1:8000 (Cannot assign requested address). Choose another --host.\n"
    )


async def test_a_worker_that_is_not_there_is_named_with_its_error(start: Start) -> None:
    worker = f"http://127.0.0.1:{free_port()}"
    options = ("--port", str(free_port()), "--no-planner", "--worker", worker, "--start-timeout", "10")
    code, errors = await (await start("up", *options)).ended()
    assert code == 1
    assert "heddle: waited 10 s for workers (0 of 1 active)\n" in errors
    assert f"{worker} is probing: " in errors
    assert "All connection attempts failed" in errors


@pytest.mark.parametrize("victim", ["gateway", "emulate"])
async def test_a_part_that_dies_ends_up_with_an_error(start: Start, victim: str) -> None:
    up = await start("up", "--port", str(free_port()), "--tp", "1")
    await up.until_said("Ctrl-C stops.")
    children = up.children()
    os.kill(children[victim], signal.SIGKILL)
    code, errors = await up.ended()
    assert code == 1
    assert f"heddle: {victim} was killed by SIGKILL; stopping the rest" in errors
    assert not any(is_alive(pid) for pid in children.values())


async def test_a_planner_that_dies_is_started_again_and_no_step_is_lost(start: Start) -> None:
    port = free_port()
    up = await start("up", "--port", str(port), "--tp", "1", "--speed", "50")
    await up.until_said("Ctrl-C stops.")
    before = up.children()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:

        async def step(trajectory: str) -> None:
            body = {"model": "default", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
            headers = {"x-heddle-trajectory-id": trajectory}
            answer = await http.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200

        async def until_planner_is(ready: bool) -> None:
            async with asyncio.timeout(WAIT_S):
                while ((await http.get("/ready")).json()["planner"] == "ready") is not ready:
                    await step("a")
                    await asyncio.sleep(0.05)

        await until_planner_is(ready=True)
        os.kill(before["planner"], signal.SIGKILL)
        await until_planner_is(ready=False)
        await until_planner_is(ready=True)
    after = up.children()
    assert after["planner"] != before["planner"]
    assert (after["gateway"], after["emulate"]) == (before["gateway"], before["emulate"])
    up.process.send_signal(signal.SIGINT)
    assert (await up.ended())[0] == 0
    assert not any(is_alive(pid) for pid in after.values())


async def test_a_gateway_that_cannot_start_ends_up_with_its_reason(start: Start) -> None:
    up = await start("up", "--port", str(free_port()), "--tp", "1", "--order", "fastest")
    code, errors = await up.ended()
    assert code == 2
    assert "heddle gateway: policy: order: unknown variant `fastest`" in errors
    assert "heddle: gateway ended with exit code" in errors


async def test_children_do_not_outlive_an_up_that_was_killed(start: Start) -> None:
    up = await start("up", "--port", str(free_port()), "--tp", "1")
    await up.until_said("Ctrl-C stops.")
    children = up.children()
    up.process.kill()
    await up.ended()
    await until_gone(*children.values())


async def test_a_config_that_is_no_toml_is_wrong_usage(start: Start, tmp_path: Path) -> None:
    (tmp_path / "heddle.toml").write_text("port: 1")
    code, errors = await (await start("up", "--config", "heddle.toml")).ended()
    assert code == 2
    assert "heddle.toml" in errors
