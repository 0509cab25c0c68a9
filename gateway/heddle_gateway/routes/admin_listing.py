"""One list of trajectories out of two sources: the running gateway's directory and the history database.

A trajectory that the gateway holds is taken from there and its history only supplies the totals; all others
come from history. Both streams are in the order of the sort key, so that a page is a merge and a cursor is a
position in that order, not an offset: what is added meanwhile shifts nothing.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
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

from heddle_gateway.routes.admin_problem import AdminProblem, not_a_cursor

# Directory entries compared, and views taken, before the event loop gets its turn: about a millisecond each.
ENTRIES_PER_TURN = 1000
VIEWS_PER_TURN = 100
# Phases that a trajectory without a live view can be in.
HISTORIC = frozenset({Phase.FINISHED, Phase.EXPIRED, Phase.DORMANT})

Position = tuple[float, str, str]
"""(value of the sort key, trajectory id, tenant)."""


class LiveEntry(Protocol):
    """What the directory itself holds of a trajectory (see `live.directory`); the core is not asked."""

    @property
    def tenant(self) -> str: ...
    @property
    def trajectory_id(self) -> str: ...
    @property
    def group_id(self) -> str | None: ...
    @property
    def source(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def started_at(self) -> float: ...
    @property
    def last_seen_at(self) -> float: ...
    @property
    def step(self) -> int: ...


class LiveTrajectories(Protocol):
    """The trajectories the gateway holds now."""

    def entries(self) -> Sequence[LiveEntry]:
        """A snapshot of which there are; the entries themselves go on changing."""

    def holds(self, key: TrajectoryKey) -> bool: ...
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
        raise not_a_cursor(fix) from error
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


def _may_match(entry: LiveEntry, wanted: TrajectoryFilter) -> bool:
    """The filter as far as the directory can tell."""
    return (
        wanted.model in (None, entry.model)
        and wanted.group in (None, entry.group_id)
        and wanted.source in (None, entry.source)
        and wanted.tenant in (None, entry.tenant)
        and (wanted.since is None or entry.last_seen_at >= wanted.since)
        and entry.trajectory_id.startswith(wanted.prefix or "")
    )


def _matches(live: LiveTrajectory, wanted: TrajectoryFilter) -> bool:
    """The rest of the filter, which the core knows."""
    return wanted.phase in (None, live.phase) and wanted.worker in (None, live.worker)


def _entry_place(entry: LiveEntry, sort: TrajectorySort) -> _Place:
    values = {"last_seen": entry.last_seen_at, "first_seen": entry.started_at, "steps": entry.step + 1}
    value = values[sort.field]
    return _Place(-value if sort.descending else value, entry.trajectory_id, entry.tenant)


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
    second: list[TrajectorySummary] = []
    if wanted.phase is None or wanted.phase in HISTORIC:
        second = await _history_page(live, history, wanted, sort, after, limit + 1)
    first = await _live_page(live, wanted, sort, after, limit + 1)
    totals = await history.totals([TrajectoryKey(one.tenant, one.trajectory_id) for one in first])
    shown = [overlaid(one, totals.get(TrajectoryKey(one.tenant, one.trajectory_id))) for one in first]
    # By key: one that came to life between the two looks is in both, and its live view counts.
    both = {one.key: one for one in (*second, *shown)}
    page = sorted(both.values(), key=lambda one: _place(one, sort))
    items = page[:limit]
    return TrajectoryPage(
        items=items, next_cursor=write_cursor(items[-1], sort) if len(page) > limit else None
    )


async def _live_page(
    live: LiveTrajectories,
    wanted: TrajectoryFilter,
    sort: TrajectorySort,
    after: Position | None,
    limit: int,
) -> list[LiveTrajectory]:
    """The first ``limit`` held ones beyond ``after``; the core is asked of as few as possible."""
    beyond = _Place(-after[0] if sort.descending else after[0], after[1], after[2]) if after else None
    candidates: list[tuple[_Place, TrajectoryKey]] = []
    for looked, entry in enumerate(live.entries()):
        if looked % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1:
            await asyncio.sleep(0)
        if _may_match(entry, wanted):
            place = _entry_place(entry, sort)
            if beyond is None or place > beyond:
                candidates.append((place, TrajectoryKey(entry.tenant, entry.trajectory_id)))
    if wanted.phase is None and wanted.worker is None:
        candidates = nsmallest(limit, candidates)
    found = []
    for looked, (_, key) in enumerate(sorted(candidates)):
        if looked % VIEWS_PER_TURN == VIEWS_PER_TURN - 1:
            await asyncio.sleep(0)
        one = live.view(key)
        if one is not None and _matches(one, wanted):
            found.append(one)
            if len(found) == limit:
                break
    return found


async def _history_page(
    live: LiveTrajectories,
    history: TrajectoryHistory,
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
        found += [row for row in rows if not live.holds(row.key)]
        if len(rows) < size:
            break
        last = rows[-1]
        after = (getattr(last, sort.field), last.trajectory_id, last.tenant)
        size = min(2 * size, 500)
    return found[:limit]
