"""Writes batches of ended steps and of what else history keeps, each batch in one transaction.

A batch is written wholly or not at all. The caller learns which, and whether trying again can help; that is
all it needs, so the answer is a word and not an exception of this package (`telemetry` does not import
`store`).
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Literal

from heddle_contracts.history import EndedTrajectory, HistoryRecord, PlanRecord
from heddle_contracts.migrations import Move
from heddle_contracts.steps import StepRecord
from sqlalchemy import Executable, bindparam, delete, or_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from heddle_gateway.store.engine import STORE_FAULTS, StoreError, is_refusal, one_line
from heddle_gateway.store.many_rows import many_new_rows, many_rows
from heddle_gateway.store.move_history import insert_move, move_row
from heddle_gateway.store.plan_history import plan_row, upsert_plan
from heddle_gateway.store.schema import upgrade
from heddle_gateway.store.tables import spill_segments, steps, trajectories
from heddle_gateway.store.totals import totals_of, upsert_totals

WriteResult = Literal["written", "unavailable", "refused"]
Rows = tuple[Executable, list[dict[str, Any]]]
"""A statement and its parameters, by name."""

# The layout of the rows this build writes, not something a step knows.
SCHEMA_VERSION: int = StepRecord.model_fields["schema_version"].default
PATIENCE_S = 60.0
MOST_PATIENCE = 16
# Made before the event loop gets its turn: about a millisecond.
ROWS_A_TURN = 256
FIELDS = tuple(name for name in StepRecord.model_fields if name != "schema_version")


class _StepRow:
    """Makes the parameters of the insert of one step."""

    def __init__(self, parameters: tuple[str, ...]) -> None:
        first, *rest = parameters
        assert first == "schema_version"
        self._values: Callable[[Any], tuple[Any, ...]] = attrgetter(*rest)
        self._outcome = parameters.index("outcome")
        self._tool_names = parameters.index("tool_names")

    def __call__(self, step: Any) -> tuple[Any, ...]:
        row = [SCHEMA_VERSION, *self._values(step)]
        row[self._outcome] = row[self._outcome].value
        row[self._tool_names] = _json_list(row[self._tool_names])
        return tuple(row)


@lru_cache(maxsize=4096)
def _json_list(names: tuple[str, ...]) -> str:
    return json.dumps(names)


def mended(item: Any, names: Sequence[str]) -> Any:
    """A copy with texts that every database takes: no lone surrogates, no NUL (PostgreSQL refuses it)."""
    values = {name: getattr(item, name) for name in names}
    return SimpleNamespace(
        **{name: _mended_text(value) if type(value) is str else value for name, value in values.items()}
    )


def _mended_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _mended_rows(others: Sequence[Rows]) -> list[Rows]:
    return [
        (
            statement,
            [
                {name: _mended_text(value) if type(value) is str else value for name, value in row.items()}
                for row in rows
            ],
        )
        for statement, rows in others
    ]


def _end_row(end: EndedTrajectory) -> dict[str, Any]:
    return {
        "key_id": end.trajectory_id,
        "key_tenant": end.tenant,
        "at": end.ended_at,
        "why": end.reason.value,
    }


class StepWriter:
    """The write side of history. Safe to use from one task; reads go on beside it.

    ``namespace``: whose plans these are. ``patience_s``: how long a server may take over a batch. One
    behind a network that drops packets is noticed by nothing else until TCP gives up, after a quarter of an
    hour; one that is slow gets twice the time with each try, up to `MOST_PATIENCE` times.
    """

    def __init__(
        self, engine: AsyncEngine, namespace: str = "default", patience_s: float = PATIENCE_S
    ) -> None:
        self._engine = engine
        # SQLite waits for nobody but the disk, in a thread that cannot be cancelled.
        self._patience_s = patience_s if engine.dialect.name == "postgresql" else None
        self._more_patience = 1
        self._namespace = namespace
        self._has_schema = False
        self._insert = many_new_rows(steps, engine)
        self._row = _StepRow(self._insert.parameters)
        self._upsert = many_rows(upsert_totals(engine.dialect.name), engine)
        self._total: Callable[[Any], tuple[Any, ...]] = attrgetter(*self._upsert.parameters)
        self._end = (
            trajectories.update()
            .where(
                trajectories.c.trajectory_id == bindparam("key_id"),
                trajectories.c.tenant == bindparam("key_tenant"),
                or_(trajectories.c.ended_at.is_(None), trajectories.c.ended_at <= bindparam("at")),
            )
            .values(ended_at=bindparam("at"), end_reason=bindparam("why"))
        )
        self._plan = upsert_plan(engine.dialect.name)
        self._move = insert_move(engine.dialect.name)
        insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
        self._claims = insert(spill_segments).on_conflict_do_nothing()
        self.last_error: str | None = None

    async def prepare(self) -> bool:
        """Makes or upgrades the tables ahead of the first write; False if it failed (a write tries again)."""
        try:
            await self._make_schema()
        except (*STORE_FAULTS, StoreError) as fault:
            self.last_error = one_line(fault)
            return False
        return True

    async def write(
        self,
        ended_steps: Sequence[Any],
        others: Sequence[HistoryRecord],
        segment: str | None = None,
        settled: Sequence[str] = (),
    ) -> WriteResult:
        """Writes one batch: objects with the attributes of StepRecord, and other records.

        ``segment`` names the spill segment that holds the batch; one that was written before is "written".
        ``settled``: segments that are gone; their names are forgotten.
        """
        try:
            await self._make_schema()
            try:
                await self._write_in_time(ended_steps, self._rows(others), segment, settled)
            except STORE_FAULTS as fault:
                if not is_refusal(fault):
                    raise
                good_steps = [mended(step, FIELDS) for step in ended_steps]
                await self._write_in_time(good_steps, _mended_rows(self._rows(others)), segment, settled)
        except (*STORE_FAULTS, StoreError) as fault:
            self.last_error = one_line(fault)
            return "refused" if is_refusal(fault) else "unavailable"
        self.last_error = None
        return "written"

    async def _make_schema(self) -> None:
        if not self._has_schema:
            await upgrade(self._engine)
            self._has_schema = True

    async def _write_in_time(
        self, ended_steps: Sequence[Any], others: Sequence[Rows], segment: str | None, settled: Sequence[str]
    ) -> None:
        patience_s = None if self._patience_s is None else self._patience_s * self._more_patience
        try:
            async with asyncio.timeout(patience_s) as limit:
                await self._write(ended_steps, others, segment, settled)
        except TimeoutError as error:
            if not limit.expired():
                raise
            self._more_patience = min(2 * self._more_patience, MOST_PATIENCE)
            raise TimeoutError(f"the database took more than {patience_s:g} s over a batch") from error
        self._more_patience = 1

    async def _write(
        self, ended_steps: Sequence[Any], others: Sequence[Rows], segment: str | None, settled: Sequence[str]
    ) -> None:
        totals = [self._total(total) for total in totals_of(ended_steps)]
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(ended_steps), ROWS_A_TURN):
            await asyncio.sleep(0)
            rows += map(self._row, ended_steps[start : start + ROWS_A_TURN])
        async with self._engine.begin() as connection:
            if settled:
                await connection.execute(delete(spill_segments).where(spill_segments.c.name.in_(settled)))
            if segment is not None and not await self._claim(connection, segment):
                return
            if ended_steps:
                await self._upsert.execute(connection, totals)
                await self._insert.execute(connection, rows)
            for statement, parameters in others:
                await connection.execute(statement, parameters)

    def _rows(self, others: Sequence[HistoryRecord]) -> list[Rows]:
        """The statements that write these records, with their parameters."""
        found: tuple[Rows, ...] = ((self._end, []), (self._plan, []), (self._move, []))
        (_, ends), (_, kept), (_, moved) = found
        for record in others:
            match record:
                case EndedTrajectory():
                    ends.append(_end_row(record))
                case PlanRecord():
                    kept.append(plan_row(record, self._namespace))
                case Move():
                    moved.append(move_row(record))
        return [(statement, rows) for statement, rows in found if rows]

    async def _claim(self, connection: AsyncConnection, segment: str) -> bool:
        """Names the segment as read in this transaction; False if an earlier one already did."""
        claimed = await connection.execute(self._claims, {"name": segment, "read_at": time.time()})
        return claimed.rowcount > 0
