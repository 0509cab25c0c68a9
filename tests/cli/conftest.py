"""The `heddle` command as a child process, and a gateway for it to talk to."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from heddle_contracts.admin import EndReason
from heddle_contracts.history import EndedTrajectory
from heddle_contracts.steps import Outcome, StepRecord
from heddle_gateway.app import create_app
from heddle_gateway.asgi.server_protocol import GatewayProtocol
from heddle_gateway.settings import load_settings
from heddle_gateway.store.engine import open_engine
from heddle_gateway.store.step_writer import StepWriter

Heddle = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment() -> dict[str, str]:
    """This process's environment without what would set up a gateway or a client."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
    return kept | {"COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture
def heddle(environment: dict[str, str]) -> Heddle:
    """``heddle(*arguments, **variables)`` runs the command and returns what it wrote."""

    def run(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "heddle_cli", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment | more,
            check=False,
        )

    return run


def past(trajectory_id: str, number: int, **changes: object) -> StepRecord:
    fields: dict[str, object] = {
        "trajectory_id": trajectory_id,
        "tenant": "",
        "source": "header",
        "model": "m",
        "dialect": "chat",
        "step": number,
        "worker": "w1",
        "outcome": Outcome.DONE,
        "finish_reason": "tool_calls",
        "tool_names": ("bash",),
        "prompt_tokens": 100,
        "cached_tokens": 50,
        "output_tokens": 7,
        "arrived_at": 1000.0 + number,
        "ended_at": 1000.5 + number,
        "gap_before_s": 0.25,
    }
    return StepRecord.model_validate(fields | changes)


async def _fill(path: Path) -> None:
    engine = open_engine(str(path))
    steps = [past("a/b:c%2F", number) for number in range(3)] + [past("[bold]x", 5, group_id="g")]
    steps += [past(f"many-{number:03}", 10 + number) for number in range(120)]
    writer = StepWriter(engine)
    assert (
        await writer.write(steps, [EndedTrajectory("", "[bold]x", EndReason.FINISHED, 2000.0)]) == "written"
    )
    await engine.dispose()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a gateway with an admin key, no workers, a history, and one live trajectory named live/1."""
    path = tmp_path_factory.mktemp("gateway") / "history.db"
    asyncio.run(_fill(path))
    app = create_app(load_settings(database=str(path), admin_keys=["sk-admin"]))
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(app, http=GatewayProtocol, lifespan="on", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        # Without a worker the step is rejected; its trajectory goes on.
        rejected = httpx.post(
            f"{url}/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "hi"}]},
            headers={"x-heddle-trajectory-id": "live/1"},
            trust_env=False,
        )
        assert rejected.status_code == 503
        yield url
    finally:
        server.should_exit = True
        thread.join()
