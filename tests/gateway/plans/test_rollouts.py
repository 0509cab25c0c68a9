"""Rollouts: announced, placed by the ranks of the batch, followed to their end."""

import asyncio
from typing import Any

import httpx
import pytest
from heddle_contracts.rollouts import Rollout, RolloutCreated
from heddle_gateway.plans.keeper import NoPlanner
from heddle_gateway.plans.rollouts import MOST_ROLLOUTS

LEARNED_GAPS = 32
"""After so many the core knows what gaps are usual (core/src/estimate.rs)."""


async def announce(gateway: Any, **asked: Any) -> RolloutCreated:
    answer = await gateway.client.post("/admin/v1/rollouts", json=asked, timeout=60.0)
    assert answer.status_code == 201, answer.text
    return RolloutCreated.model_validate_json(answer.content)


async def look(gateway: Any, rollout: str) -> Rollout:
    answer = await gateway.client.get(f"/admin/v1/rollouts/{rollout}")
    assert answer.status_code == 200, answer.text
    return Rollout.model_validate_json(answer.content)


async def say(gateway: Any, trajectory: str, key: str | None = None) -> Any:
    headers = {"x-heddle-trajectory-id": trajectory}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    answer = await gateway.chat(headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def members(gateway: Any, rollout: str) -> list[dict[str, Any]]:
    answer = await gateway.client.get(f"/admin/v1/rollouts/{rollout}/trajectories")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def test_a_batch_is_announced_runs_and_is_over(gateway: Any) -> None:
    created = await announce(
        gateway, name="epoch-3", lengths=[4_000, 100], group_size=2, policy_version="step-7"
    )
    rollout = created.rollout
    assert (rollout.state, rollout.trajectories, rollout.waiting) == ("announced", 4, 4)
    assert (rollout.name, rollout.policy_version) == ("epoch-3", "step-7")
    assert [member.sample for member in created.trajectories] == [0, 1, 0, 1]
    assert [member.predicted for member in created.trajectories] == [4_000, 4_000, 100, 100]
    assert len({member.group_id for member in created.trajectories}) == 2
    assert gateway.parts.driver.stats()["trajectories_active"] == 4

    first = created.trajectories[0].trajectory_id
    await say(gateway, first)
    running = await look(gateway, rollout.id)
    assert (running.state, running.running, running.waiting) == ("running", 1, 3)
    assert (running.steps, running.output_tokens) == (1, 3)
    assert running.expected_end_at is not None
    assert running.stragglers[0].trajectory_id == first
    assert running.stragglers[0].steps == 1

    each = await members(gateway, rollout.id)
    assert [one["state"] for one in each] == ["running", "waiting", "waiting", "waiting"]
    assert [one["output_tokens"] for one in each] == [3, 0, 0, 0]
    assert [one["predicted_remaining"] for one in each][1:] == [4_000, 100, 100]
    assert 0 < each[0]["predicted_remaining"] <= 4_000

    over = (await gateway.client.post(f"/admin/v1/rollouts/{rollout.id}/finish")).json()
    assert (over["state"], over["finished"]) == ("finished", 4)
    each = await members(gateway, rollout.id)
    assert {(one["state"], one["predicted_remaining"]) for one in each} == {("over", 0.0)}
    assert [one["output_tokens"] for one in each] == [3, 0, 0, 0]
    assert gateway.parts.driver.stats()["trajectories"] == 0
    assert gateway.parts.driver.directory.total == 0
    listed = (await gateway.client.get("/admin/v1/rollouts")).json()["items"]
    assert [one["id"] for one in listed] == [rollout.id]


async def test_an_announced_trajectory_becomes_its_callers_with_the_group_it_was_announced_in(
    gateway: Any,
) -> None:
    created = await announce(gateway, prompts=[{"id": "task-1"}], group_size=2)
    one, other = (member.trajectory_id for member in created.trajectories)
    await say(gateway, one, key="agent-a")
    await say(gateway, other, key="agent-b")
    directory = gateway.parts.driver.directory
    (mine,), (theirs,) = directory.named(one), directory.named(other)
    assert mine.tenant != theirs.tenant
    assert mine.group == theirs.group, "siblings are siblings to the core, whoever runs them"
    assert mine.has_arrived
    assert (await look(gateway, created.rollout.id)).running == 2
    assert gateway.parts.driver.audit() == []
    records = await gateway.records(2)
    assert [(record.trajectory_id, record.group_id, record.sample) for record in records] == [
        (one, "task-1", 0),
        (other, "task-1", 1),
    ]


async def test_the_longest_of_a_batch_gets_the_fast_worker_whoever_comes_first(
    new_gateway: Any, new_worker: Any, fake_planner: Any, real_planner: str
) -> None:
    async def plans_alone(path: str, body: dict[str, Any]) -> Any:
        """A forecast after a first step would put another first, if it came before the last has begun."""
        if path != "/planner/v1/plans":
            return 404, {"detail": "no forecasts"}
        async with httpx.AsyncClient(base_url=real_planner, trust_env=False, timeout=60.0) as real:
            return (await real.post(path, json=body)).content

    fake_planner.answer = plans_alone
    workers = [await new_worker() for _ in range(2)]
    workers[0].features |= {"tp_size": 4, "max_running_requests": 4}
    workers[1].features |= {"tp_size": 1, "max_running_requests": 16}
    gateway = await new_gateway(*workers, planner=fake_planner.url, auto_plan=False)
    lengths = [300] * 12 + [90_000]
    asked = {"lengths": lengths, "workers": [4, 1]}
    plan = (await gateway.client.post("/admin/v1/plans", json=asked)).json()
    assert 12 in plan["members"][[share["degree"] for share in plan["shares"]].index(4)]
    activated = await gateway.client.post(f"/admin/v1/plans/{plan['version']}/activate")
    assert activated.status_code == 200, activated.text
    created = await announce(gateway, lengths=lengths, plan=False)
    longest = created.trajectories[-1].trajectory_id
    for member in created.trajectories:  # the longest comes last
        await say(gateway, member.trajectory_id)
    driver = gateway.parts.driver
    (live,) = driver.directory.named(longest)
    home = driver.trajectory_view(live)["home"]
    degrees = {view["worker"]: view["degree"] for view in driver.worker_views()}
    assert degrees[home] == 4


async def test_a_batch_is_planned_as_it_is_announced(
    new_gateway: Any, worker: Any, real_planner: str
) -> None:
    gateway = await new_gateway(worker, planner=real_planner, auto_plan=False)
    created = await announce(gateway, lengths=[300] * 6)
    version = created.rollout.plan_version
    plan = (await gateway.client.get(f"/admin/v1/plans/{version}")).json()
    assert (plan["reason"], plan["state"], plan["trajectories"]) == ("rollout", "current", 6)
    ids = {member.trajectory_id for member in created.trajectories}
    assert {one for members in plan["members"] for one in members} == ids


async def test_lengths_that_nobody_gave_are_forecast(
    new_gateway: Any, worker: Any, real_planner: str
) -> None:
    gateway = await new_gateway(worker, planner=real_planner, auto_plan=False)
    created = await announce(gateway, prompts=[{"tokens": 800}, {"tokens": 900, "length": 77}], plan=False)
    assert created.trajectories[1].predicted == 77
    assert created.trajectories[0].predicted is not None
    assert created.trajectories[0].predicted > 77
    assert created.rollout.plan_version is None


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "prompts"),
        ({"lengths": [1], "prompts": [{}]}, "prompts"),
        ({"lengths": [-1]}, "lengths.0"),
        ({"prompts": [{"id": "x"}, {"id": "x"}]}, "prompts"),
        ({"lengths": [1] * 100, "group_size": 4_000}, "lengths"),
        ({"lengths": [1], "group_size": 0}, "group_size"),
    ],
    ids=str,
)
async def test_a_batch_that_cannot_be_is_refused_by_field(gateway: Any, asked: Any, field: str) -> None:
    answer = await gateway.client.post("/admin/v1/rollouts", json=asked)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert gateway.parts.driver.directory.total == 0


