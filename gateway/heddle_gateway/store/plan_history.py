"""Plans in SQL: how one becomes a row and comes back, and the read side.

A plan is written when it is kept and again when it is put in force; the later activation stays, in whatever
order the two arrive. Members and given lengths stand apart from the rest, so that a list need not read them.
"""

import json
from typing import Any, Final

from heddle_contracts.history import PlanRecord
from heddle_contracts.planning import Plan, PlanFilter
from sqlalchemy import ColumnElement, Select, and_, bindparam, case, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.dml import Insert

from heddle_gateway.store.engine import reading
from heddle_gateway.store.tables import plans

_p = plans.c
_ACTIVATION: Final = ("expires_at", "activated_at", "activated_by")
_COLUMNS: Final = ("version", "made_at", *_ACTIVATION)
# The state follows from the time and from what else is in force.
_ELSEWHERE: Final = frozenset({*_COLUMNS, "state", "members"})


def upsert_plan(dialect: str) -> Insert:
    """Adds a plan, or its newer activation; ``dialect`` is SQLAlchemy's name, sqlite or postgresql."""
    insert = postgresql.insert(plans) if dialect == "postgresql" else sqlite.insert(plans)
    insert = insert.values({column.name: bindparam(column.name) for column in plans.columns})
    new = insert.excluded
    newer = and_(
        new["activated_at"].is_not(None),
        or_(_p.activated_at.is_(None), new["activated_at"] >= _p.activated_at),
    )
    changes = {name: case((newer, new[name]), else_=_p[name]) for name in _ACTIVATION}
    return insert.on_conflict_do_update(index_elements=["namespace", "version", "made_at"], set_=changes)


def plan_row(record: PlanRecord, namespace: str) -> dict[str, Any]:
    """The parameters of `upsert_plan`."""
    plan = record.plan
    return {
        "namespace": namespace,
        **{name: getattr(plan, name) for name in _COLUMNS},
        "reason": plan.reason.value,
        "making": plan.making.value,
        "live": plan.live,
        # Python's JSON: ids may hold lone surrogates, for which pydantic's has no bytes.
        "plan": json.dumps(plan.model_dump(exclude=set(_ELSEWHERE))),
        "members": json.dumps(plan.members),
        "lengths": json.dumps(list(record.lengths)),
    }


class PlanHistory:
    """The plans of one namespace, read. Every method raises StoreError when the database cannot be read.

    Where a version was given twice the plan made last counts.
    """

    def __init__(self, engine: AsyncEngine, namespace: str) -> None:
        self._engine = engine
        self._namespace = namespace

    async def page(self, wanted: PlanFilter, below: int | None, limit: int) -> list[Plan]:
        """Up to ``limit`` plans of versions below ``below``, newest first, without their members."""
        columns = [column for column in plans.columns if column.name not in ("members", "lengths")]
        query = self._of_namespace(select(*columns)).where(*_conditions(wanted)).limit(limit)
        if below is not None:
            query = query.where(_p.version < below)
        return [_plan_of(row) for row in await self._rows(query)]

    async def get(self, version: int) -> PlanRecord | None:
        """One plan with everything that is known of it."""
        rows = await self._rows(self._of_namespace(select(plans)).where(_p.version == version).limit(1))
        return _record_of(rows[0]) if rows else None

    async def last(self) -> tuple[int, PlanRecord | None]:
        """The highest version that was given, 0 for none; and the plan that was put in force last."""
        mine = _p.namespace == self._namespace
        async with reading(self._engine) as connection:
            highest = await connection.scalar(select(func.max(_p.version)).where(mine))
            query = select(plans).where(mine, _p.activated_at.is_not(None))
            query = query.order_by(_p.activated_at.desc()).limit(1)
            row = (await connection.execute(query)).mappings().first()
        return highest or 0, _record_of(row) if row is not None else None

    def _of_namespace(self, query: Select[Any]) -> Select[Any]:
        query = query.where(_p.namespace == self._namespace)
        return query.order_by(_p.version.desc(), _p.made_at.desc())

    async def _rows(self, query: Select[Any]) -> list[RowMapping]:
        async with reading(self._engine) as connection:
            return list((await connection.execute(query)).mappings())


def _conditions(wanted: PlanFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.reason is not None:
        found.append(_p.reason == wanted.reason.value)
    if wanted.making is not None:
        found.append(_p.making == wanted.making.value)
    if wanted.live is not None:
        found.append(_p.live.is_(wanted.live))
    if wanted.activated is not None:
        found.append(_p.activated_at.is_not(None) if wanted.activated else _p.activated_at.is_(None))
    if wanted.since is not None:
        found.append(_p.made_at >= wanted.since)
    return found


def _plan_of(row: RowMapping, members: str = "[]") -> Plan:
    fields = json.loads(row["plan"]) | {name: row[name] for name in _COLUMNS}
    return Plan.model_validate(fields | {"members": json.loads(members)})


def _record_of(row: RowMapping) -> PlanRecord:
    return PlanRecord(_plan_of(row, row["members"]), json.loads(row["lengths"]))
