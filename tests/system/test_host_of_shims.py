"""`heddle host` with real shims, whose engines are emulated, and a gateway that asks for a key."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.system

Until = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]

ENGINE = """
import os, sys
def given(name):
    return sys.argv[sys.argv.index(name) + 1]
options = ["--base-port", given("--port"), "--host", given("--host"), "--tp", given("--tp")]
os.execv(sys.executable, [sys.executable, "-m", "heddle_cli", "emulate", *options])
"""


async def fleet(parts: Any, *arguments: str) -> str:
    """What `heddle fleet` says; it has to be content."""
    part = await parts.run("fleet", *arguments)
    output, _ = await part.process.communicate()
    assert part.process.returncode == 0, part.log.read_text()
    return str(output.decode())


async def test_an_engine_comes_into_service_with_the_hosts_key_and_leaves_after_its_steps(
    parts: Any, until: Until, tmp_path: Path, unused_port: int
) -> None:
    program = tmp_path / "engine.py"
    program.write_text(ENGINE)
    keys = {"HEDDLE_ADMIN_KEYS": "secret,another"}
    gateway = await parts.gateway([], environment=keys)
    gateway.http.headers["authorization"] = "Bearer secret"
    host = await parts.run(
        *("host", "--gpus", "2", "--degrees", "2", "--port", "0", "--base-port", str(unused_port)),
        *("--gateway", gateway.url, "--advertise", "localhost"),
        *("--launch", "--model-path /m", "--engine-command", f"{sys.executable} {program}"),
        environment=keys,
    )
    url = json.loads(await host.line("ready"))["host"]

    async def is_ready() -> bool:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            [engine] = (await http.get(f"{url}/host/v1/status")).json()["engines"]
        assert engine["state"] != "failed", engine
        return bool(engine["state"] == "ready")

    await until(is_ready, "the engine ready")
    # Ready says that the gateway gives it steps, by the name that it was registered under.
    [worker] = (await gateway.get("/workers"))["items"]
    assert (worker["url"], worker["state"]) == (f"http://localhost:{unused_port}", "active")

    body = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "max_tokens": 400}
    asking = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=body))

    async def runs() -> bool:
        return bool((await gateway.get("/stats"))["steps"]["in_flight"])

    await until(runs, "a step on the engine")
    await fleet(parts, "apply", "--host", url, "--degrees", "1", "--floor", "0")
    answer = await asking
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 400
    found = [(one["url"], one["state"], one["degree"]) for one in (await gateway.get("/workers"))["items"]]
    assert found == [(f"http://localhost:{unused_port}", "active", 1)]

    said = await fleet(parts, "stop", "--host", url, "e2")
    assert "engine e2, GPUs 0: draining" in said

    async def is_gone() -> bool:
        return not (await gateway.get("/workers"))["items"]

    await until(is_gone, "the engine out of the gateway")
