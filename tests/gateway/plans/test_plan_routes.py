"""Plans over the admin API, with a real planner: computed, kept, activated, explained, expired."""

import asyncio
import random
import time
from typing import Any

import pytest
from heddle_contracts.planning import Plan, PlanExplained, PlanList


async def say(gateway: Any, trajectory: str) -> None:
    answer = await gateway.chat(headers={"x-heddle-trajectory-id": trajectory})
    assert answer.status_code == 200, answer.text


@pytest.fixture
async def planned(new_gateway: Any, new_worker: Any, real_planner: str) -> Any:
    """A gateway with a planner and two workers of MP degree 1 and 2, six live trajectories; plans by hand."""
    workers = [await new_worker() for _ in range(2)]
    workers[1].features["tp_size"] = 2
    gateway = await new_gateway(*workers, planner=real_planner, auto_plan=False)
    for number in range(6):
        await say(gateway, f"t{number}")
    return gateway


async def make(gateway: Any, **asked: Any) -> Plan:
    answer = await gateway.client.post("/admin/v1/plans", json=asked, timeout=60.0)
    assert answer.status_code in (200, 201), answer.text
    return Plan.model_validate_json(answer.content)


async def plans(gateway: Any) -> PlanList:
    return PlanList.model_validate_json((await gateway.client.get("/admin/v1/plans")).content)


async def test_what_is_live_is_planned_kept_and_put_in_force(planned: Any) -> None:
    plan = await make(planned)
    assert (plan.version, plan.live, plan.trajectories, plan.state) == (1, True, 6, "candidate")
    assert sorted(plan.shape) == [1, 2]
    assert (await planned.client.get("/admin/v1/plans/current")).status_code == 404
    done = (await planned.client.post("/admin/v1/plans/1/activate")).json()
    assert done["plan"]["state"] == "current"
    assert len(done["fleet"]) == 2
    current = (await planned.client.get("/admin/v1/plans/current")).json()
    assert current["version"] == 1
    stats = planned.parts.driver.stats()
    assert (stats["plan_version"] > 0) == (plan.making == "shares")
    assert planned.parts.driver.policy()["placement"] == plan.placement
    await say(planned, "t0")
    assert planned.parts.driver.audit() == []


async def test_a_dry_run_is_not_kept(planned: Any) -> None:
    plan = await make(planned, dry_run=True)
    assert plan.version is None
    assert (await plans(planned)).items == ()


async def test_given_lengths_are_planned_by_index(planned: Any) -> None:
    draw = random.Random(4)
    lengths = [draw.lognormvariate(8, 1.2) for _ in range(6_400)]
    plan = await make(planned, lengths=lengths, gpus=64, degrees=[1, 2, 4, 8])
    assert sum(plan.shape) <= 64
    placed = [index for members in plan.members for index in members]
    assert sorted(placed) == list(range(6_400))
    listed = await plans(planned)
    assert listed.items[0].members == ()
    assert listed.planner == "ready"
    refused = await planned.client.post(f"/admin/v1/plans/{plan.version}/activate")
    assert refused.status_code == 409
    assert "MP degree" in refused.json()["detail"]


async def test_a_plan_for_given_lengths_of_the_live_shape_can_be_put_in_force(planned: Any) -> None:
    plan = await make(planned, lengths=[9_000, 800, 700, 600], workers=[2, 1])
    done = await planned.client.post(f"/admin/v1/plans/{plan.version}/activate")
    assert done.status_code == 200, done.text
    assert [share.rsplit(": ")[1] for share in done.json()["fleet"]] == ["1 trajectory", "3 trajectories"]


async def test_an_older_plan_can_be_rolled_back_to(planned: Any) -> None:
    for _ in range(2):
        version = (await make(planned)).version
        assert (await planned.client.post(f"/admin/v1/plans/{version}/activate")).status_code == 200
    assert (await plans(planned)).current == 2
    assert (await planned.client.post("/admin/v1/plans/1/activate")).status_code == 200
    listed = await plans(planned)
    assert listed.current == 1
    assert [(plan.version, plan.state) for plan in listed.items] == [(2, "replaced"), (1, "current")]


