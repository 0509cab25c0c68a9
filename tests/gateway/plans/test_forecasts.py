"""Forecasts in the tool gap: what they change, and that nothing a planner does costs a step."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from heddle_gateway.app import create_app
from heddle_gateway.settings import load_settings

SIXTY_FOUR_BIT_NONSENSE = 10**400


async def say(gateway: Any, trajectory: str, content: str = "hi") -> None:
    answer = await gateway.chat(content, headers={"x-heddle-trajectory-id": trajectory})
    assert answer.status_code == 200, answer.text


def remaining(gateway: Any, trajectory: str) -> float:
    driver = gateway.parts.driver
    (live,) = driver.directory.named(trajectory)
    return float(driver.trajectory_view(live)["remaining"])


async def planner_metrics(gateway: Any) -> dict[str, float]:
    text = (await gateway.client.get("/metrics")).text
    lines = (line.split() for line in text.splitlines() if line.startswith("heddle_planner_"))
    return {name.removeprefix("heddle_planner_"): float(value) for name, value in lines}


async def test_a_forecast_of_the_last_step_is_the_cores_estimate_in_the_tool_gap(
    new_gateway: Any, worker: Any, fake_planner: Any, forecasting: Any, until: Any, tmp_path: Path
) -> None:
    fake_planner.answer = forecasting(mean=7_777.0, sigma=0.25)
    journal = tmp_path / "journal.jsonl"
    gateway = await new_gateway(worker, planner=fake_planner.url, journal_path=journal)
    await say(gateway, "a")
    await until(lambda: remaining(gateway, "a") == 7_777, "the forecast to arrive")
    ready = (await gateway.client.get("/ready")).json()
    assert (ready["ready"], ready["planner"]) == (True, "ready")
    (step,) = fake_planner.steps
    assert (step["trajectory_id"], step["step"], step["output_tokens"]) == ("a", 0, 3)
    gateway.parts.driver.take_journal()
    metrics = await planner_metrics(gateway)
    assert (metrics["forecasts_applied_total"], metrics["up"]) == (1.0, 1.0)


async def test_forecasts_change_who_runs_next_and_the_journal_says_so(
    new_gateway: Any, worker: Any, fake_planner: Any, until: Any, tmp_path: Path
) -> None:
    """Two trajectories wait for one slot: the one with more to come is sent first, whoever came first."""
    lengths = {"short": 10.0, "long": 90_000.0, "busy": 50.0}

    async def answer(path: str, body: dict[str, Any]) -> Any:
        steps = body["steps"]
        named = [(one["tenant"], one["trajectory_id"], one["step"]) for one in steps]
        said = [
            {"tenant": tenant, "trajectory_id": name, "step": step, "mean": lengths[name], "sigma": 0.1}
            for tenant, name, step in named
        ]
        return {"forecasts": said, "model": "fake"}

    fake_planner.answer = answer
    worker.features["max_running_requests"] = 1
    path = tmp_path / "journal.jsonl"
    gateway = await new_gateway(
        worker,
        planner=fake_planner.url,
        journal_path=path,
        auto_plan=False,
        policy={"max_over_send": 0, "admission": "unlimited"},
    )
    for name in lengths:
        await say(gateway, name)
    await until(lambda: all(remaining(gateway, one) == lengths[one] for one in lengths), "forecasts")
    gate, order = asyncio.Event(), []

    async def hold(request: Any, line: Any) -> None:
        order.append(request.json()["messages"][0]["content"])
        await gate.wait()
        await line.answer_chat()

    worker.script = hold
    tasks = [asyncio.create_task(say(gateway, "busy", "busy"))]
    await until(lambda: order == ["busy"], "the slot to be taken")
    tasks += [asyncio.create_task(say(gateway, name, name)) for name in ("short", "long")]
    await until(lambda: gateway.parts.driver.stats()["steps_held_slot"] == 2, "both to wait")
    gate.set()
    await asyncio.gather(*tasks)
    assert order == ["busy", "long", "short"]
    await until(lambda: path.exists() and '"predicted"' in path.read_text(), "the journal")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    said = [event for event in events if "predicted" in json.dumps(event)]
    assert len(said) >= 3


async def test_forecasts_of_more_than_all_the_kv_hold_nobody_while_no_step_runs(
    new_gateway: Any, worker: Any, fake_planner: Any, forecasting: Any, until: Any
) -> None:
    """A planner that has learned little may say so of everybody; the worker has 100,000 tokens."""
    fake_planner.answer = forecasting(mean=220_000.0, sigma=3.0)
    gateway = await new_gateway(worker, planner=fake_planner.url, auto_plan=False)
    names = [f"run-{number}" for number in range(8)]
    for name in names:
        await say(gateway, name)
        await until(lambda name=name: remaining(gateway, name) > 200_000, "the forecast to arrive")
    assert gateway.parts.driver.stats()["trajectories_in_tool_gap"] == len(names)


@pytest.mark.parametrize(
    "fields",
    [
        {"mean": float("nan")},
        {"mean": -5.0},
        {"mean": 1e12},
        {"mean": SIXTY_FOUR_BIT_NONSENSE},
        {"mean": "many"},
        {"mean": True},
        {"sigma": float("inf")},
        {"sigma": 9.0},
        {"sigma": None},
        {"step": "last"},
        {"trajectory_id": 7},
    ],
    ids=str,
)
async def test_a_forecast_that_cannot_be_is_counted_and_changes_nothing(
    new_gateway: Any, worker: Any, fake_planner: Any, forecasting: Any, until: Any, fields: Any
) -> None:
    fake_planner.answer = forecasting(**fields)
    gateway = await new_gateway(worker, planner=fake_planner.url)
    await say(gateway, "a")
    before = remaining(gateway, "a")
    feed = gateway.parts.planning.feed
    await until(lambda: feed.refused == 1, "the forecast to be refused")
    assert (remaining(gateway, "a"), feed.applied) == (before, 0)
    assert (await gateway.client.get("/ready")).json()["planner"] == "nonsense"
    await say(gateway, "a")
    assert gateway.parts.driver.audit() == []


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"forecasts": {"a": 1}}', b""], ids=repr)
async def test_an_answer_that_is_none_costs_no_step(
    new_gateway: Any, worker: Any, fake_planner: Any, until: Any, body: bytes
) -> None:
    async def answer(path: str, posted: dict[str, Any]) -> Any:
        return body

    fake_planner.answer = answer
    gateway = await new_gateway(worker, planner=fake_planner.url)
    for _ in range(3):
        await say(gateway, "a")
    await until(lambda: gateway.parts.planning.keeper.planner_state == "nonsense", "distrust")


async def test_a_planner_that_hangs_delays_nothing_and_is_called_slow(
    new_gateway: Any, worker: Any, fake_planner: Any, until: Any
) -> None:
    async def never(path: str, body: dict[str, Any]) -> Any:
        await asyncio.Event().wait()

    fake_planner.answer = never
    gateway = await new_gateway(worker, planner=fake_planner.url, planner_timeout_s=0.2)
    for number in range(20):
        await say(gateway, f"t{number}")
    client = gateway.parts.planning.client
    await until(lambda: client.state == "slow" and client.pause_s > 0, "the breaker to open")
    ready = (await gateway.client.get("/ready")).json()
    assert (ready["ready"], ready["planner"]) == (True, "slow")
    await say(gateway, "t0")
    assert gateway.at_rest()


async def test_a_planner_that_was_killed_is_used_again_when_it_is_back(
    new_gateway: Any, worker: Any, fake_planner: Any, forecasting: Any, until: Any
) -> None:
    gateway = await new_gateway(worker, planner=fake_planner.url)
    await say(gateway, "a")
    await until(lambda: remaining(gateway, "a") == 500, "a forecast")
    await fake_planner.stop()
    for number in range(5):
        await say(gateway, f"while-away-{number}")
    await until(lambda: gateway.parts.planning.keeper.planner_state == "away", "its absence to be noticed")
    assert (await planner_metrics(gateway))["up"] == 0.0
    fake_planner.answer = forecasting(mean=900.0)
    await fake_planner.start()
    await until(lambda: remaining(gateway, "while-away-4") == 900, "what was kept to be sent")
    assert gateway.parts.planning.keeper.planner_state == "ready"
    sent = {step["trajectory_id"] for step in fake_planner.steps}
    assert {f"while-away-{number}" for number in range(5)} <= sent, "nothing is lost in the meantime"


async def test_a_forecast_that_a_later_step_has_overtaken_is_late(
    new_gateway: Any, worker: Any, fake_planner: Any, until: Any
) -> None:
    gate = asyncio.Event()
    asked: list[dict[str, Any]] = []

    async def slow(path: str, body: dict[str, Any]) -> Any:
        asked.extend(body["steps"])
        await gate.wait()
        named = [{**step, "mean": 123.0, "sigma": 0.1} for step in body["steps"]]
        keep = ("tenant", "trajectory_id", "step", "mean", "sigma")
        return {"forecasts": [{name: one[name] for name in keep} for one in named], "model": "slow"}

    fake_planner.answer = slow
    gateway = await new_gateway(worker, planner=fake_planner.url, planner_timeout_s=30.0)
    await say(gateway, "a")
    await until(lambda: len(asked) == 1, "the first step to be told")
    await say(gateway, "a")
    gate.set()
    feed = gateway.parts.planning.feed
    await until(lambda: feed.applied == 1, "the forecast of the second step")
    assert feed.late == 1
    assert asked[-1]["step"] == 1


async def test_without_a_planner_the_gateway_says_so_and_serves(gateway: Any) -> None:
    await say(gateway, "a")
    ready = (await gateway.client.get("/ready")).json()
    assert (ready["ready"], ready["planner"]) == (True, "absent")
    assert (await planner_metrics(gateway))["up"] == 0.0
    answer = await gateway.client.post("/admin/v1/plans", json={})
    assert answer.status_code == 503
    assert "heddle planner" in answer.json()["detail"]
    assert answer.headers["retry-after"]
    assert (await gateway.client.get("/admin/v1/plans")).json() == {
        "items": [],
        "current": None,
        "planner": "absent",
        "next_cursor": None,
        "history": None,
    }


@pytest.mark.parametrize("url", ["planner:8100", "nonsense", "ftp://planner", "http://"])
def test_a_url_that_is_none_is_said_at_the_start(tmp_path: Path, url: str) -> None:
    settings = load_settings(database=str(tmp_path / "history.db"), planner=url)
    with pytest.raises(Exception, match=r"^planner: .* is no URL such as"):
        create_app(settings)


async def test_the_real_planner_forecasts_and_says_with_what(
    new_gateway: Any, worker: Any, real_planner: str, until: Callable[..., Any]
) -> None:
    gateway = await new_gateway(worker, planner=real_planner)
    for _ in range(3):
        await say(gateway, "a")
    feed = gateway.parts.planning.feed
    await until(lambda: feed.applied >= 1, "a forecast")
    assert feed.model in ("history", "boosting")
    assert feed.refused == 0
