"""One list of trajectories out of two sources: the running gateway's directory and the history database.

A trajectory that the gateway holds is taken from there and its history only supplies the totals; all others
come from history. Both streams are in the order of the sort key, so that a page is a merge and a cursor is a
position in that order, not an offset: what is added meanwhile shifts nothing.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import merge, nsmallest
from http import HTTPStatus
from typing import Protocol

from heddle_contracts.admin import (
    LiveTrajectory,
    Phase,
    StepPage,
    TrajectoryFilter,
    TrajectoryKey,
    TrajectoryPage,
    TrajectorySort,
    TrajectorySummary,
)

from heddle_gateway.routes.admin_problem import AdminProblem

# Directory entries looked at before the event loop gets its turn: about a millisecond.
LOOKS_PER_TURN = 500
# Phases that a trajectory without a live view can be in.
HISTORIC = frozenset({Phase.FINISHED, Phase.EXPIRED, Phase.DORMANT})

Position = tuple[float, str, str]
"""(value of the sort key, trajectory id, tenant)."""


class LiveTrajectories(Protocol):
    """The trajectories the gateway holds now."""

    def keys(self) -> Collection[TrajectoryKey]:
        """A snapshot: what comes or goes later does not change it."""

    def view(self, key: TrajectoryKey) -> LiveTrajectory | None:
        """None for one that is not held (any more)."""

    def named(self, trajectory_id: str) -> Sequence[TrajectoryKey]:
        """The held trajectories of this id: one per tenant that uses it."""

    def finish(self, key: TrajectoryKey) -> bool:
        """No further step is expected; False if it is not held."""


class TrajectoryHistory(Protocol):
    """Ended steps and their totals; see `store.history_reader`."""

    async def page(
        self, wanted: TrajectoryFilter, sort: TrajectorySort, after: Position | None, limit: int
    ) -> list[TrajectorySummary]: ...
    async def trajectory(self, trajectory_id: str, tenant: str | None = None) -> list[TrajectorySummary]: ...
    async def totals(self, keys: Sequence[TrajectoryKey]) -> dict[TrajectoryKey, TrajectorySummary]: ...
    async def steps(self, key: TrajectoryKey, after: int | None, limit: int) -> StepPage: ...


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """A summary's place in the list; compares as the list is sorted."""

    value: float
    trajectory_id: str
    tenant: str


def _place(one: TrajectorySummary | LiveTrajectory, sort: TrajectorySort) -> _Place:
    value = getattr(one, sort.field)
    return _Place(-value if sort.descending else value, one.trajectory_id, one.tenant)


def write_cursor(last: TrajectorySummary, sort: TrajectorySort) -> str:
    """An opaque text that names the position after ``last``."""
    position = [sort.value, getattr(last, sort.field), last.trajectory_id, last.tenant]
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def read_cursor(cursor: str, sort: TrajectorySort) -> Position:
    """Raises AdminProblem when the text is not a cursor, or is one of another sort order."""
    fix = "Send next_cursor of the last page as it came, with the same sort."
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        made_for, value, trajectory_id, tenant = json.loads(base64.urlsafe_b64decode(padded))
        position = (float(value), str(trajectory_id), str(tenant))
    except (ValueError, TypeError, binascii.Error) as error:
        raise AdminProblem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "cursor: not a cursor of this list", field="cursor", fix=fix
        ) from error
    if made_for != sort.value:
        raise AdminProblem(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"cursor: made for sort={made_for}", field="cursor", fix=fix
        )
    return position


def overlaid(live: LiveTrajectory, totals: TrajectorySummary | None) -> TrajectorySummary:
    """History's totals with what the gateway knows now laid over them."""
    facts = live.model_dump(exclude_none=True)
    base = totals or TrajectorySummary(**facts, outcomes={})
    return base.model_copy(update={name: getattr(live, name) for name in facts} | {"ended_at": None})


def _matches(live: LiveTrajectory, wanted: TrajectoryFilter) -> bool:
    return (
        wanted.phase in (None, live.phase)
        and wanted.model in (None, live.model)
        and wanted.worker in (None, live.worker)
        and wanted.group in (None, live.group_id)
        and wanted.source in (None, live.source)
        and wanted.tenant in (None, live.tenant)
        and (wanted.since is None or live.last_seen >= wanted.since)
        and live.trajectory_id.startswith(wanted.prefix or "")
    )


async def list_trajectories(
    live: LiveTrajectories,
    history: TrajectoryHistory,
    wanted: TrajectoryFilter,
    sort: TrajectorySort,
    cursor: str | None,
    limit: int,
) -> TrajectoryPage:
    """A page of at most ``limit`` trajectories. Raises AdminProblem (cursor), StoreError (history away)."""
    after = read_cursor(cursor, sort) if cursor else None
    held = frozenset(live.keys())
    first = await _live_page(live, held, wanted, sort, after, limit + 1)
    second: list[TrajectorySummary] = []
    if wanted.phase is None or wanted.phase in HISTORIC:
        second = await _history_page(history, held, wanted, sort, after, limit + 1)
    totals = await history.totals([TrajectoryKey(one.tenant, one.trajectory_id) for one in first])
    shown = [overlaid(one, totals.get(TrajectoryKey(one.tenant, one.trajectory_id))) for one in first]
    merged = list(merge(shown, second, key=lambda one: _place(one, sort)))
    items = merged[:limit]
    return TrajectoryPage(
        items=items, next_cursor=write_cursor(items[-1], sort) if len(merged) > limit else None
    )


async def _live_page(
    live: LiveTrajectories,
    held: Collection[TrajectoryKey],
    wanted: TrajectoryFilter,
    sort: TrajectorySort,
    after: Position | None,
    limit: int,
) -> list[LiveTrajectory]:
    found = []
    beyond = _Place(-after[0] if sort.descending else after[0], after[1], after[2]) if after else None
    for looked, key in enumerate(held):
        if looked % LOOKS_PER_TURN == LOOKS_PER_TURN - 1:
            await asyncio.sleep(0)
        one = live.view(key)
        if one is not None and _matches(one, wanted) and (beyond is None or _place(one, sort) > beyond):
            found.append(one)
    return nsmallest(limit, found, key=lambda one: _place(one, sort))


async def _history_page(
    history: TrajectoryHistory,
    held: Collection[TrajectoryKey],
    wanted: TrajectoryFilter,
    sort: TrajectorySort,
    after: Position | None,
    limit: int,
) -> list[TrajectorySummary]:
    """Those of history that the gateway does not hold."""
    found: list[TrajectorySummary] = []
    # Held trajectories are often the newest rows, so whole pages may fall away.
    size = limit
    while len(found) < limit:
        rows = await history.page(wanted, sort, after, size)
        found += [row for row in rows if row.key not in held]
        if len(rows) < size:
            break
        last = rows[-1]
        after = (getattr(last, sort.field), last.trajectory_id, last.tenant)
        size = min(2 * size, 2000)
    return found[:limit]
