"""Agents on two real SGLang servers on the CPU, behind a gateway; one trajectory's KV is moved between them.

``make demo-sglang``. All runs as it would on GPUs: ``heddle gateway``, and ``heddle shim --launch`` twice.
"""

import asyncio
import contextlib
import shlex
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from heddle_cli.child_process import Child
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
START_S = 420.0
STOP_S = 40.0
AGENTS, STEPS, NEW = 4, 4, 32
TASK = "def solve(numbers):\n    import os, sys\n    return sorted(numbers)\n" * 12
RESULT = "Traceback (most recent call last): File main.py, line 12, in solve: ValueError, exit code 1\n" * 4

console = Console(width=110, highlight=False)


@dataclass
class Server:
    """One SGLang with its shim."""

    name: str
    port: int
    shim_port: int

    @property
    def shim_url(self) -> str:
        return f"http://127.0.0.1:{self.shim_port}"


@dataclass
class Agent:
    """A conversation that grows by the model's answer and a tool's result."""

    name: str
    messages: list[dict[str, str]] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    async def step(self, http: httpx.AsyncClient) -> None:
        said_to_it = RESULT if self.messages else TASK
        self.messages.append({"role": "user", "content": f"{self.name} {said_to_it}"})
        body = {
            "model": "tiny",
            "messages": self.messages,
            "max_tokens": NEW,
            "temperature": 0,
            "ignore_eos": True,
        }
        began = time.monotonic()
        answer = await http.post(
            "/v1/chat/completions", json=body, headers={"x-heddle-trajectory-id": self.name}
        )
        answer.raise_for_status()
        said = answer.json()
        self.messages.append({"role": "assistant", "content": said["choices"][0]["message"]["content"]})
        usage = said["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.rows.append(
            (answer.headers["x-heddle-worker"], usage["prompt_tokens"], cached, time.monotonic() - began)
        )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def engine_options(venv: Path, server: Server) -> str:
    return shlex.join(
        [
            *("--model-path", str(venv / "tiny"), "--served-model-name", "tiny"),
            *("--host", "127.0.0.1", "--port", str(server.port), "--device", "cpu", "--dtype", "float32"),
            *("--attention-backend", "torch_native", "--page-size", "16"),
            *("--max-total-tokens", "24576", "--max-running-requests", "4"),
            *("--hicache-ratio", "2", "--hicache-mem-layout", "layer_first"),
        ]
    )


async def until_active(http: httpx.AsyncClient, count: int, children: list[Child]) -> None:
    """Waits until so many workers serve and can move KV."""
    async with asyncio.timeout(START_S):
        while True:
            for child in children:
                if child.exit_code is not None:
                    raise SystemExit(f"demo: {child.death()}")
            with contextlib.suppress(httpx.TransportError):
                active = (await http.get("/ready")).json()["workers"]["active"]
                if active >= count:
                    return
            await asyncio.sleep(0.3)


async def move(http: httpx.AsyncClient, agent: Agent, to: str) -> dict[str, Any]:
    """Asks the gateway for a move, and waits for its end."""
    query = {"trajectory_id": agent.name}
    async with asyncio.timeout(60):
        while True:
            asked = await http.post("/admin/v1/migrations", json={**query, "to": to})
            if asked.status_code == 202:
                break
            await asyncio.sleep(0.3)  # The gateway has not shaken hands with both shims yet.
        while True:
            moves = (await http.get("/admin/v1/migrations", params=query)).json()["items"]
            if moves and moves[0]["state"] in {"landed", "failed", "cancelled", "expired"}:
                found: dict[str, Any] = moves[0]
                return found
            await asyncio.sleep(0.05)


def show(agents: list[Agent], moved: Agent) -> None:
    table = Table("trajectory", "step", "worker", "prompt tokens", "of these cached", "seconds")
    for agent in agents:
        for number, (worker, prompt, cached, seconds) in enumerate(agent.rows, 1):
            style = "bold green" if agent is moved and number == len(agent.rows) else None
            row = (agent.name, str(number), worker, str(prompt), str(cached), f"{seconds:.2f}")
            table.add_row(*row, style=style)
        table.add_section()
    console.print(table)


async def demo(venv: Path, folder: Path) -> None:
    servers = [Server(name, free_port(), free_port()) for name in ("sglang-a", "sglang-b")]
    url = f"http://127.0.0.1:{free_port()}"
    children: list[Child] = []
    launcher = shlex.join([str(venv / "bin/python"), str(HERE / "launch.py")])
    try:
        gateway_port = url.rpartition(":")[2]
        database = str(folder / "history.db")
        children.append(
            await Child.start(
                "gateway",
                ["--port", gateway_port, "--database", database, "--placement", "sticky"],
                log=folder / "gateway.log",
            )
        )
        for server in servers:
            children.append(
                await Child.start(
                    "shim",
                    [
                        *("--name", server.name, "--port", str(server.shim_port), "--gateway", url),
                        *("--store", str(folder / server.name), "--store-bytes", "64M"),
                        *("--engine-command", launcher, "--engine-log", str(folder / f"{server.name}.log")),
                        *("--launch", engine_options(venv, server)),
                    ],
                    listens=True,
                    log=folder / f"{server.name}-shim.log",
                )
            )
        console.print("Starting two SGLang servers on the CPU, with their shims, and a gateway ...")
        for child in children[1:]:
            await child.ready_line(START_S)
        async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
            began = time.monotonic()
            await until_active(http, len(servers), children)
            console.print(f"Both serve after {time.monotonic() - began:.0f} s.")
            console.print(f"{AGENTS} agents take {STEPS} steps each.")
            agents = [Agent(f"agent-{number}") for number in range(1, AGENTS + 1)]
            for _ in range(STEPS):
                await asyncio.gather(*(agent.step(http) for agent in agents))
            mover = agents[0]
            home = mover.rows[-1][0]
            to = next(server.name for server in servers if server.name != home)
            console.print(f"\nIn its tool gap {mover.name} is moved from {home} to {to}:")
            moved = await move(http, mover, to)
            console.print(
                f"  {moved['state']}: {moved['tokens_landed']} tokens of KV, {moved['bytes_moved']} bytes,"
                f" {moved['seconds']:.2f} s {moved['detail']}"
            )
            await mover.step(http)
            show(agents, mover)
            where, prompt, cached, _ = mover.rows[-1]
            console.print(f"The next step ran on {where}: {cached} of {prompt} prompt tokens were cached.")
            if moved["state"] != "landed" or where != to:
                raise SystemExit("demo: the trajectory did not move; the logs are in " + str(folder))
    finally:
        for child in reversed(children):
            await child.stop(STOP_S)


def main() -> None:
    installed = subprocess.run([HERE / "install"], stdout=subprocess.PIPE, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="heddle-demo-") as folder:
        asyncio.run(demo(Path(installed.stdout.strip()), Path(folder)))


if __name__ == "__main__":
    main()
