"""Old trajectories go wholly, the rest stays as it is; on both databases, beside a writer."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.history import PlanRecord
from heddle_contracts.migrations import Move, MoveFilter, MoveState
from heddle_contracts.planning import Plan, PlanFilter
from heddle_contracts.steps import Outcome, StepRecord
from heddle_gateway.history_cli import app, seconds_of
from heddle_gateway.store.engine import StoreError, open_engine
from heddle_gateway.store.history_reader import HistoryReader
from heddle_gateway.store.move_history import MoveHistory
from heddle_gateway.store.plan_history import PlanHistory
from heddle_gateway.store.pruning import BATCH, Pruned, prune
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.store.tables import steps, trajectories
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

DAY_S = 86_400.0


def step(trajectory_id: str, age_days: float, number: int = 0, tenant: str = "") -> StepRecord:
    ended_at = time.time() - age_days * DAY_S
    return StepRecord(
        trajectory_id=trajectory_id,
        tenant=tenant,
        source="header",
        dialect="chat",
        step=number,
        outcome=Outcome.DONE,
        arrived_at=ended_at - 1,
        ended_at=ended_at,
    )


def plan(version: int, age_days: float, *, lasts_s: float = 120.0) -> PlanRecord:
    example: dict[str, Any] = Plan.model_config["json_schema_extra"]["examples"][0]  # type: ignore[index,call-overload]
    made_at = time.time() - age_days * DAY_S
    times = {"version": version, "made_at": made_at, "expires_at": made_at + lasts_s}
    return PlanRecord(Plan.model_validate(example | times))


def move(number: int, age_days: float) -> Move:
    return Move(
        id=number,
        process="p",
        trajectory_id="t",
        tenant="",
        from_worker="w1",
        to_worker="w2",
        state=MoveState.LANDED,
        asked_by="policy",
        tokens=1,
        ended_at=time.time() - age_days * DAY_S,
    )


async def rows(engine: AsyncEngine) -> tuple[int, int]:
    async with engine.connect() as connection:
        counts = [
            await connection.scalar(select(func.count()).select_from(one)) for one in (trajectories, steps)
        ]
    return counts[0] or 0, counts[1] or 0


async def test_what_was_last_seen_before_goes_with_all_its_steps(engine: AsyncEngine) -> None:
    await StepWriter(engine).write(
        [
            *(step("old", 40 - number, number) for number in range(5)),
            *(step("goes on", 40 * (1 - number), number) for number in range(2)),
            step("two tenants", 50, tenant="a"),
            step("two tenants", 1, tenant="b"),
        ],
        [],
    )
    would = await prune(engine, 30 * DAY_S, dry_run=True)
    assert would == Pruned(trajectories=2, steps=6)
    assert await rows(engine) == (4, 9)
    assert await prune(engine, 30 * DAY_S) == would
    assert await rows(engine) == (2, 3)
    [kept] = await HistoryReader(engine).trajectory("goes on")
    assert kept.steps == 2
    assert [one.tenant for one in await HistoryReader(engine).trajectory("two tenants")] == ["b"]
    assert await prune(engine, 30 * DAY_S) == Pruned(0, 0)


async def test_old_plans_and_moves_go_but_not_the_newest_plan_nor_one_that_still_holds(
    engine: AsyncEngine,
) -> None:
    kept = [
        plan(1, 50),
        plan(2, 45, lasts_s=60 * DAY_S),
        *(plan(number, 40) for number in range(3, BATCH + 9)),
    ]
    moves = [move(number, 31 if number else 1) for number in range(BATCH + 5)]
    assert await StepWriter(engine).write([], [*kept, *moves]) == "written"
    assert await StepWriter(engine, "other").write([], [plan(1, 90)]) == "written"
    would = Pruned(plans=BATCH + 6, migrations=BATCH + 4)
    assert await prune(engine, 30 * DAY_S, dry_run=True) == would
    assert await prune(engine, 30 * DAY_S) == would
    left = await PlanHistory(engine, "default").page(PlanFilter(), None, 10)
    assert [one.version for one in left] == [BATCH + 8, 2]
    assert await PlanHistory(engine, "other").last() == (1, None)
    assert [one.id for one in await MoveHistory(engine).page(MoveFilter(), None, 10)] == [0]


async def test_more_than_a_batch_goes_beside_a_writer(engine: AsyncEngine) -> None:
    writer = StepWriter(engine)
    await writer.write([step(f"old {number}", 40) for number in range(2 * BATCH + 7)], [])

    async def writes() -> None:
        for number in range(20):
            assert await writer.write([step("busy", 0, number)], []) == "written"

    removed, _ = await asyncio.gather(prune(engine, DAY_S), writes())
    assert removed == Pruned(2 * BATCH + 7, 2 * BATCH + 7)
    assert await rows(engine) == (1, 20)


async def test_a_database_that_is_away_says_so(tmp_path: Path) -> None:
    engine = open_engine("postgresql://heddle@127.0.0.1:1/nowhere")
    with pytest.raises(StoreError, match="cannot be pruned"):
        await prune(engine, DAY_S)
    await engine.dispose()


@pytest.mark.parametrize("text", ["", "90", "d", "-3d", "3 months", "nan"])
def test_a_duration_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="--older-than"):
        seconds_of(text)


def test_the_command_counts_and_removes(tmp_path: Path) -> None:
    database = tmp_path / "history.db"

    async def fill() -> None:
        engine = open_engine(str(database))
        others = [plan(1, 40), plan(2, 35), move(1, 40)]
        assert await StepWriter(engine).write([step("old", 40), step("new", 1)], others) == "written"
        await engine.dispose()

    asyncio.run(fill())
    command = ["prune", "--older-than", "30d", "--database", str(database), "--json"]
    gone = {"trajectories": 1, "steps": 1, "plans": 1, "migrations": 1}
    would = CliRunner().invoke(app, [*command, "--dry-run"])
    assert json.loads(would.output) == {**gone, "dry_run": True}
    done = CliRunner().invoke(app, command)
    assert json.loads(done.output) == {**gone, "dry_run": False}
    again = CliRunner().invoke(app, command[:-1])
    assert "0 trajectories with 0 steps, 0 plans and 0 moves of KV removed" in again.output
    wrong = CliRunner().invoke(app, [*command[:2], "soon", *command[3:]])
    assert wrong.exit_code == 2
    assert "--older-than: 'soon'" in wrong.output


def test_a_file_that_is_not_there_is_said_and_not_made(tmp_path: Path) -> None:
    absent = tmp_path / "folder" / "history.db"
    done = CliRunner().invoke(app, ["prune", "--older-than", "30d", "--database", str(absent)])
    assert done.exit_code == 2
    assert f"there is no history at {absent}" in done.output
    assert not absent.parent.exists()
