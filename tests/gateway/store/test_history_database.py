"""Schema, writes and reads on real SQLite files."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from heddle_contracts.admin import EndReason, Phase, TrajectoryFilter, TrajectoryKey, TrajectorySort
from heddle_contracts.history import EndedTrajectory
from heddle_contracts.steps import Outcome, StepRecord
from heddle_gateway.store import schema
from heddle_gateway.store.engine import StoreError, history_url, open_engine
from heddle_gateway.store.history_reader import HistoryReader
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.store.tables import metadata, steps, trajectories
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import inspect, select
from sqlalchemy.ext.asyncio import AsyncEngine


def step(trajectory_id: str = "t", number: int = 0, **changes: object) -> StepRecord:
    at = 1000.0 + 10 * number
    fields: dict[str, object] = {
        "trajectory_id": trajectory_id,
        "tenant": "",
        "source": "header",
        "model": "m",
        "dialect": "chat",
        "step": number,
        "worker": "http://w1",
        "outcome": Outcome.DONE,
        "status": 200,
        "prompt_tokens": 100,
        "cached_tokens": 60,
        "output_tokens": 7,
        "arrived_at": at,
        "ended_at": at + 5,
    }
    return StepRecord.model_validate(fields | changes)


def end(
    trajectory_id: str = "t", at: float = 5000.0, reason: EndReason = EndReason.FINISHED
) -> EndedTrajectory:
    return EndedTrajectory("", trajectory_id, reason, at)


@pytest.fixture
async def sqlite_engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = open_engine(str(tmp_path / "made" / "history.db"))
    yield engine
    await engine.dispose()


async def tables_of(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


async def listed(engine: AsyncEngine, **wanted: object) -> list[str]:
    rows = await HistoryReader(engine).page(
        TrajectoryFilter.model_validate(wanted), TrajectorySort.LAST_SEEN, None, 100
    )
    return [row.trajectory_id for row in rows]


def test_columns_of_steps_are_the_fields_of_the_record() -> None:
    assert [column.name for column in steps.columns] == ["id", *StepRecord.model_fields]


async def test_migrations_bring_an_empty_database_to_the_tables(engine: AsyncEngine) -> None:
    await schema.upgrade(engine)
    assert await schema.differences(engine) == []
    assert await schema.revision_of(engine) == schema.newest_revision()


async def test_the_check_of_differences_sees_one(engine: AsyncEngine) -> None:
    await schema.upgrade(engine)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE steps DROP COLUMN finish_reason")
    assert any("finish_reason" in found for found in await schema.differences(engine))


async def test_migrations_undo_themselves_and_come_again(engine: AsyncEngine) -> None:
    await schema.upgrade(engine)
    await schema.downgrade(engine, "base")
    assert not await tables_of(engine) & set(metadata.tables)
    await schema.upgrade(engine)
    assert await schema.differences(engine) == []


async def test_a_migration_that_fails_leaves_nothing_behind(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.exec_driver_sql("CREATE TABLE steps (in_the_way INTEGER)")
    with pytest.raises(StoreError, match="already exists"):
        await schema.upgrade(engine)
    assert await tables_of(engine) & {"trajectories", "alembic_version"} == set()
    async with engine.begin() as connection:
        await connection.exec_driver_sql("DROP TABLE steps")
    await schema.upgrade(engine)
    assert await schema.differences(engine) == []


async def test_an_upgrade_of_a_current_database_changes_nothing(engine: AsyncEngine) -> None:
    await StepWriter(engine).write([step()], [])
    await schema.upgrade(engine)
    assert await listed(engine) == ["t"]


async def test_a_database_of_a_newer_build_is_refused_by_name(engine: AsyncEngine) -> None:
    await schema.upgrade(engine)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="9999"):
        await schema.upgrade(engine)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("mysql://localhost/heddle", "sqlite or postgresql"),
        ("", "no history database"),
        ("://", "not a database URL"),
        ("postgresql+psycopg://localhost/heddle", "write postgresql://"),
        ("/proc/nowhere/history.db", "cannot make /proc/nowhere"),
    ],
)
def test_a_location_that_cannot_be_is_explained(location: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        open_engine(location)


def test_urls_get_the_driver_that_waits_without_blocking() -> None:
    assert history_url("sqlite:///x.db").drivername == "sqlite+aiosqlite"
    assert history_url("postgresql://db/heddle").drivername == "postgresql+asyncpg"
    assert history_url("postgresql+asyncpg://db/heddle").drivername == "postgresql+asyncpg"
    assert history_url("data/x.db").database == "data/x.db"


async def test_a_step_is_read_as_it_was_written(engine: AsyncEngine) -> None:
    full = step(
        group_id="g",
        sample=3,
        parent_id="p",
        segment=2,
        attempts=2,
        retries=1,
        finish_reason="tool_calls",
        tool_names=("bash", "édit"),
        usage_known=True,
        priority_level=4,
        dispatched_at=1001.25,
        first_byte_at=1002.5,
        gap_before_s=0.75,
    )
    assert await StepWriter(engine).write([full], []) == "written"
    page = await HistoryReader(engine).steps(TrajectoryKey("", "t"), None, 10)
    assert page.items == [full]
    assert page.next_after is None


async def test_totals_add_over_batches(engine: AsyncEngine) -> None:
    writer = StepWriter(engine)
    await writer.write([step(number=0), step(number=1, outcome=Outcome.ABORTED)], [])
    await writer.write([step(number=2, segment=1, worker="http://w2", group_id="g")], [])
    [found] = await HistoryReader(engine).trajectory("t")
    assert found.steps == 3
    assert found.segments == 2
    assert found.outcomes == {Outcome.DONE: 2, Outcome.ABORTED: 1}
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (300, 180, 21)
    assert (found.first_seen, found.last_seen) == (1000.0, 1025.0)
    assert (found.worker, found.group_id, found.phase) == ("http://w2", "g", Phase.DORMANT)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_totals_do_not_depend_on_order_or_batching(engine: AsyncEngine, data: st.DataObject) -> None:
    """Two tenants get the same records, one in order and at once, the other shuffled and in two batches."""
    example = uuid4().hex
    records = [
        step(
            example,
            number,
            worker=data.draw(st.sampled_from([None, "w1", "w2"])),
            model=data.draw(st.sampled_from([None, "m1", "m2"])),
            segment=data.draw(st.integers(0, 2)),
            outcome=data.draw(st.sampled_from(Outcome)),
            output_tokens=data.draw(st.integers(0, 100)),
        )
        for number in range(data.draw(st.integers(1, 8)))
    ]
    shuffled = data.draw(st.permutations(records))
    cut = data.draw(st.integers(0, len(records)))
    writer = StepWriter(engine)
    for tenant, batch in (("a", records), ("b", shuffled[:cut]), ("b", shuffled[cut:])):
        assert (
            await writer.write([one.model_copy(update={"tenant": tenant}) for one in batch], []) == "written"
        )
    in_order, shuffled_total = await HistoryReader(engine).trajectory(example)
    assert shuffled_total.model_copy(update={"tenant": "a"}) == in_order


async def test_an_ended_trajectory_is_shown_ended_until_it_goes_on(engine: AsyncEngine) -> None:
    writer, reader = StepWriter(engine), HistoryReader(engine)
    await writer.write([step()], [end(at=1005.0)])
    [found] = await reader.trajectory("t")
    assert (found.phase, found.ended_at) == (Phase.FINISHED, 1005.0)
    await writer.write([step(number=1)], [])
    [found] = await reader.trajectory("t")
    assert (found.phase, found.ended_at) == (Phase.DORMANT, None)
    await writer.write([], [end(at=9000.0, reason=EndReason.EXPIRED)])
    [found] = await reader.trajectory("t")
    assert found.phase is Phase.EXPIRED


async def test_the_end_of_a_trajectory_without_steps_leaves_no_row(engine: AsyncEngine) -> None:
    assert await StepWriter(engine).write([], [end("nobody")]) == "written"
    assert await listed(engine) == []


async def test_filters_choose_what_they_name(engine: AsyncEngine) -> None:
    await StepWriter(engine).write(
        [
            step("a/1", 0),
            step("A/2", 1, model="other", worker="http://w2"),
            step("a%3", 2, group_id="g", source="fingerprint"),
            step("b_4", 3, tenant="x"),
        ],
        [end("a/1")],
    )
    assert await listed(engine, model="other") == ["A/2"]
    assert await listed(engine, worker="http://w2") == ["A/2"]
    assert await listed(engine, group="g") == ["a%3"]
    assert await listed(engine, source="fingerprint") == ["a%3"]
    assert await listed(engine, tenant="x") == ["b_4"]
    assert await listed(engine, since=1025.0) == ["a%3", "b_4"]
    assert await listed(engine, prefix="a") == ["a/1", "a%3"]
    assert await listed(engine, prefix="a%") == ["a%3"]
    assert await listed(engine, prefix="_") == []
    assert await listed(engine, phase="finished") == ["a/1"]
    assert await listed(engine, phase="dormant") == ["A/2", "a%3", "b_4"]
    assert await listed(engine, phase="finished", model="other") == []


@pytest.mark.parametrize("sort", list(TrajectorySort))
async def test_pages_hold_each_trajectory_once_in_order(engine: AsyncEngine, sort: TrajectorySort) -> None:
    # Equal values on purpose: ties must not be lost between pages.
    records = [step(f"t{number:02}", number % 3, tenant="xy"[number % 2]) for number in range(17)]
    await StepWriter(engine).write(records, [])
    reader = HistoryReader(engine)
    found, after = [], None
    while page := await reader.page(TrajectoryFilter(), sort, after, 4):
        found += page
        after = (getattr(page[-1], sort.field), page[-1].trajectory_id, page[-1].tenant)
    assert sorted(one.trajectory_id for one in found) == [f"t{number:02}" for number in range(17)]
    values = [getattr(one, sort.field) for one in found]
    assert values == sorted(values, reverse=sort.descending)


async def test_steps_come_in_pages(engine: AsyncEngine) -> None:
    await StepWriter(engine).write([step(number=number) for number in range(5)], [])
    reader = HistoryReader(engine)
    first = await reader.steps(TrajectoryKey("", "t"), None, 3)
    rest = await reader.steps(TrajectoryKey("", "t"), first.next_after, 3)
    assert [one.step for one in first.items] == [0, 1, 2]
    assert [one.step for one in rest.items] == [3, 4]
    assert rest.next_after is None


async def test_two_tenants_may_use_one_id(engine: AsyncEngine) -> None:
    await StepWriter(engine).write([step(tenant="x"), step(tenant="y"), step(tenant="y", number=1)], [])
    reader = HistoryReader(engine)
    assert [(one.tenant, one.steps) for one in await reader.trajectory("t")] == [("x", 1), ("y", 2)]
    assert [one.tenant for one in await reader.trajectory("t", "y")] == ["y"]
    assert set(await reader.totals([TrajectoryKey("x", "t")])) == {TrajectoryKey("x", "t")}


async def test_a_restarted_process_finds_what_was_going_on(engine: AsyncEngine) -> None:
    await StepWriter(engine).write([step("old"), step("going", 5), step("over", 6)], [end("over")])
    recent = [one async for page in HistoryReader(engine).recent(1030.0, 10) for one in page]
    assert [(one.trajectory_id, one.steps) for one in recent] == [("going", 6)]


async def test_texts_that_no_database_takes_are_mended(engine: AsyncEngine) -> None:
    assert await StepWriter(engine).write([step("good"), step("bad\ud800", model="a\0b")], []) == "written"
    assert await listed(engine) == ["bad?", "good"]


@pytest.mark.parametrize("field", ["output_tokens", "priority_level"])
async def test_values_that_do_not_fit_are_refused_and_nothing_of_the_batch_stays(
    engine: AsyncEngine, field: str
) -> None:
    """One that stands in the totals as well, and one that stands in the steps alone."""
    writer = StepWriter(engine)
    assert await writer.write([step("good"), step("bad", **{field: 2**70})], []) == "refused"
    assert await writer.write([step("later")], []) == "written"
    assert await listed(engine) == ["later"]


@pytest.mark.services
async def test_a_connection_that_breaks_in_a_batch_is_an_outage_and_nothing_of_the_batch_stays(
    postgresql: Any,
) -> None:
    engine = open_engine(postgresql.new_database())
    writer = StepWriter(engine)
    assert await writer.write([step("before")], []) == "written"
    # Another session holds the table that a batch writes last, until the writer's connection is cut.
    async with engine.connect() as other, engine.connect() as third:
        await other.exec_driver_sql("LOCK TABLE steps IN ACCESS EXCLUSIVE MODE")
        writing = asyncio.create_task(writer.write([step("cut")], []))
        await third.execution_options(isolation_level="AUTOCOMMIT")
        cut = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        async with asyncio.timeout(30):
            while not (await third.exec_driver_sql(cut)).all():  # noqa: ASYNC110  PostgreSQL is waited for
                await asyncio.sleep(0.01)
        assert await writing == "unavailable"
    assert await listed(engine) == ["before"]
    assert await writer.write([step("cut")], []) == "written"
    assert await listed(engine) == ["before", "cut"]
    await engine.dispose()


async def test_a_locked_database_is_unavailable_and_then_not(
    sqlite_engine: AsyncEngine, tmp_path: Path
) -> None:
    engine = sqlite_engine
    writer = StepWriter(engine)
    await writer.write([step()], [])
    other = sqlite3.connect(tmp_path / "made" / "history.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert await writer.write([step(number=1)], []) == "unavailable"
    assert "locked" in (writer.last_error or "")
    assert [one.steps for one in await HistoryReader(engine).trajectory("t")] == [1]
    other.execute("ROLLBACK")
    other.close()
    assert await writer.write([step(number=1)], []) == "written"
    assert writer.last_error is None


async def test_a_spill_segment_is_written_once(engine: AsyncEngine) -> None:
    writer = StepWriter(engine)
    assert await writer.write([step()], [], "spill-1") == "written"
    assert await writer.write([step()], [], "spill-1") == "written"
    [found] = await HistoryReader(engine).trajectory("t")
    assert found.outcomes == {Outcome.DONE: 1}


async def test_a_damaged_database_cannot_be_read_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_bytes(b"this is not a database, far from it" * 100)
    engine = open_engine(str(tmp_path / "history.db"))
    with pytest.raises(StoreError, match="cannot be read"):
        await HistoryReader(engine).trajectory("t")
    assert await StepWriter(engine).write([step()], []) == "unavailable"
    await engine.dispose()


@pytest.mark.parametrize("count", [1, 2, 3, 255, 256, 257, 700])
async def test_batches_of_any_size_are_written_whole_and_in_order(engine: AsyncEngine, count: int) -> None:
    records = [step(f"t{number}", number) for number in range(count)]
    assert await StepWriter(engine).write(records, []) == "written"
    async with engine.connect() as connection:
        numbers = (await connection.execute(select(steps.c.step).order_by(steps.c.id))).scalars().all()
        ids = (await connection.execute(select(trajectories.c.trajectory_id))).scalars().all()
    assert numbers == list(range(count))
    assert sorted(ids) == sorted(record.trajectory_id for record in records)
