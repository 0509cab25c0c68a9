"""What a step costs more at a gateway that asks its leader: two gateways of one namespace, one agent at each.

    .venv/bin/python benchmarks/bench_follower.py [--steps 3000] [--json out/follower.json]

A Redis, an emulated worker that answers at once, and two gateways are started, each a process. One agent asks
the leader and the follower in turn, over a connection kept to each: untagged conversations of 8 steps, one
token an answer. So both arms have the same load on the machine at the same time, and only their difference
means something.
"""

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

STEPS_A_TALK = 8
START_S = 60.0
WARM_UP = 100
TARGET_MS = 1.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def process(folder: Path, *command: str) -> Iterator[None]:
    with (folder / f"{Path(command[0]).name}-{time.monotonic_ns()}.log").open("wb") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        yield
    finally:
        started.terminate()
        started.wait(START_S)


def until_ready(port: int, **wanted: object) -> dict[str, Any]:
    """What /ready says once it says this."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/ready")
            said: dict[str, Any] = json.loads(connection.getresponse().read())
            if said["ready"] and wanted.items() <= said.items():
                return said
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.05)
    raise SystemExit(f"the gateway on port {port} does not become {wanted}")


class Agent:
    """One connection to one gateway; ``seconds`` of each step."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._talk: list[Any] = []
        self._talks = 0
        self.seconds: list[float] = []

    def step(self) -> None:
        number = len(self._talk) // 2
        if number == STEPS_A_TALK or not self._talk:
            self._talks += 1
            number = 0
            self._talk = [
                {"role": "user", "content": f"Task {self._talks} of port {self._connection.port}. " * 20}
            ]
        body = json.dumps({"model": "bench", "messages": self._talk, "max_tokens": 1}).encode()
        began = time.perf_counter()
        self._connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = self._connection.getresponse()
        answer = response.read()
        self.seconds.append(time.perf_counter() - began)
        if response.status != 200 or response.headers["x-heddle-step"] != str(number):
            raise SystemExit(
                f"{response.status}, step {response.headers['x-heddle-step']} for {number}: {answer!r}"
            )
        self._talk += [
            json.loads(answer)["choices"][0]["message"],
            {"role": "user", "content": "Go on. " * 30},
        ]


def measured(steps: int) -> dict[str, Any]:
    redis = shutil.which("redis-server")
    if redis is None:
        raise SystemExit("redis-server is not installed")
    heddle = (sys.executable, "-m", "heddle_cli")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heddle-bench-follower-")))
        redis_port, worker_port, *ports = (free_port() for _ in range(4))
        stack.enter_context(process(folder, redis, "--port", str(redis_port), "--save", ""))
        emulate = ("emulate", "--base-port", str(worker_port), "--speed", "1000", "--model", "bench")
        stack.enter_context(process(folder, *heddle, *emulate))
        for port, role in zip(ports, ("leader", "follower"), strict=True):
            options = (
                "--redis",
                f"redis://127.0.0.1:{redis_port}/0",
                "--database",
                str(folder / f"{port}.db"),
            )
            worker = ("--worker", f"http://127.0.0.1:{worker_port}")
            stack.enter_context(process(folder, *heddle, "gateway", "--port", str(port), *options, *worker))
            until_ready(port, role=role)
        agents = [Agent(port) for port in ports]
        for _ in range(WARM_UP + steps):
            for agent in agents:
                agent.step()
    leader, follower = (sorted(agent.seconds[WARM_UP:]) for agent in agents)

    def milliseconds(seconds: list[float], share: float) -> float:
        return 1e3 * seconds[min(len(seconds) - 1, int(share * len(seconds)))]

    pairs = zip(agents[0].seconds[WARM_UP:], agents[1].seconds[WARM_UP:], strict=True)
    return {
        "steps": steps,
        "leader_p50_ms": milliseconds(leader, 0.5),
        "leader_p99_ms": milliseconds(leader, 0.99),
        "follower_p50_ms": milliseconds(follower, 0.5),
        "follower_p99_ms": milliseconds(follower, 0.99),
        "added_p50_ms": 1e3 * statistics.median(after - before for before, after in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="steps at each gateway")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    found = measured(options.steps)
    for name, value in found.items():
        print(f"{name:18} {value:8.3f}" if isinstance(value, float) else f"{name:18} {value:8}")
    print(
        f"target: added_p50_ms below {TARGET_MS}: {'met' if found['added_p50_ms'] < TARGET_MS else 'MISSED'}"
    )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
