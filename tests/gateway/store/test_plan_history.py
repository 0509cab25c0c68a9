"""Plans in SQL, on both databases."""

from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.history import PlanRecord
from heddle_contracts.planning import Plan, PlanFilter, PlanMaking, PlanReason
from heddle_gateway.store.engine import StoreError, open_engine
from heddle_gateway.store.plan_history import PlanHistory
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.telemetry.spill import SpillFolder
from sqlalchemy.ext.asyncio import AsyncEngine

EXAMPLE: dict[str, Any] = Plan.model_config["json_schema_extra"]["examples"][0]  # type: ignore[index,call-overload]


def plan(version: int, **changes: Any) -> Plan:
    named = {"version": version, "state": "candidate", "made_at": 1000.0 + version}
    return Plan.model_validate(EXAMPLE | named | {"expires_at": 1120.0 + version} | changes)


def activated(one: Plan, at: float, expires_at: float, by: str = "planner") -> PlanRecord:
    update = {"activated_at": at, "activated_by": by, "expires_at": expires_at}
    return PlanRecord(one.model_copy(update=update))


async def versions(
    engine: AsyncEngine, below: int | None = None, limit: int = 100, **wanted: Any
) -> list[int]:
    found = await PlanHistory(engine, "default").page(PlanFilter(**wanted), below, limit)
    return [one.version or 0 for one in found]


async def test_a_plan_is_read_as_it_was_written(engine: AsyncEngine) -> None:
    members = (("swe/1", "odd\ud800", "nul\0"), (7, "é"))
    written = PlanRecord(plan(3, members=members), (9_000.5, 800.0))
    assert await StepWriter(engine).write([], [written]) == "written"
    history = PlanHistory(engine, "default")
    found = await history.get(3)
    assert found is not None
    assert found.plan == written.plan
    assert tuple(found.lengths) == written.lengths
    (listed,) = await history.page(PlanFilter(), None, 10)
    assert listed == written.plan.model_copy(update={"members": ()})
    assert await history.get(4) is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
async def test_the_latest_activation_stays_in_whatever_order_they_come(
    engine: AsyncEngine, order: tuple[int, ...]
) -> None:
    kept = plan(1)
    records = [PlanRecord(kept), activated(kept, 1010.0, 1130.0), activated(kept, 2000.0, 2120.0, "operator")]
    writer = StepWriter(engine)
    for index in order:
        assert await writer.write([], [records[index]]) == "written"
    found = await PlanHistory(engine, "default").get(1)
    assert found is not None
    facts = found.plan.activated_at, found.plan.expires_at, found.plan.activated_by
    assert facts == (2000.0, 2120.0, "operator")


async def test_a_new_process_finds_the_highest_version_and_the_plan_put_in_force_last(
    engine: AsyncEngine,
) -> None:
    writer, history = StepWriter(engine), PlanHistory(engine, "default")
    await writer.prepare()
    assert await history.last() == (0, None)
    kept = [plan(number) for number in range(1, 6)]
    rolled_back = activated(kept[1], 1300.0, 1400.0)
    await writer.write([], [*map(PlanRecord, kept), activated(kept[3], 1200.0, 1300.0), rolled_back])
    highest, in_force = await history.last()
    assert highest == 5
    assert in_force is not None
    assert in_force.plan == rolled_back.plan


async def test_plans_are_listed_newest_first_by_pages_and_filters(engine: AsyncEngine) -> None:
    one, two, three = (
        plan(1),
        plan(2, making=PlanMaking.NO_SHARES, live=False),
        plan(3, reason=PlanReason.REQUEST),
    )
    await StepWriter(engine).write([], [PlanRecord(two), PlanRecord(three), activated(one, 1500.0, 1600.0)])
    assert await versions(engine) == [3, 2, 1]
    assert await versions(engine, limit=2) == [3, 2]
    assert await versions(engine, below=2) == [1]
    assert await versions(engine, making=PlanMaking.NO_SHARES) == [2]
    assert await versions(engine, live=True) == [3, 1]
    assert await versions(engine, live=False) == [2]
    assert await versions(engine, reason=PlanReason.REQUEST) == [3]
    assert await versions(engine, activated=True) == [1]
    assert await versions(engine, activated=False) == [3, 2]
    assert await versions(engine, since=1002.0) == [3, 2]


async def test_namespaces_count_their_own_versions(engine: AsyncEngine) -> None:
    await StepWriter(engine, "a").write([], [PlanRecord(plan(1)), PlanRecord(plan(2))])
    await StepWriter(engine, "b").write([], [activated(plan(1, gpus=99), 1100.0, 1200.0)])
    a, b = PlanHistory(engine, "a"), PlanHistory(engine, "b")
    assert await a.last() == (2, None)
    assert (await b.last())[0] == 1
    found = await b.get(1)
    assert found is not None
    assert found.plan.gpus == 99


async def test_a_version_that_was_given_twice_is_kept_twice_and_means_the_later_plan(
    engine: AsyncEngine,
) -> None:
    await StepWriter(engine).write([], [PlanRecord(plan(1, made_at=1200.0, gpus=7)), PlanRecord(plan(1))])
    assert await versions(engine) == [1, 1]
    found = await PlanHistory(engine, "default").get(1)
    assert found is not None
    assert found.plan.gpus == 7


async def test_plans_wait_on_disk_as_steps_do(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path / "spill", 1_000_000)
    segment = folder.begin()
    written = PlanRecord(plan(3, members=(("odd\ud800",), (1,))), [5.0])
    folder.append(segment, written)
    folder.seal(segment)
    folder.close()
    later = SpillFolder(tmp_path / "spill", 1_000_000)
    assert later.read(later.segments[0]) == [written]


async def test_a_database_that_is_away_says_so() -> None:
    engine = open_engine("postgresql://heddle@127.0.0.1:1/nowhere")
    with pytest.raises(StoreError, match="cannot be read"):
        await PlanHistory(engine, "default").last()
    await engine.dispose()