async def test_a_rollout_that_is_not_there_is_404(gateway: Any) -> None:
    answer = await gateway.client.get("/admin/v1/rollouts/ro-none")
    assert answer.status_code == 404
    assert (await gateway.client.post("/admin/v1/rollouts/ro-none/finish")).status_code == 404


async def test_many_batches_at_once_keep_the_books_balanced(gateway: Any) -> None:
    created = await asyncio.gather(*(announce(gateway, lengths=[100, 200], plan=False) for _ in range(8)))
    ids = [member.trajectory_id for one in created for member in one.trajectories]
    assert len(set(ids)) == 16
    await asyncio.gather(*(say(gateway, one) for one in ids))
    seen = [await look(gateway, one.rollout.id) for one in created]
    assert all((one.running, one.steps) == (2, 2) for one in seen)
    assert gateway.parts.driver.audit() == []


async def test_a_member_in_a_longer_tool_gap_than_usual_still_runs(gateway: Any, until: Any) -> None:
    created = await announce(gateway, lengths=[4_000], plan=False)
    (member,) = created.trajectories
    for _ in range(LEARNED_GAPS + 1):
        await say(gateway, member.trajectory_id)
    driver = gateway.parts.driver
    await until(lambda: driver.stats()["trajectories_active"] == 0, "the core to rank it no more")
    running = await look(gateway, created.rollout.id)
    assert (running.state, running.running, running.finished) == ("running", 1, 0)
    assert running.ended_at is None
    assert (running.stragglers[0].trajectory_id, running.stragglers[0].phase) == (
        member.trajectory_id,
        "in_tool_gap",
    )
    assert [one["state"] for one in await members(gateway, created.rollout.id)] == ["running"]

    driver.change_policy({"dormant_after_ms": 1})
    over = await look(gateway, created.rollout.id)
    assert (over.state, over.running, over.finished) == ("finished", 0, 1), "nobody said so; it has been long"
    assert over.ended_at is not None


