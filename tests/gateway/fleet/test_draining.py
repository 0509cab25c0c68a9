import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from heddle_gateway.fleet import (
    Fleet,
    UnknownWorker,
    WorkerSpec,
    WorkerState,
)

Serve = Callable[..., Awaitable[Any]]
NewFleet = Callable[..., Fleet]


async def test_a_draining_worker_keeps_its_steps_and_goes_when_they_end(
    new_fleet: NewFleet, serve: Serve, listener: Any, live: Any
) -> None:
    fake = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    live.steps[view.worker_id] = 2
    assert fleet.drain(view.worker_id).state is WorkerState.DRAINING
    assert fleet.drain(view.worker_id).state is WorkerState.DRAINING
    assert fleet.active() == 0
    probes = len(fake.seen)
    await listener.until(lambda: len(fake.seen) > probes + 5)
    assert fleet.worker(view.worker_id, 1) is not None, "running steps still need it, an abort too"
    live.steps[view.worker_id] = 0
    await listener.until_told("removed", view.worker_id, 1)
    assert listener.changes() == [("up", 1), ("draining", 1), ("removed", 1)]
    with pytest.raises(UnknownWorker):
        fleet.get(view.worker_id)
    # Late words about it do no harm.
    fleet.note_success(view.worker_id, 1)
    fleet.note_failure(view.worker_id, 1, "unreachable")
    assert fleet.worker(view.worker_id, 1) is None


async def test_a_drain_that_takes_too_long_gives_its_steps_up(
    new_fleet: NewFleet, serve: Serve, listener: Any, live: Any, quick: Any
) -> None:
    fake = await serve()
    fleet = new_fleet(replace(quick, drain_timeout_s=0.05))
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    live.steps[view.worker_id] = 1
    fleet.drain(view.worker_id)
    await listener.until_told("removed", view.worker_id, 1)
    assert listener.changes() == [("up", 1), ("draining", 1), ("down", 1), ("removed", 1)]


async def test_a_worker_that_dies_while_draining_is_lost_and_removed(
    new_fleet: NewFleet, serve: Serve, listener: Any, live: Any
) -> None:
    fake = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    live.steps[view.worker_id] = 1
    fleet.drain(view.worker_id)
    await fake.stop()
    await listener.until_told("removed", view.worker_id, 1)
    assert listener.changes() == [("up", 1), ("draining", 1), ("down", 1), ("removed", 1)]
    await fake.start()
    await asyncio.sleep(0)
    assert fleet.list() == []


async def test_a_worker_that_never_came_can_be_removed_and_is_never_mentioned(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve(start=False)
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    assert fleet.drain(view.worker_id).state is WorkerState.REMOVED
    assert (fleet.list(), listener.told) == ([], [])
    with pytest.raises(UnknownWorker):
        fleet.drain(view.worker_id)


async def test_a_worker_removed_while_it_is_being_asked_stays_removed(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    fake.gate.clear()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until(lambda: fake.seen)
    fleet.drain(view.worker_id)
    fake.gate.set()
    again = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", again.worker_id, 1)
    assert listener.changes(view.worker_id) == []
    assert again.worker_id != view.worker_id
    assert fleet.worker(view.worker_id, 1) is None
    assert fleet.stats()["task_restarts"] == 0


async def test_a_url_added_while_its_worker_drains_is_a_new_worker(
    new_fleet: NewFleet, serve: Serve, listener: Any, live: Any
) -> None:
    """A rolling restart: the old life keeps its steps, the new one is there before the old is gone."""
    fake = await serve()
    fleet = new_fleet()
    old = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", old.worker_id, 1)
    live.steps[old.worker_id] = 1
    fleet.drain(old.worker_id)
    new = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", new.worker_id, 1)
    assert new.worker_id != old.worker_id
    assert fleet.find(fake.url).worker_id == new.worker_id
    live.steps[old.worker_id] = 0
    await listener.until_told("removed", old.worker_id, 1)
    assert fleet.find(fake.url).worker_id == new.worker_id


async def test_a_drain_survives_a_count_that_fails(serve: Serve, listener: Any, quick: Any) -> None:
    calls = []

    def live_steps(worker_id: int) -> int:
        calls.append(worker_id)
        if len(calls) < 3:
            raise KeyError(worker_id)
        return 0

    fake = await serve()
    fleet = Fleet(listener, live_steps, quick)
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    fleet.drain(view.worker_id)
    await listener.until_told("removed", view.worker_id, 1)
    assert fleet.stats()["task_restarts"] == 2
    await fleet.close()
