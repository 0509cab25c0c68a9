"""Plans outlive the process: versions go on, the plan in force is taken up, older ones are still there."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.history import PlanRecord
from heddle_contracts.planning import Plan, PlanList

EXAMPLE: dict[str, Any] = Plan.model_config["json_schema_extra"]["examples"][0]  # type: ignore[index,call-overload]
LASTS_S = 600.0


def plans_for(workers: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """A planner's answer: one share for each of the workers that it was told of."""
    now = time.time()
    share = {"size": 1, "seconds": 1.0, "limited_by": "nothing", "longest": 9.0, "shortest": 5.0}
    shares = [
        {**share, "worker": one["id"], "name": one["name"], "degree": one["degree"], "first_rank": rank}
        for rank, one in enumerate(sorted(workers, key=lambda one: -one["degree"]))
    ]
    times = {"version": None, "state": "candidate", "made_at": now, "expires_at": now + LASTS_S}
    members = [[f"t{rank}"] for rank in range(len(shares))]
    return {**EXAMPLE, **times, "shares": shares, "members": members, **changes}


@pytest.fixture
def planner(fake_planner: Any) -> Any:
    """Answers every question for a plan; ``planner.changes`` go into the answers."""
    fake_planner.changes = {}

    async def answer(path: str, body: dict[str, Any]) -> Any:
        if path.endswith("/plans"):
            return plans_for(body["workers"], **fake_planner.changes)
        return {"forecasts": [], "model": "fake"}

    fake_planner.answer = answer
    return fake_planner


@pytest.fixture
async def two_workers(new_worker: Callable[..., Any]) -> list[Any]:
    workers = [await new_worker() for _ in range(2)]
    workers[1].features["tp_size"] = 2
    return workers


async def make(gateway: Any, **asked: Any) -> int:
    answer = await gateway.client.post("/admin/v1/plans", json=asked)
    assert answer.status_code == 201, answer.text
    version: int = answer.json()["version"]
    return version


async def activate(gateway: Any, version: int) -> dict[str, Any]:
    answer = await gateway.client.post(f"/admin/v1/plans/{version}/activate")
    assert answer.status_code == 200, answer.text
    done: dict[str, Any] = answer.json()
    return done


async def listed(gateway: Any, query: str = "") -> PlanList:
    answer = await gateway.client.get(f"/admin/v1/plans{query}")
    assert answer.status_code == 200, answer.text
    return PlanList.model_validate_json(answer.content)


async def test_the_plan_in_force_is_taken_up_by_the_names_of_its_workers_and_versions_go_on(
    new_gateway: Any, two_workers: list[Any], planner: Any, until: Any
) -> None:
    gateway = await new_gateway(*two_workers, planner=planner.url, auto_plan=False)
    for _ in range(3):
        await make(gateway)
    before = await activate(gateway, 2)
    await gateway.stop()

    # The other way round: each worker gets the other one's id.
    again = await new_gateway(*reversed(two_workers), planner=planner.url, auto_plan=False)
    book = again.parts.planning.keeper.book
    await until(lambda: book.current(time.time()) is not None, "the plan to be taken up")
    plan = book.current(time.time())
    assert (plan.version, plan.activated_by) == (2, "operator")
    assert plan.expires_at == before["plan"]["expires_at"], "it holds as long as it would have"
    assert again.parts.driver.stats()["plan_version"] == 1, "the core has its shares"
    assert (await activate(again, 2))["fleet"] == before["fleet"]
    assert await make(again) == 4
    assert [(one.version, one.state) for one in (await listed(again)).items] == [
        (4, "candidate"),
        (3, "candidate"),
        (2, "current"),
        (1, "candidate"),
    ]


async def test_a_plan_from_before_the_restart_is_shown_explained_and_put_in_force(
    new_gateway: Any, two_workers: list[Any], planner: Any
) -> None:
    planner.changes = {"live": False, "members": [[1], [0]]}
    gateway = await new_gateway(*two_workers, planner=planner.url, auto_plan=False)
    await make(gateway, lengths=[100, 9_000])
    await make(gateway, lengths=[5, 7])
    await gateway.stop()

    again = await new_gateway(*two_workers, planner=planner.url, auto_plan=False)
    assert again.parts.planning.keeper.book.get(1, time.time()) is None, "read from history, not from memory"
    whole = Plan.model_validate_json((await again.client.get("/admin/v1/plans/1")).content)
    assert whole.members == ((1,), (0,))
    told = (await again.client.get("/admin/v1/plans/1/explain")).json()
    assert [(one["trajectory_id"], one["predicted"]) for one in told["trajectories"]] == [
        ("1", 9_000),
        ("0", 100),
    ]
    assert (await activate(again, 1))["plan"]["state"] == "current"
    assert (await listed(again)).current == 1
    missing = await again.client.get("/admin/v1/plans/3")
    assert (missing.status_code, missing.json()["field"]) == (404, "version")