async def test_a_plan_is_explained_in_words(planned: Any) -> None:
    plan = await make(planned)
    answer = await planned.client.get(f"/admin/v1/plans/{plan.version}/explain?trajectories=3")
    told = PlanExplained.model_validate_json(answer.content)
    assert len(told.workers) == 2
    assert len(told.trajectories) == 3
    assert told.trajectories[0].rank is not None
    assert "makespan" in told.words
    assert "6 trajectories on 2 workers" in told.summary
    assert len(told.alternatives) == 4
    assert "nan" not in answer.text.lower()


async def test_a_plan_for_given_lengths_is_explained_with_each_length(planned: Any) -> None:
    plan = await make(planned, lengths=[100, 9_000, 700], workers=[2, 1])
    answer = await planned.client.get(f"/admin/v1/plans/{plan.version}/explain")
    told = PlanExplained.model_validate_json(answer.content)
    assert [(one.trajectory_id, one.predicted) for one in told.trajectories] == [
        ("1", 9_000),
        ("2", 700),
        ("0", 100),
    ]
    assert "alone" in told.trajectories[0].text
    assert all("with one other" in one.text for one in told.trajectories[1:])


async def test_the_planner_is_asked_when_workers_come_and_when_it_says_that_its_error_jumped(
    new_gateway: Any, worker: Any, new_worker: Any, fake_planner: Any, until: Any
) -> None:
    replan: list[str] = []

    async def answer(path: str, body: dict[str, Any]) -> Any:
        if path.endswith("/plans"):
            return 409, {"detail": "lengths: no plan today", "field": "lengths"}
        return {"forecasts": [], "model": "fake", "replan": replan.pop() if replan else None}

    fake_planner.answer = answer
    gateway = await new_gateway(worker, planner=fake_planner.url, plan_period_s=3600.0)

    def reasons() -> list[str]:
        return [body["reason"] for body in fake_planner.bodies.get("/planner/v1/plans", [])]

    for number in range(3):
        await say(gateway, f"t{number}")
    second = await new_worker()
    await gateway.client.post("/admin/v1/workers", json={"url": second.url})
    await until(lambda: "workers" in reasons(), "a round for the new worker")
    asked = fake_planner.bodies["/planner/v1/plans"][-1]
    assert {one["trajectory_id"] for one in asked["active"]} == {"t0", "t1", "t2"}
    assert asked["workers"][0]["token_us"] > 0
    replan.append("the error has jumped")
    await say(gateway, "t0")
    await until(lambda: "error" in reasons(), "a round for the error")
    assert gateway.parts.planning.keeper.book.current(time.time()) is None


@pytest.mark.parametrize(
    ("asked", "status", "field"),
    [
        ({"lengths": []}, 422, "lengths"),
        ({"lengths": [1, -1], "gpus": 2}, 422, "lengths.1"),
        ({"lengths": [1], "gpus": 2, "degrees": [16]}, 422, "degrees"),
        ({"lengths": [1], "gpus": 2, "solver": "magic"}, 422, "solver"),
        ({"lengths": [1], "gpus": 2, "profile": "../../etc/passwd"}, 422, "profile"),
        ({"gpus": 4}, 422, "gpus"),
        ({"colour": 1}, 422, "colour"),
    ],
    ids=str,
)
async def test_what_cannot_be_planned_is_refused_by_field(
    planned: Any, asked: Any, status: int, field: str
) -> None:
    answer = await planned.client.post("/admin/v1/plans", json=asked)
    assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text
    assert (await plans(planned)).items == ()


async def test_plans_that_are_not_there_are_404(planned: Any) -> None:
    for method, path in (("GET", "/7"), ("POST", "/7/activate"), ("GET", "/7/explain"), ("GET", "/current")):
        answer = await planned.client.request(method, f"/admin/v1/plans{path}")
        assert answer.status_code == 404
        assert answer.json()["fix"]


async def test_plans_are_made_and_put_in_force_without_being_asked(
    new_gateway: Any, worker: Any, new_worker: Any, real_planner: str, until: Any
) -> None:
    gateway = await new_gateway(worker, planner=real_planner, plan_period_s=0.3)
    for number in range(4):
        await say(gateway, f"t{number}")
    book = gateway.parts.planning.keeper.book
    await until(lambda: book.current(time.time()) is not None, "a plan in force")
    second = await new_worker()
    added = await gateway.client.post("/admin/v1/workers", json={"url": second.url})
    assert added.status_code == 201

    def has_both() -> bool:
        plan = book.current(time.time())
        return plan is not None and len(plan.shares) == 2

    await until(has_both, "a plan for both workers")
    await say(gateway, "t0")
    assert gateway.parts.driver.audit() == []