async def test_finished_rollouts_make_room_and_running_ones_stay(gateway: Any) -> None:
    first = (await announce(gateway, lengths=[100], plan=False)).rollout.id
    second = (await announce(gateway, lengths=[100], plan=False)).rollout.id
    for _ in range(MOST_ROLLOUTS - 2):
        await announce(gateway, lengths=[100], plan=False)
    refused = await gateway.client.post("/admin/v1/rollouts", json={"lengths": [100]})
    assert refused.status_code == 409, refused.text
    assert "/finish" in refused.json()["fix"]
    assert gateway.parts.driver.directory.total == MOST_ROLLOUTS, "nothing of it was announced"
    assert (await gateway.client.post(f"/admin/v1/rollouts/{second}/finish")).status_code == 200
    await announce(gateway, lengths=[100], plan=False)
    assert (await look(gateway, first)).state == "announced", "older, and not over"
    assert (await gateway.client.get(f"/admin/v1/rollouts/{second}")).status_code == 404


@pytest.mark.parametrize("during", ["plan", "saving"])
async def test_a_rollout_that_another_gateway_has_by_now_gets_an_answer(gateway: Any, during: str) -> None:
    planning = gateway.parts.planning

    async def stand_down(*asked: Any) -> None:
        planning.rollouts.begin_anew()
        if asked:
            raise NoPlanner("there is none")

    if during == "plan":
        planning.keeper.compute = stand_down
    else:
        planning.rollouts_saved = stand_down
    answer = await gateway.client.post("/admin/v1/rollouts", json={"lengths": [100]})
    assert answer.status_code == 503, answer.text
    assert "another gateway leads" in answer.json()["detail"]
    assert answer.headers["retry-after"] == "2"