async def test_a_plan_whose_time_is_over_or_that_an_operators_policy_rules_out_is_not_taken_up(
    new_gateway: Any, two_workers: list[Any], planner: Any, until: Any
) -> None:
    gateway = await new_gateway(*two_workers, planner=planner.url, auto_plan=False)
    keeper = gateway.parts.planning.keeper
    await make(gateway)
    keeper.activate(1, by="planner")
    await gateway.stop()

    chosen = {"policy": {"placement": "round_robin"}}
    other = await new_gateway(*two_workers, planner=planner.url, **chosen)
    assert other.parts.planning.keeper.book.last_version == 1
    assert other.parts.planning.keeper.book.in_force is None
    await other.stop()

    planner.changes = {"expires_at": time.time() + 0.05}
    third = await new_gateway(*two_workers, planner=planner.url, auto_plan=False)
    await make(third)
    third.parts.planning.keeper.activate(2, by="planner")
    await until(lambda: third.parts.planning.keeper.book.in_force is None, "the plan to expire")
    await third.stop()
    last = await new_gateway(*two_workers, planner=planner.url)
    assert last.parts.planning.keeper.book.in_force is None
    assert (await listed(last)).items[0].state == "expired"


@pytest.mark.services
async def test_redis_knows_the_plan_in_force_though_the_database_is_lost(
    new_gateway: Any, two_workers: list[Any], planner: Any, until: Any, redis_server: Any, tmp_path: Path
) -> None:
    settings = {"planner": planner.url, "auto_plan": False, "redis_url": redis_server.url}
    settings["namespace"] = "plan-pointer"
    gateway = await new_gateway(*two_workers, **settings)
    for _ in range(3):
        await make(gateway, lengths=[9.0, 5.0])
    await activate(gateway, 2)
    await gateway.stop()
    again = await new_gateway(*two_workers, **settings, database=str(tmp_path / "another.db"))
    book = again.parts.planning.keeper.book
    await until(lambda: book.current(time.time()) is not None, "the plan to be taken up")
    assert (book.current(time.time()).version, tuple(book.lengths(2))) == (2, (9.0, 5.0))
    assert await make(again) == 4


@pytest.mark.parametrize("named", ["placement", "fallback_placement"])
async def test_a_plan_of_another_release_with_a_placement_that_is_not_known_is_not_put_in_force(
    new_gateway: Any, two_workers: list[Any], planner: Any, named: str
) -> None:
    gateway = await new_gateway(*two_workers, planner=planner.url, auto_plan=False)
    keeper = gateway.parts.planning.keeper
    await make(gateway)
    of_another = keeper.book.get(1, time.time()).model_copy(update={named: "by_moon"})
    version = keeper.book.keep(of_another).version
    answer = await gateway.client.post(f"/admin/v1/plans/{version}/activate")
    assert answer.status_code == 409, answer.text
    assert "by_moon" in answer.json()["detail"]
    in_force = of_another.model_copy(
        update={"version": 9, "activated_at": time.time(), "activated_by": "operator"}
    )
    keeper.resume(9, PlanRecord(in_force, ()))
    keeper.workers_changed()
    assert keeper.book.in_force is None
    assert gateway.parts.driver.policy()["placement"] == "by_rank"


async def test_a_plan_waits_for_all_of_its_workers(
    new_gateway: Any, two_workers: list[Any], planner: Any, until: Any
) -> None:
    gateway = await new_gateway(*two_workers, planner=planner.url, auto_plan=False)
    await make(gateway)
    await activate(gateway, 1)
    await gateway.stop()
    again = await new_gateway(two_workers[0], planner=planner.url, auto_plan=False)
    book = again.parts.planning.keeper.book
    assert book.in_force is None, "half of its workers are missing"
    await again.client.post("/admin/v1/workers", json={"url": two_workers[1].url})
    await until(lambda: book.in_force is not None, "the plan, now that all are there")


async def test_all_plans_are_listed_by_pages_and_filters_beyond_what_memory_holds(
    new_gateway: Any, two_workers: list[Any], planner: Any
) -> None:
    gateway = await new_gateway(*two_workers, planner=planner.url, auto_plan=False)
    for _ in range(40):
        await make(gateway)
    await activate(gateway, 39)
    await activate(gateway, 40)
    assert await gateway.parts.history.flush(60.0)
    found: list[int] = []
    query = "?limit=7"
    while True:
        page = await listed(gateway, query)
        assert page.history is None
        found += [one.version or 0 for one in page.items]
        if page.next_cursor is None:
            break
        query = f"?limit=7&cursor={page.next_cursor}"
    assert found == list(range(40, 0, -1))
    assert [one.version for one in (await listed(gateway, "?activated=true")).items] == [40, 39]
    for bad in ("?cursor=x", "?limit=0", "?since=inf", "?reason=whim", "?cursor=" + 30 * "9"):
        refused = await gateway.client.get(f"/admin/v1/plans{bad}")
        assert refused.status_code == 422, bad
        assert refused.json()["field"] == bad[1:].partition("=")[0]


async def test_without_the_database_plans_in_memory_are_there_and_the_list_says_what_is_missing(
    new_gateway: Any, two_workers: list[Any], planner: Any, tmp_path: Path
) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is not a database, far from it" * 100)
    gateway = await new_gateway(
        *two_workers, planner=planner.url, auto_plan=False, database=str(tmp_path / "broken.db")
    )
    await make(gateway)
    await activate(gateway, 1)
    found = await listed(gateway)
    assert [(one.version, one.state) for one in found.items] == [(1, "current")]
    assert "cannot be read" in (found.history or "")
    assert (await gateway.client.get("/admin/v1/plans/1/explain")).status_code == 200
    assert (await gateway.client.get("/admin/v1/plans/2")).status_code == 503
