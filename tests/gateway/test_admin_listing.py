"""The one list out of directory and history, against a plain list of everything."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from heddle_contracts.admin import (
    LiveTrajectory,
    Phase,
    TrajectoryFilter,
    TrajectoryKey,
    TrajectorySort,
    TrajectorySummary,
)
from heddle_contracts.steps import Outcome
from heddle_gateway.routes.admin_listing import list_trajectories, overlaid
from hypothesis import given
from hypothesis import strategies as st


@dataclass
class Entry:
    """An entry of the directory."""

    tenant: str
    trajectory_id: str
    group_id: str | None
    source: str
    model: str | None
    started_at: float
    last_seen_at: float
    step: int
    phase: Phase = Phase.RUNNING
    worker: str | None = None


class Held:
    """A directory with a core behind it; counts how often the core is asked."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = {TrajectoryKey(one.tenant, one.trajectory_id): one for one in entries}
        self.views = 0

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def holds(self, key: TrajectoryKey) -> bool:
        return key in self._entries

    def view(self, key: TrajectoryKey) -> LiveTrajectory | None:
        self.views += 1
        one = self._entries.get(key)
        return live_view(one) if one is not None else None

    def named(self, trajectory_id: str) -> list[TrajectoryKey]:
        raise AssertionError("lists name nobody")

    def finish(self, key: TrajectoryKey) -> bool:
        raise AssertionError("lists finish nobody")


class Past:
    """A history in a list, ordered as the database orders."""

    def __init__(self, rows: Sequence[TrajectorySummary]) -> None:
        self._rows = rows

    async def page(
        self, wanted: TrajectoryFilter, sort: TrajectorySort, after: Any, limit: int
    ) -> list[TrajectorySummary]:
        rows = in_order([row for row in self._rows if fits(row, wanted)], sort)
        if after is not None:
            rows = [row for row in rows if place(row, sort) > sortable(after[0], sort, after[1], after[2])]
        return rows[:limit]

    async def totals(self, keys: Sequence[TrajectoryKey]) -> dict[TrajectoryKey, TrajectorySummary]:
        return {row.key: row for row in self._rows if row.key in keys}

    async def trajectory(self, trajectory_id: str, tenant: str | None = None) -> list[TrajectorySummary]:
        raise AssertionError("lists name nobody")

    async def steps(self, key: TrajectoryKey, after: int | None, limit: int) -> Any:
        raise AssertionError("lists show no steps")


def live_view(one: Entry) -> LiveTrajectory:
    return LiveTrajectory(
        tenant=one.tenant,
        trajectory_id=one.trajectory_id,
        group_id=one.group_id,
        source=one.source,
        model=one.model,
        phase=one.phase,
        worker=one.worker,
        steps=one.step + 1,
        live_steps=1,
        first_seen=one.started_at,
        last_seen=one.last_seen_at,
    )


def sortable(value: float, sort: TrajectorySort, trajectory_id: str, tenant: str) -> tuple[float, str, str]:
    return (-value if sort.descending else value, trajectory_id, tenant)


def place(row: TrajectorySummary, sort: TrajectorySort) -> tuple[float, str, str]:
    return sortable(getattr(row, sort.field), sort, row.trajectory_id, row.tenant)


def in_order(rows: Sequence[TrajectorySummary], sort: TrajectorySort) -> list[TrajectorySummary]:
    return sorted(rows, key=lambda row: place(row, sort))


def fits(row: TrajectorySummary, wanted: TrajectoryFilter) -> bool:
    return (
        wanted.phase in (None, row.phase)
        and wanted.model in (None, row.model)
        and wanted.worker in (None, row.worker)
        and wanted.group in (None, row.group_id)
        and wanted.source in (None, row.source)
        and wanted.tenant in (None, row.tenant)
        and (wanted.since is None or row.last_seen >= wanted.since)
        and row.trajectory_id.startswith(wanted.prefix or "")
    )


