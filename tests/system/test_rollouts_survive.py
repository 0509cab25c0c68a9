"""kill -9 of the leader: what it alone knew of rollouts is known to the next one."""

from pathlib import Path
from typing import Any

import pytest

from .conftest import Gateway, Parts, wait_until
from .test_gateways_as_one import MODEL, Group, group_of

pytestmark = [pytest.mark.system, pytest.mark.services]

LENGTHS = [400, 300, 200, 100]
TOKENS = 20


async def step(gateway: Gateway, trajectory: str, number: int) -> None:
    answer = await gateway.http.post(
        f"/t/{trajectory}/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": f"Task {number}."}] * (2 * number + 1),
            "max_tokens": TOKENS,
        },
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-heddle-step"] == str(number)


async def look(gateway: Gateway, rollout: str) -> tuple[Any, Any]:
    """The rollout, and its trajectories by id, without what a predictor says anew."""
    found = await gateway.get(f"/rollouts/{rollout}")
    each = (await gateway.get(f"/rollouts/{rollout}/trajectories"))["items"]
    return found, {
        one["trajectory_id"]: (
            one["group_id"],
            one["sample"],
            one["state"],
            one["steps"],
            one["output_tokens"],
        )
        for one in each
    }


async def leads(gateway: Gateway) -> bool:
    return "leader" in await Group([gateway], ()).roles()


async def test_a_rollout_outlives_the_leader_that_it_was_announced_to(
    parts: Parts, redis_server: Any, tmp_path: Path
) -> None:
    engines = [await parts.engine("--speed", "50", "--model", MODEL) for _ in "12"]
    group = await group_of(parts, engines, redis_server, tmp_path, 2)
    leader, heir = group.gateways
    asked = {
        "name": "epoch-3",
        "policy_version": "step-7",
        "lengths": LENGTHS,
        "group_size": 2,
        "plan": False,
    }
    created = (await heir.http.post("/admin/v1/rollouts", json=asked)).raise_for_status().json()
    rollout = created["rollout"]["id"]
    names = [member["trajectory_id"] for member in created["trajectories"]]
    for name in names[:3]:
        await step(heir, name, 0)
    await step(leader, names[0], 1)

    # The copy in Redis is a moment behind, as of all live state; then nothing changes any more.
    await wait_until(lambda: mirrored(leader), "the last step in Redis")
    before = await look(heir, rollout)
    assert before[0]["steps"] == 4
    assert (before[0]["running"], before[0]["waiting"]) == (3, 5)
    await leader.part.kill()
    await wait_until(lambda: leads(heir), "another leader")

    found, each = await look(heir, rollout)
    assert each == before[1]
    same = (
        "name",
        "policy_version",
        "state",
        "created_at",
        "started_at",
        "steps",
        "output_tokens",
        "trajectories",
    )
    assert {name: found[name] for name in same} == {name: before[0][name] for name in same}
    assert (await heir.get("/rollouts"))["items"][0]["id"] == rollout
    assert (await heir.get("/stats"))["core"]["trajectories"] == len(names), "ranked before they come back"

    await step(heir, names[0], 2)
    await step(heir, names[7], 0)
    found, each = await look(heir, rollout)
    assert (found["steps"], found["running"], found["waiting"]) == (6, 4, 4)
    assert each[names[0]][2:4] == ("running", 3)
    over = (await heir.http.post(f"/admin/v1/rollouts/{rollout}/finish")).json()
    assert (over["state"], over["finished"], over["steps"]) == ("finished", len(names), 6)
    await heir.is_sound()


async def test_a_rollout_outlives_the_only_gateway(parts: Parts, redis_server: Any, tmp_path: Path) -> None:
    engines = [await parts.engine("--speed", "50", "--model", MODEL)]
    group = await group_of(parts, engines, redis_server, tmp_path, 1)
    [first] = group.gateways
    created = (await first.http.post("/admin/v1/rollouts", json={"lengths": LENGTHS, "plan": False})).json()
    # Killed at once: what was answered is kept.
    await first.part.kill()
    again = await parts.gateway([engine.url for engine in engines], *group.options)
    found, each = await look(again, created["rollout"]["id"])
    assert (found["state"], found["waiting"]) == ("announced", len(LENGTHS))
    assert list(each) == [member["trajectory_id"] for member in created["trajectories"]]


async def mirrored(gateway: Gateway) -> bool:
    behind = ("heddle_live_state_behind", "heddle_live_state_rollouts_behind")
    return not any([await gateway.metric(name) for name in behind])