async def test_an_operator_who_chose_a_placement_is_not_overruled(
    new_gateway: Any, worker: Any, real_planner: str, until: Any
) -> None:
    gateway = await new_gateway(
        worker, planner=real_planner, plan_period_s=0.2, policy={"placement": "round_robin"}
    )
    for number in range(4):
        await say(gateway, f"t{number}")
    keeper = gateway.parts.planning.keeper
    assert not keeper.may_place()
    plan = await make(gateway)
    assert keeper.book.current(time.time()) is None
    assert gateway.parts.driver.policy()["placement"] == "round_robin"
    assert (await gateway.client.post(f"/admin/v1/plans/{plan.version}/activate")).status_code == 200
    assert gateway.parts.driver.policy()["placement"] == plan.placement, "but by hand it is"


async def test_an_expired_plan_leaves_the_placement_that_rehearsed_best_without_shares(
    planned: Any, until: Any
) -> None:
    plan = await make(planned)
    keeper = planned.parts.planning.keeper
    kept = keeper.book.get(plan.version, time.time())
    short = kept.model_copy(update={"expires_at": time.time() + 0.3, "made_at": time.time() + 0.1})
    version = keeper.book.keep(short.model_copy(update={"fallback_placement": "sticky"})).version
    keeper.activate(version, by="planner")
    await until(lambda: keeper.book.in_force is None, "the plan to expire")
    assert planned.parts.driver.policy()["placement"] == "sticky"
    assert (await plans(planned)).items[0].state == "expired"
    again = await planned.client.post(f"/admin/v1/plans/{version}/activate")
    assert again.status_code == 200
    assert planned.parts.driver.policy()["placement"] == plan.placement


@pytest.mark.parametrize("named", ["placement", "fallback_placement"])
async def test_a_planner_that_wants_a_placement_nobody_knows_is_not_believed(
    new_gateway: Any, worker: Any, fake_planner: Any, until: Any, named: str
) -> None:
    example = Plan.model_config["json_schema_extra"]["examples"][0]  # type: ignore[index,call-overload]
    nonsense = True

    async def answer(path: str, body: dict[str, Any]) -> Any:
        if not path.endswith("/plans"):
            return {"forecasts": [], "model": "fake"}
        now = time.time()
        (one,) = body["workers"]
        share = {"size": 2, "seconds": 1.0, "limited_by": "nothing", "longest": 9.0, "shortest": 5.0}
        share |= {"worker": one["id"], "name": one["name"], "degree": one["degree"], "first_rank": 0}
        times = {"version": None, "state": "candidate", "made_at": now, "expires_at": now + 60}
        plan = {**example, **times, "shares": [share], "members": [["t0", "t1"]]}
        return plan | ({named: "by_moon"} if nonsense else {})

    fake_planner.answer = answer
    gateway = await new_gateway(worker, planner=fake_planner.url, plan_period_s=0.1)
    keeper = gateway.parts.planning.keeper
    refused = await gateway.client.post("/admin/v1/plans", json={"dry_run": True})
    assert refused.status_code == 503, refused.text
    assert "by_moon" in refused.json()["detail"]
    assert (await gateway.client.get("/ready")).json()["planner"] == "nonsense"
    announced = await gateway.client.post("/admin/v1/rollouts", json={"lengths": [9, 5]})
    assert announced.status_code == 201, announced.text
    assert announced.json()["rollout"]["plan_version"] is None
    nonsense = False
    await until(lambda: keeper.book.current(time.time()) is not None, "an automatic plan: its task goes on")


async def test_a_planner_that_dies_leaves_the_plan_until_it_expires(
    new_gateway: Any, worker: Any, fake_planner: Any
) -> None:
    gateway = await new_gateway(worker, planner=fake_planner.url, auto_plan=False)
    await fake_planner.stop()
    answer = await gateway.client.post("/admin/v1/plans", json={})
    assert answer.status_code == 503
    assert (await gateway.client.get("/ready")).json()["planner"] == "away"
    await asyncio.gather(*(say(gateway, f"t{number}") for number in range(4)))
