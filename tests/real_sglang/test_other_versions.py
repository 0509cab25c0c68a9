"""An SGLang that is older than what Heddle was read from: served and reported, never moved from or to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .workers import Worker, wait_until

NewTokens = Callable[[int], list[int]]


class OlderWorker(Worker):
    def options(self) -> list[str]:
        return [
            *("--model-path", str(self.venv / "tiny"), "--served-model-name", "tiny"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu"),
            *("--attention-backend", "torch_native", "--dtype", "float32"),
            *("--max-total-tokens", "8192", "--max-running-requests", "2"),
        ]

    def is_ready(self, handshake: dict[str, Any]) -> bool:
        return handshake["engine"]["version"] is not None


@pytest.fixture(scope="module")
def older(in_place_of_b: Callable[..., Worker], venv: Path) -> Worker:
    worker = in_place_of_b(
        "older",
        kind=OlderWorker,
        launcher=(str(venv / "bin/python"), "-m", "sglang.launch_server"),
        environment={
            "PYTHONPATH": str(venv / "older"),
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )
    worker.ready()
    return worker


def test_it_is_served_and_reported(older: Worker, new_tokens: NewTokens) -> None:
    engine = older.handshake()["engine"]
    assert engine["version"] == "0.5.15.post1"
    assert "priority" in engine["features"]
    assert older.generate(new_tokens(50), 8).meta["finish_reason"]["type"] == "length"
    wait_until(lambda: older.report()["engine"] == "ready", "a report")
    assert older.report()["kv_tokens"] == 8192


def test_nothing_is_moved_to_it_or_from_it(
    worker_a: Worker, older: Worker, new_tokens: NewTokens, name: str
) -> None:
    said = older.handshake()
    assert said["namespace"] is None
    assert said["cannot_migrate"] == "version: SGLang 0.5.15.post1 is older than 0.5.23; update it"
    answer = worker_a.generate(new_tokens(200), 8)
    to = worker_a.move(f"{name}-1", older.shim_url, tokens=answer.tokens)
    assert (to["state"], to["fault"]) == ("failed", "engine")
    assert "older than 0.5.23" in to["detail"]
    back = older.move(f"{name}-2", worker_a.shim_url, tokens=answer.tokens)
    assert (back["state"], back["fault"]) == ("failed", "engine")
