"""The core's moves carried out by shims: every end of one reaches the core once, in its own words."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from heddle_gateway.live.directory import Directory, LiveTrajectory
from heddle_gateway.live.mover import Mover
from heddle_gateway.live.shim_links import ShimLinks

from .conftest import NewShim, ScriptedShim

WAIT_S = 30.0


@dataclass(frozen=True)
class Facts:
    worker_id: int
    shim_url: str | None
    generation: int = 1
    shim_key: str | None = "secret"


@dataclass
class Reports:
    """What the core would hear."""

    landed: list[tuple[int, int]] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def migration_landed(self, migration: int, tokens: int) -> None:
        self.landed.append((migration, tokens))
        self.news.set()

    def migration_failed(self, migration: int, why: str) -> None:
        self.failed.append((migration, why))
        self.news.set()

    async def heard(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.news.wait()


@dataclass
class Bench:
    source: ScriptedShim
    target: ScriptedShim
    mover: Mover
    links: ShimLinks
    reports: Reports
    linked: list[tuple[Any, ...]]


@pytest.fixture
async def bench(new_shim: NewShim, until: Callable[..., Awaitable[None]]) -> AsyncIterator[Bench]:
    """Workers 1 and 2, each with its shim, both linked."""
    source, target = await new_shim(), await new_shim()
    linked: list[tuple[Any, ...]] = []
    reports = Reports()
    async with httpx.AsyncClient(timeout=WAIT_S, trust_env=False) as client:
        links = ShimLinks(client, lambda *told: linked.append(told))
        mover = Mover(links, client, {1: "one", 2: "two"}.get)
        mover.reports = reports
        links.worker_up(Facts(1, source.url))
        links.worker_up(Facts(2, target.url))
        await until(lambda: len(linked) == 2, "both shims to be asked")
        yield Bench(source, target, mover, links, reports, linked)
        await links.close()
        await mover.close()


def trajectory(rid: str | None = "5f1c") -> LiveTrajectory:
    @dataclass
    class Who:
        trajectory_id: str = "swe-1"
        source: str = "header"
        group_id: str | None = None
        sample: int | None = None
        parent_id: str | None = None
        step: int = 0
        segment: int = 0

    live = Directory().open(Who(), tenant="t", model="m")
    live.last_rid = rid
    return live


@dataclass(frozen=True)
class Order:
    """As the core orders a move (heddle_core.Migrate): trajectory 1 from worker 1 to worker 2."""

    migration: int = 7
    trajectory: int = 1
    from_worker: int = 1
    from_generation: int = 1
    to_worker: int = 2
    to_generation: int = 1
    tokens: int = 150
    within_us: int = 60_000_000
    worth_us: int | None = None


def migrate(**changes: Any) -> Any:
    return Order(**changes)


async def test_a_linked_worker_is_told_of_with_its_rate_in_tokens(bench: Bench) -> None:
    layout = bench.source.layout
    tokens_s = 1e6 * layout.page_size / layout.page_bytes
    assert sorted(bench.linked) == [(1, 1, tokens_s, 5000, "default"), (2, 1, tokens_s, 5000, "default")]
    assert bench.links.shim(1, 2) is None, "another life of the worker"
    bench.links.worker_gone(1)
    assert bench.links.shim(1, 1) is None


async def test_a_shim_that_cannot_move_anything_yet_is_asked_again(
    bench: Bench, new_shim: NewShim, until: Callable[..., Awaitable[None]]
) -> None:
    late = await new_shim()
    late.cannot = "its engine is starting"
    bench.links.worker_up(Facts(3, late.url))
    bench.links.worker_up(Facts(4, "http://127.0.0.1:9"))
    await asyncio.sleep(0)
    late.cannot = None
    await until(lambda: len(bench.linked) == 3, "the late shim")
    assert bench.linked[-1][0] == 3


async def test_a_move_that_lands_is_told_with_its_tokens_and_remembered(bench: Bench) -> None:
    bench.source.states = [
        {"state": "moving"},
        {"state": "landed", "tokens_landed": 144, "bytes_moved": 9000},
    ]
    action = migrate(worth_us=250_000)
    bench.mover.begin(action, trajectory())
    await bench.reports.heard()
    assert (bench.reports.landed, bench.reports.failed) == ([(action.migration, 144)], [])
    (asked,) = bench.source.asked
    assert (asked["trajectory"], asked["rid"], asked["target"]) == ("swe-1", "5f1c", bench.target.url)
    assert (asked["weight_version"], asked["deadline_s"], asked["worth_s"]) == ("default", 60.0, 0.25)
    (move,) = bench.mover.shown([], Directory())
    assert (move.from_worker, move.to_worker, move.state, move.tokens_landed) == ("one", "two", "landed", 144)
    assert bench.mover.stats() == {"running": 0.0, "bytes_total": 9000.0}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"state": "declined", "fault": "not_worth_it"}, "declined"),
        ({"state": "failed", "fault": "target_full"}, "target_full"),
        ({"state": "failed", "fault": "checksum"}, "broken"),
        ({"state": "failed", "fault": "weights_changed"}, "mismatch"),
        ({"state": "expired", "fault": "deadline"}, "deadline"),
        ({"nonsense": 1}, "broken"),
    ],
)
async def test_a_move_that_fails_is_told_in_the_cores_words(
    state: dict[str, Any], why: str, bench: Bench
) -> None:
    bench.source.states = [state]
    action = migrate()
    bench.mover.begin(action, trajectory())
    await bench.reports.heard()
    assert (bench.reports.landed, bench.reports.failed) == ([], [(action.migration, why)])


async def test_a_move_that_is_called_off_is_cancelled_at_the_shim(
    bench: Bench, until: Callable[..., Awaitable[None]]
) -> None:
    bench.source.hold = True
    bench.source.states = [{"state": "moving"}, {"state": "cancelled", "fault": "cancelled"}]
    action = migrate()
    bench.mover.begin(action, trajectory())
    await until(lambda: bool(bench.source.asked), "the shim to be asked")

    class CallOff:
        migration = action.migration

    bench.mover.cancel(CallOff())  # type: ignore[arg-type]
    await bench.reports.heard()
    assert bench.source.cancelled.is_set()
    assert bench.reports.failed == [(action.migration, "cancelled")]


@pytest.mark.parametrize("gone", [None, 1, 2])
async def test_what_has_landed_after_it_was_called_off_is_told_as_the_core_has_it(
    bench: Bench, until: Callable[..., Awaitable[None]], gone: int | None
) -> None:
    bench.source.hold = True
    bench.source.states = [{"state": "moving"}, {"state": "landed", "tokens_landed": 32}]
    told: list[Any] = []
    bench.mover.record = told.append
    action = migrate()
    bench.mover.begin(action, trajectory())
    await until(lambda: bool(bench.source.asked), "the shim to be asked")
    if gone is not None:
        bench.links.worker_gone(gone)
    bench.mover.cancel(action)
    # The core may have forgotten it; until the shim has stopped it is shown all the same.
    assert [move.state for move in bench.mover.shown([], Directory())] == ["cancelling"]
    await bench.reports.heard()
    (move,) = told
    assert move.state == ("cancelled" if gone is None else "failed")
    assert bench.reports.landed == []
    assert bench.mover.shown([], Directory()) == [move]


async def test_a_shim_without_a_word_and_one_that_is_away_fail_the_move(bench: Bench) -> None:
    bench.source.hold = True
    bench.source.states = [{"state": "moving"}]
    action = migrate(within_us=50_000)
    bench.mover.begin(action, trajectory())
    await bench.reports.heard()
    assert bench.reports.failed == [(action.migration, "deadline")]

    bench.reports.news.clear()
    bench.links.worker_gone(2)
    bench.mover.begin(action, trajectory())
    await bench.reports.heard()
    assert bench.reports.failed[1:] == [(action.migration, "unreachable")]
