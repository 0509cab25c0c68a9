"""Ended moves of KV in SQL: how one becomes a row and comes back, and the read side."""

from typing import Any

from heddle_contracts.migrations import Move, MoveFilter
from sqlalchemy import ColumnElement, bindparam, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.dml import Insert

from heddle_gateway.store.engine import reading
from heddle_gateway.store.tables import migrations

Position = tuple[float, str, int]
"""Where a page ends: (ended_at, process, id)."""

_m = migrations.c


def insert_move(dialect: str) -> Insert:
    """Adds a move unless it is there; ``dialect`` is SQLAlchemy's name, sqlite or postgresql."""
    insert = postgresql.insert(migrations) if dialect == "postgresql" else sqlite.insert(migrations)
    values: dict[str, Any] = {column.name: bindparam(column.name) for column in migrations.columns}
    return insert.values(values).on_conflict_do_nothing()


def move_row(move: Move) -> dict[str, Any]:
    """The parameters of `insert_move`."""
    row = {column.name: getattr(move, column.name) for column in migrations.columns}
    return row | {"state": move.state.value}


class MoveHistory:
    """The read side. Raises StoreError when the database cannot be read."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def page(self, wanted: MoveFilter, after: Position | None, limit: int) -> list[Move]:
        """Up to ``limit`` ended moves beyond ``after``, the one that ended last first."""
        place = (_m.ended_at, _m.process, _m.id)
        query = select(migrations).where(*_conditions(wanted))
        if after is not None:
            query = query.where(tuple_(*place) < after)
        query = query.order_by(*(column.desc() for column in place)).limit(limit)
        async with reading(self._engine) as connection:
            return [Move(**row) for row in (await connection.execute(query)).mappings()]


def _conditions(wanted: MoveFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [
        column == value
        for column, value in (
            (_m.trajectory_id, wanted.trajectory_id),
            (_m.tenant, wanted.tenant),
            (_m.state, wanted.state.value if wanted.state is not None else None),
            (_m.asked_by, wanted.asked_by),
        )
        if value is not None
    ]
    if wanted.worker is not None:
        found.append(or_(_m.from_worker == wanted.worker, _m.to_worker == wanted.worker))
    if wanted.since is not None:
        found.append(_m.ended_at >= wanted.since)
    return found
