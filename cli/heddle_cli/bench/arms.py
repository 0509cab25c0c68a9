"""The arms of the gateway benchmark: the engine asked directly, Heddle before it, a peer before it."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

import httpx

from heddle_cli.bench import peer_router
from heddle_cli.bench.errors import BenchError
from heddle_cli.bench.scenarios import PLAIN_TOKENS
from heddle_cli.bench.server_process import ServerProcess, free_port


class ArmName(StrEnum):
    """Who answers."""

    DIRECT = "direct"
    HEDDLE = "heddle"
    PEER = peer_router.NAME


@dataclass(frozen=True, slots=True)
class Arms:
    """Running servers; `ServerProcess` of the direct arm is the mock engine itself."""

    servers: dict[ArmName, ServerProcess]
    versions: dict[str, str]

    def set_pace(self, chunk_delay_us: int) -> None:
        """Tells the mock engine how long to pause before each event of a stream."""
        url = f"{self.servers[ArmName.DIRECT].url}/mock/pace"
        answer = httpx.post(url, json={"chunk_delay_us": chunk_delay_us}, trust_env=False)
        if answer.status_code != httpx.codes.OK:
            raise BenchError(f"The mock engine refused a pace of {chunk_delay_us} us: {answer.text}")


def _upstream(binary: Path, folder: Path, stream_chunks: int) -> ServerProcess:
    port = free_port()
    command: list[str | Path] = [binary, "upstream", "--port", str(port), "--tokens", str(PLAIN_TOKENS)]
    command += ["--stream-tokens", str(stream_chunks)]
    return ServerProcess("upstream", command, f"http://127.0.0.1:{port}", folder)


def _heddle(worker_url: str, folder: Path) -> ServerProcess:
    """The gateway with its defaults: identity, history in SQLite (in `folder`) and metrics are on."""
    port = free_port()
    command = [sys.executable, "-m", "heddle_cli", "gateway", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker", worker_url]
    env = {key: value for key, value in os.environ.items() if not key.startswith("HEDDLE_")}
    return ServerProcess("heddle", command, f"http://127.0.0.1:{port}", folder, env)


def _peer(worker_url: str, folder: Path) -> ServerProcess:
    port = free_port()
    python = peer_router.ensure_installed()
    command = peer_router.command(python, port=port, metrics_port=free_port(), worker_url=worker_url)
    return ServerProcess(peer_router.NAME, command, f"http://127.0.0.1:{port}", folder)


def _python() -> str:
    """Version and how it was built: without optimisation by profile, code takes a quarter longer."""
    optimised = "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS"))
    return sys.version.split()[0] + ("" if optimised else " (built without optimisation)")


@contextmanager
def running(binary: Path, folder: Path, *, with_peer: bool, stream_chunks: int) -> Iterator[Arms]:
    """Starts every arm's server and stops them all at the end, also when one of them does not start."""
    versions = {"heddle": version("heddle-gateway"), "python": _python()}
    with ExitStack() as stack:
        upstream = stack.enter_context(_upstream(binary, folder, stream_chunks))
        servers = {
            ArmName.DIRECT: upstream,
            ArmName.HEDDLE: stack.enter_context(_heddle(upstream.url, folder)),
        }
        if with_peer:
            servers[ArmName.PEER] = stack.enter_context(_peer(upstream.url, folder))
            versions[peer_router.NAME] = peer_router.VERSION
        yield Arms(servers, versions)
