"""Writes batches of ended steps and ended trajectories, each batch in one transaction.

A batch is written wholly or not at all. The caller learns which, and whether trying again can help; that is
all it needs, so the answer is a word and not an exception of this package (`telemetry` does not import
`store`).
"""

import json
import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal

from heddle_contracts.steps import StepRecord
from sqlalchemy import bindparam, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from heddle_gateway.store.engine import STORE_FAULTS, StoreError, is_refusal, one_line
from heddle_gateway.store.schema import upgrade
from heddle_gateway.store.tables import spill_segments, steps, trajectories
from heddle_gateway.store.totals import totals_of, upsert_totals

WriteResult = Literal["written", "unavailable", "refused"]

# The layout of the rows this build writes, not something a step knows.
SCHEMA_VERSION: int = StepRecord.model_fields["schema_version"].default
FIELDS = tuple(name for name in StepRecord.model_fields if name != "schema_version")
_values_of = attrgetter(*FIELDS)


def row_of(step: Any) -> dict[str, Any]:
    """The row of `steps` for an object with the attributes of StepRecord, schema_version excepted."""
    row = dict(zip(FIELDS, _values_of(step), strict=True))
    row["tool_names"] = json.dumps(row["tool_names"]) if row["tool_names"] else "[]"
    row["outcome"] = str(row["outcome"])
    row["schema_version"] = SCHEMA_VERSION
    return row


def cleaned(row: dict[str, Any]) -> dict[str, Any]:
    """The row with texts every database takes: no lone surrogates, no NUL (PostgreSQL refuses it)."""
    return {name: _plain(value) if isinstance(value, str) else value for name, value in row.items()}


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


class StepWriter:
    """The write side of history. Safe to use from one task; reads go on beside it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._has_schema = False
        self._insert = steps.insert()
        self._upsert = upsert_totals(engine.dialect.name)
        self._end = (
            trajectories.update()
            .where(
                trajectories.c.trajectory_id == bindparam("key_id"),
                trajectories.c.tenant == bindparam("key_tenant"),
                or_(trajectories.c.ended_at.is_(None), trajectories.c.ended_at <= bindparam("at")),
            )
            .values(ended_at=bindparam("at"), end_reason=bindparam("reason"))
        )
        self.last_error: str | None = None

    async def write(
        self, ended_steps: Sequence[Any], ended_trajectories: Sequence[Any], segment: str | None = None
    ) -> WriteResult:
        """Writes one batch: objects with the attributes of StepRecord, and of EndedTrajectory.

        ``segment`` names the spill segment the batch was read from; one that was written before is "written".
        """
        rows = [row_of(step) for step in ended_steps]
        ends = [
            {
                "key_id": end.trajectory_id,
                "key_tenant": end.tenant,
                "at": end.ended_at,
                "reason": str(end.reason),
            }
            for end in ended_trajectories
        ]
        try:
            await self._make_schema()
            try:
                await self._write_rows(rows, ends, segment)
            except STORE_FAULTS as fault:
                if not is_refusal(fault):
                    raise
                await self._write_rows(
                    [cleaned(row) for row in rows], [cleaned(end) for end in ends], segment
                )
        except (*STORE_FAULTS, StoreError) as fault:
            self.last_error = one_line(fault)
            return "refused" if is_refusal(fault) else "unavailable"
        self.last_error = None
        return "written"

    async def prepare(self) -> bool:
        """Makes or upgrades the tables ahead of the first write; False if it failed (a write tries again)."""
        try:
            await self._make_schema()
        except (*STORE_FAULTS, StoreError) as fault:
            self.last_error = one_line(fault)
            return False
        return True

    async def _make_schema(self) -> None:
        if not self._has_schema:
            await upgrade(self._engine)
            self._has_schema = True

    async def _write_rows(
        self, rows: list[dict[str, Any]], ends: list[dict[str, Any]], segment: str | None
    ) -> None:
        async with self._engine.begin() as connection:
            if segment is not None and not await self._claim(connection, segment):
                return
            if rows:
                await connection.execute(self._insert, rows)
                await connection.execute(self._upsert, totals_of(rows))
            if ends:
                await connection.execute(self._end, ends)

    async def _claim(self, connection: AsyncConnection, segment: str) -> bool:
        """Names the segment as read in this transaction; False if an earlier one already did."""
        seen = await connection.scalar(select(spill_segments.c.name).where(spill_segments.c.name == segment))
        if seen is not None:
            return False
        await connection.execute(spill_segments.insert().values(name=segment, read_at=time.time()))
        return True
