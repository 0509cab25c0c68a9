"""A trajectory behind the gateway, moved in its tool gap by the admin API between two real SGLang servers."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .workers import PAGE, Answer, Worker, assert_same_answer, free_port, gateway, wait_until

NewTokens = Callable[[int], list[int]]

NEW = 24


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx.Client]:
    """A gateway without workers, whose trajectories stay at home unless somebody moves them."""
    with gateway(tmp_path, "--placement", "sticky") as http:
        yield http


def register(http: httpx.Client, worker: Worker) -> None:
    """As the worker's shim does that is told of this gateway."""
    body = {"url": worker.url, "name": worker.name, "shim_url": worker.shim_url}
    http.post("/workers", json=body).raise_for_status()

    def serves() -> bool:
        found = http.get("/admin/v1/workers").json()["items"]
        return [one["state"] for one in found if one["url"] == worker.url] == ["active"]

    wait_until(serves, f"{worker.name} in service")


def step(http: httpx.Client, trajectory: str, prompt: list[int]) -> tuple[Answer, str]:
    """One step over the gateway, and the name of the worker that ran it."""
    body = {
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": NEW, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
    }
    answer = http.post("/generate", json=body, headers={"x-heddle-trajectory-id": trajectory})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    meta = said["meta_info"]
    logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
    return (
        Answer(prompt, said["output_ids"], logprobs, meta["cached_tokens"], meta),
        answer.headers["x-heddle-worker"],
    )


def moves(http: httpx.Client, trajectory: str) -> list[dict[str, Any]]:
    query = {"trajectory_id": trajectory}
    found: list[dict[str, Any]] = http.get("/admin/v1/migrations", params=query).json()["items"]
    return found


def asked_and_ended(http: httpx.Client, trajectory: str, to: str) -> dict[str, Any]:
    """Asks for a move and waits for its end. The core gives a move as long as it expects it to take; on a
    machine that is slower than that, it is asked for again.
    """

    def ended() -> dict[str, Any] | None:
        found = moves(http, trajectory)
        if any(one["state"] in {"requested", "moving", "cancelling"} for one in found):
            return None
        if found and found[0]["fault"] != "deadline":
            return found[0]
        # Refused as long as the gateway has not shaken hands with both shims.
        answer = http.post("/admin/v1/migrations", json={"trajectory_id": trajectory, "to": to})
        assert answer.status_code in {202, 409}, answer.text
        return None

    move: dict[str, Any] = wait_until(ended, "the end of the move")
    return move


def test_step_six_runs_where_the_trajectory_was_moved_to_and_finds_its_pages(
    worker_a: Worker, worker_b: Worker, http: httpx.Client, new_tokens: NewTokens, name: str
) -> None:
    register(http, worker_a)
    prompt = new_tokens(300)
    for _ in range(5):
        last, ran_on = step(http, name, prompt)
        assert ran_on == "a"
        prompt = [*last.tokens, *new_tokens(90)]
    register(http, worker_b)
    move = asked_and_ended(http, name, "b")
    assert (move["state"], move["fault"]) == ("landed", None), move
    assert (move["from_worker"], move["to_worker"]) == ("a", "b")
    assert move["tokens_landed"] == last.full_pages
    # What others may share stays until A needs the room.
    assert worker_a.residency(last.tokens)["store"] == last.full_pages // PAGE

    moved, ran_on = step(http, name, prompt)
    assert ran_on == "b"
    assert moved.cached >= 0.95 * last.full_pages
    assert_same_answer(moved, worker_a.generate(prompt, NEW))
    assert http.get("/admin/v1/audit").json()["broken"] == []


def test_a_move_that_fails_leaves_the_trajectory_at_home(
    worker_a: Worker, worker_b: Worker, http: httpx.Client, new_tokens: NewTokens, name: str
) -> None:
    register(http, worker_a)
    last, _ = step(http, name, new_tokens(300))
    register(http, worker_b)
    worker_b.update_weights(f"{name}-only-b")
    move = asked_and_ended(http, name, "b")
    assert move["state"] == "failed", move
    prompt = [*last.tokens, *new_tokens(50)]
    stayed, ran_on = step(http, name, prompt)
    assert (ran_on, stayed.cached) == ("a", last.full_pages)
    assert http.get("/admin/v1/audit").json()["broken"] == []
    worker_a.update_weights(f"{name}-only-b")


def test_a_shim_registers_reports_and_takes_its_worker_out(
    worker_a: Worker, http: httpx.Client, tmp_path: Path
) -> None:
    """Beside an engine that somebody else started."""
    port = free_port()
    arguments = ["shim", "--engine-url", worker_a.url, "--no-kv", "--port", str(port), "--name", "beside"]
    log = tmp_path / "beside.log"
    with log.open("w") as output:
        beside = subprocess.Popen(
            [sys.executable, "-m", "heddle_cli", *arguments, "--gateway", str(http.base_url)],
            stdout=output,
            stderr=output,
        )
    try:

        def serves() -> Any:
            found = http.get("/workers").json()["workers"]
            return next((one for one in found if one["name"] == "beside" and one["is_healthy"]), None)

        wait_until(serves, "the worker that the shim registers")
        wait_until(lambda: serves()["load"] == 0 and not serves()["last_error"], "its load")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as shim:
            said = shim.get("/shim/v1/handshake").json()
            assert said["engine"]["version"] == "0.5.23"
            assert "without the page store" in said["cannot_migrate"]
            refused = shim.post("/shim/v1/priorities", json={"priorities": {"x": 1}})
            assert refused.status_code == 409
    finally:
        beside.terminate()
        assert beside.wait(120) == 0, log.read_text()
    assert http.get("/workers").json()["workers"] == []
    # The engine is not the shim's: it goes on.
    assert worker_a.generate([5] * PAGE, 1).output
