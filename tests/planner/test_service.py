"""The planner process over its socket: forecasts, plans, refusals, its end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from heddle_contracts.planning import ActiveTrajectory, Plan, PlanWorker
from heddle_contracts.predictions import ForecastBatch, StepBatch, TrajectoryOver
from heddle_contracts.steps import StepRecord
from heddle_planner.observed import Observed
from heddle_planner.predictor.history import History
from heddle_planner.predictor.observations import Trajectory
from heddle_planner.service import ServiceSettings, create_app

WAIT_S = 60.0
COMMAND = "from heddle_planner.planner_cli import app; app()"


@pytest.fixture(scope="module")
def planner() -> Iterator[httpx.Client]:
    """A planner on a free port; ends cleanly on SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "--port", "0", "--plan-ttl", "60"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        assert said["ready"]
        with httpx.Client(base_url=said["planner"], timeout=WAIT_S, trust_env=False) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def post(client: httpx.Client, path: str, body: Any) -> httpx.Response:
    return client.post(f"/planner/v1{path}", json=body)


def test_steps_are_answered_with_forecasts(planner: httpx.Client, record: Callable[..., StepRecord]) -> None:
    batch = StepBatch(steps=(record(0), record(1)))
    answer = post(planner, "/steps", batch.model_dump(mode="json")).raise_for_status()
    said = ForecastBatch.model_validate_json(answer.content)
    (forecast,) = said.forecasts
    assert (forecast.trajectory_id, forecast.step) == ("t", 1)
    assert forecast.mean >= 1
    assert said.model in ("history", "boosting")
    stats = planner.get("/planner/v1/stats").json()
    assert stats["steps_seen"] == 2


async def test_who_is_over_is_learned_from_when_the_answer_is_out(record: Callable[..., StepRecord]) -> None:
    lessons: list[Trajectory] = []
    app = create_app(Observed(History(), lessons.append), ServiceSettings())
    over = TrajectoryOver(tenant="", trajectory_id="t", finished=True, at=0.0)
    batch = StepBatch(steps=(record(0), record(0, trajectory="u")), over=(over,))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://planner") as client:
        answer = await client.post("/planner/v1/steps", json=batch.model_dump(mode="json"))
    said = ForecastBatch.model_validate_json(answer.raise_for_status().content)
    assert [one.trajectory_id for one in said.forecasts] == ["u"]
    assert [one.origin.trajectory_id for one in lessons] == ["t"]


def test_live_trajectories_are_planned_on_live_workers(
    planner: httpx.Client,
    fleet: Callable[..., list[PlanWorker]],
    active: Callable[..., list[ActiveTrajectory]],
) -> None:
    body = {
        "reason": "workers",
        "workers": [worker.model_dump() for worker in fleet(2, 1)],
        "active": [one.model_dump() for one in active(10)],
        "policy": {"admission": "unlimited"},
    }
    plan = Plan.model_validate_json(post(planner, "/plans", body).raise_for_status().content)
    assert plan.live
    assert plan.reason == "workers"
    assert plan.expires_at - plan.made_at == pytest.approx(60.0)
    assert {share.name for share in plan.shares} == {"worker-1", "worker-2"}


def test_given_lengths_need_neither_workers_nor_a_profile(planner: httpx.Client) -> None:
    asked = {"lengths": [9_000, 400, 300], "gpus": 4, "degrees": [1, 2]}
    plan = Plan.model_validate_json(post(planner, "/plans", {"asked": asked}).raise_for_status().content)
    assert plan.profile == "qwen3-8b-h100"
    assert sum(share.size for share in plan.shares) == 3


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 409, "lengths"),
        ({"asked": {"lengths": [1], "profile": "/etc/hostname"}}, 422, "profile"),
        ({"asked": {"lengths": [1]}}, 422, "gpus"),
        ({"asked": {"gpus": 8}}, 422, "gpus"),
    ],
)
def test_refusals_name_the_field(planner: httpx.Client, body: Any, status: int, field: str) -> None:
    answer = post(planner, "/plans", body)
    assert (answer.status_code, answer.json()["field"]) == (status, field)


def test_nonsense_is_refused_before_it_is_believed(planner: httpx.Client) -> None:
    before = planner.get("/planner/v1/stats").json()["steps_seen"]
    assert post(planner, "/steps", {"steps": [{"step": -1}]}).status_code == 422
    assert post(planner, "/plans", {"asked": {"lengths": [-5], "gpus": 1}}).status_code == 422
    assert planner.get("/planner/v1/stats").json()["steps_seen"] == before


def test_with_a_key_only_its_holders_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_PLANNER_KEY", "secret")
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        url = json.loads(process.stdout.readline())["planner"]
        with httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False) as client:
            assert client.get("/ready").status_code == 200
            assert post(client, "/steps", {}).status_code == 401
            answer = client.post("/planner/v1/steps", json={}, headers={"authorization": "Bearer secret"})
            assert answer.status_code == 200
    finally:
        process.terminate()
        process.wait(WAIT_S)
        process.stdout.close()


def round_processes(planner: int) -> list[int]:
    """Children of the planner that make plans, not Python's own helpers for them."""
    children = Path(f"/proc/{planner}/task/{planner}/children").read_text().split()
    return [int(one) for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "waited for in vain"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_plans_are_made_aside_by_a_process_that_can_be_lost(
    fleet: Callable[..., list[PlanWorker]], active: Callable[..., list[ActiveTrajectory]]
) -> None:
    body = {
        "reason": "workers",
        "workers": [worker.model_dump() for worker in fleet(2, 1)],
        "active": [one.model_dump() for one in active(10)],
        "policy": {"admission": "unlimited"},
    }
    command = [sys.executable, "-c", COMMAND, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["planner"]
            with httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False) as client:
                post(client, "/plans", body).raise_for_status()
                (first,) = round_processes(process.pid)
                own = os.getpriority(os.PRIO_PROCESS, process.pid)
                assert os.getpriority(os.PRIO_PROCESS, first) > own
                os.kill(first, signal.SIGKILL)
                until(lambda: not is_alive(first))
                post(client, "/plans", body).raise_for_status()
                (second,) = round_processes(process.pid)
                assert second != first
        finally:
            # However it ends, nothing of it stays behind.
            process.kill()
        until(lambda: not is_alive(second))
