"""A database of each earlier schema, with data in it, comes to this build's schema and back."""

from typing import Any

import pytest
from alembic.script import ScriptDirectory
from heddle_contracts.admin import Phase
from heddle_contracts.steps import Outcome, StepRecord
from heddle_gateway.store import schema
from heddle_gateway.store.history_reader import HistoryReader
from heddle_gateway.store.step_writer import StepWriter
from sqlalchemy import Connection, MetaData, select
from sqlalchemy.ext.asyncio import AsyncEngine

Rows = dict[str, list[dict[str, Any]]]

# What a gateway of that schema had written. These stay as they are: later builds meet such rows.
WRITTEN: dict[str, Rows] = {
    "0001": {
        "trajectories": [
            {
                "trajectory_id": "swe/1",
                "tenant": "acme",
                "group_id": "g",
                "sample": 2,
                "source": "header",
                "model": "m",
                "model_at": 1006.5,
                "worker": "http://w1",
                "worker_at": 1006.5,
                "steps": 2,
                "segments": 1,
                "prompt_tokens": 2**40,
                "cached_tokens": 60,
                "output_tokens": 15,
                "done": 1,
                "aborted": 1,
                "worker_lost": 0,
                "client_error": 0,
                "worker_error": 0,
                "rejected": 0,
                "timed_out": 0,
                "first_seen": 1000.25,
                "last_seen": 1006.5,
                "ended_at": 1010.0,
                "end_reason": "finished",
            }
        ],
        "steps": [
            {
                "id": number + 1,
                "schema_version": 1,
                "trajectory_id": "swe/1",
                "tenant": "acme",
                "group_id": "g",
                "sample": 2,
                "source": "header",
                "model": "m",
                "dialect": "chat",
                "step": number,
                "segment": 0,
                "attempts": 1,
                "retries": 0,
                "worker": "http://w1",
                "outcome": ("done", "aborted")[number],
                "status": 200,
                "finish_reason": (None, "stop")[number],
                "tool_names": '["bash", "\\u00e9dit"]',
                "prompt_tokens": 2**39,
                "cached_tokens": 30,
                "output_tokens": 7 + number,
                "usage_known": bool(number),
                "arrived_at": 1000.25 + number,
                "ended_at": 1005.5 + number,
                "gap_before_s": (None, 0.5)[number],
            }
            for number in range(2)
        ],
        "spill_segments": [{"name": "spill-00000000000000000001-2.jsonl", "read_at": 1007.0}],
    },
}


def earlier_revisions() -> list[str]:
    """All but the newest, oldest first."""
    scripts = ScriptDirectory(str(schema.MIGRATIONS)).walk_revisions()
    return [script.revision for script in scripts][:0:-1]


async def fill(engine: AsyncEngine, rows: Rows) -> None:
    def insert(connection: Connection) -> None:
        there = MetaData()
        there.reflect(connection)
        for name, values in rows.items():
            # The database numbers steps itself.
            given = [{key: value for key, value in row.items() if key != "id"} for row in values]
            connection.execute(there.tables[name].insert(), given)

    async with engine.begin() as connection:
        await connection.run_sync(insert)


async def found(engine: AsyncEngine, rows: Rows) -> Rows:
    """The columns that were written, of all rows of these tables."""

    def read(connection: Connection) -> Rows:
        there = MetaData()
        there.reflect(connection)
        read: Rows = {}
        for name, values in rows.items():
            columns = [there.tables[name].c[column] for column in values[0]]
            read[name] = [dict(row) for row in connection.execute(select(*columns)).mappings()]
        return read

    async with engine.connect() as connection:
        return await connection.run_sync(read)


def test_each_earlier_schema_has_its_data_here() -> None:
    assert list(WRITTEN) == earlier_revisions()


@pytest.mark.parametrize("revision", earlier_revisions())
async def test_data_of_an_earlier_schema_comes_along_and_goes_back(
    engine: AsyncEngine, revision: str
) -> None:
    await schema.upgrade(engine, revision)
    assert await schema.revision_of(engine) == revision
    await fill(engine, WRITTEN[revision])

    await schema.upgrade(engine)
    assert await schema.differences(engine) == []
    assert await found(engine, WRITTEN[revision]) == WRITTEN[revision]
    (trajectory,) = await HistoryReader(engine).trajectory("swe/1")
    assert (trajectory.phase, trajectory.steps, trajectory.prompt_tokens) == (Phase.FINISHED, 2, 2**40)
    steps = await HistoryReader(engine).steps(trajectory.key, None, 10)
    assert [one.tool_names for one in steps.items] == [("bash", "édit")] * 2

    # A row's number goes on from those that were there, and totals go on adding.
    more = StepRecord(
        trajectory_id="swe/1",
        tenant="acme",
        source="header",
        dialect="chat",
        step=2,
        outcome=Outcome.DONE,
        arrived_at=1020.0,
        ended_at=1021.0,
    )
    assert await StepWriter(engine).write([more], []) == "written"
    (trajectory,) = await HistoryReader(engine).trajectory("swe/1")
    assert (trajectory.phase, trajectory.steps) == (Phase.DORMANT, 3)

    await schema.downgrade(engine, revision)
    assert await schema.revision_of(engine) == revision
    back = await found(engine, WRITTEN[revision])
    assert back["steps"][:2] == WRITTEN[revision]["steps"]
    assert len(back["steps"]) == 3
    assert back["spill_segments"] == WRITTEN[revision]["spill_segments"]
    await schema.upgrade(engine)
    assert await schema.differences(engine) == []