# Few values, so that ties and both-sides keys are the rule.
times = st.sampled_from([1.0, 2.0, 3.0])
keys = st.tuples(st.sampled_from(["", "x"]), st.sampled_from(["a", "a/1", "a/2", "b", "c", "é", "😀"]))
entries = st.lists(
    st.builds(
        lambda key, **rest: Entry(tenant=key[0], trajectory_id=key[1], **rest),
        key=keys,
        group_id=st.sampled_from([None, "g"]),
        source=st.sampled_from(["header", "history"]),
        model=st.sampled_from([None, "m"]),
        started_at=times,
        last_seen_at=times,
        step=st.integers(0, 2),
        phase=st.sampled_from([Phase.RUNNING, Phase.IN_TOOL_GAP, Phase.FINISHED]),
        worker=st.sampled_from([None, "w"]),
    ),
    unique_by=lambda one: (one.tenant, one.trajectory_id),
)
past_rows = st.lists(
    st.builds(
        lambda key, **rest: TrajectorySummary(tenant=key[0], trajectory_id=key[1], **rest),
        key=keys,
        group_id=st.sampled_from([None, "g"]),
        source=st.sampled_from(["header", "history"]),
        model=st.sampled_from([None, "m"]),
        phase=st.sampled_from([Phase.DORMANT, Phase.FINISHED, Phase.EXPIRED]),
        worker=st.sampled_from([None, "w"]),
        steps=st.integers(1, 3),
        outcomes=st.just({Outcome.DONE: 1}),
        output_tokens=st.integers(0, 9),
        first_seen=times,
        last_seen=times,
    ),
    unique_by=lambda one: (one.tenant, one.trajectory_id),
)
filters = st.builds(
    TrajectoryFilter,
    phase=st.sampled_from([None, None, Phase.RUNNING, Phase.FINISHED, Phase.DORMANT]),
    model=st.sampled_from([None, None, "m"]),
    worker=st.sampled_from([None, None, "w"]),
    group=st.sampled_from([None, None, "g"]),
    source=st.sampled_from([None, None, "header"]),
    tenant=st.sampled_from([None, None, "x"]),
    since=st.sampled_from([None, None, 2.0]),
    prefix=st.sampled_from([None, None, "a"]),
)


@given(
    held=entries,
    past=past_rows,
    wanted=filters,
    sort=st.sampled_from(TrajectorySort),
    limit=st.integers(1, 5),
)
async def test_pages_are_the_plain_list_cut_into_pieces(
    held: list[Entry],
    past: list[TrajectorySummary],
    wanted: TrajectoryFilter,
    sort: TrajectorySort,
    limit: int,
) -> None:
    totals = {row.key: row for row in past}
    live = {TrajectoryKey(one.tenant, one.trajectory_id): live_view(one) for one in held}
    everything = [overlaid(view, totals.get(key)) for key, view in live.items()]
    everything += [row for row in past if row.key not in live]
    expected = in_order([row for row in everything if fits_as_listed(row, live, wanted)], sort)

    found: list[TrajectorySummary] = []
    cursor = None
    while True:
        page = await list_trajectories(Held(held), Past(past), wanted, sort, cursor, limit)
        assert len(page.items) <= limit
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == expected


def fits_as_listed(
    row: TrajectorySummary, live: dict[TrajectoryKey, LiveTrajectory], wanted: TrajectoryFilter
) -> bool:
    """A held trajectory is judged by its live view alone: history may know a group that it does not."""
    view = live.get(row.key)
    if view is None:
        return fits(row, wanted)
    return fits(overlaid(view, None), wanted)


@pytest.mark.parametrize("sort", list(TrajectorySort))
async def test_the_core_is_asked_about_a_page_not_about_everything(sort: TrajectorySort) -> None:
    held = Held(
        [
            Entry("", f"t{number:05}", None, "header", "m", float(number), float(-number), number % 7)
            for number in range(20_000)
        ]
    )
    page = await list_trajectories(held, Past([]), TrajectoryFilter(), sort, None, 10)
    assert len(page.items) == 10
    assert held.views <= 11


async def test_totals_of_history_are_laid_under_the_live_view() -> None:
    live = LiveTrajectory(
        tenant="",
        trajectory_id="t",
        source="header",
        model="m2",
        phase=Phase.RUNNING,
        steps=4,
        live_steps=1,
        first_seen=5.0,
        last_seen=9.0,
    )
    past = TrajectorySummary(
        trajectory_id="t",
        tenant="",
        group_id="g",
        source="header",
        model="m",
        phase=Phase.FINISHED,
        worker="w",
        steps=3,
        outcomes={Outcome.DONE: 3},
        output_tokens=30,
        first_seen=1.0,
        last_seen=8.0,
        ended_at=8.5,
    )
    shown = overlaid(live, past)
    assert (shown.phase, shown.ended_at, shown.steps, shown.live_steps) == (Phase.RUNNING, None, 4, 1)
    assert (shown.model, shown.worker, shown.group_id) == ("m2", "w", "g")
    assert (shown.outcomes, shown.output_tokens) == ({Outcome.DONE: 3}, 30)
