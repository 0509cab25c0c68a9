"""The fleet and the emulated engine, as processes: what it is, kill -9, back again."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from heddle_gateway.fleet import EngineKind, Features, Fleet, PrioritySense, WorkerSpec, WorkerState

START_S = 60.0
"""A loaded machine starts a Python process slowly."""

pytestmark = pytest.mark.system


@dataclass(slots=True)
class Emulation:
    process: asyncio.subprocess.Process
    urls: list[str]

    async def kill(self) -> None:
        """As hard as a machine that loses power."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()


Start = Callable[..., Awaitable[Emulation]]


@pytest.fixture
async def emulate() -> AsyncIterator[Start]:
    running: list[Emulation] = []

    async def start(degrees: str, base_port: int, *more: str) -> Emulation:
        command = ["-m", "heddle_shim.emulator", "--tp", degrees, "--base-port", str(base_port), *more]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
        running.append(Emulation(process, json.loads(line)["workers"]))
        return running[-1]

    yield start
    for emulation in running:
        await emulation.kill()


def free_port_pair() -> int:
    """A port that is free together with the next one."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two free ports side by side")


async def test_emulated_workers_are_found_out_killed_and_found_again(
    emulate: Start, new_fleet: Callable[..., Fleet], listener: Any
) -> None:
    port = free_port_pair()
    first = await emulate("4,1", port, "--slots", "12")
    fleet = new_fleet()
    ids = [(await fleet.add(WorkerSpec(url))).worker_id for url in first.urls]
    facts = [(await listener.until_told("up", worker_id, 1)).more["facts"] for worker_id in ids]
    assert [one.degree for one in facts] == [4, 1]
    for one in facts:
        assert (one.kind, one.emulated, one.slots) == (EngineKind.SGLANG, True, 12)
        assert one.kv_tokens > 0
        assert one.models
        assert one.features == Features(
            abort=True,
            rid=True,
            loads=True,
            generate=True,
            pause=True,
            flush=True,
            priority=PrioritySense.HIGHER_FIRST,
        )
        assert one.preemption_threshold == 10
    told = await listener.until_told("load", ids[0], 1)
    assert told.more == {"running": 0, "waiting": 0, "kv_used": 0}

    await first.kill()
    for worker_id in ids:
        await listener.until_told("down", worker_id, 1)
        assert fleet.get(worker_id).state is WorkerState.DOWN
    await emulate("4,1", port)
    for worker_id in ids:
        await listener.until_told("up", worker_id, 2)
        assert listener.changes(worker_id) == [("up", 1), ("down", 1), ("up", 2)]
    assert fleet.stats()["task_restarts"] == 0
