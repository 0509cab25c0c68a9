"""Live state in a real Redis: compare and set, ages by Redis' clock, the lease, the mirror that fills it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from heddle_contracts.live_state import TrajectoryState
from heddle_gateway.store.redis_state import PAGE, LiveStoreError, RedisState, Versioned, dump
from heddle_gateway.telemetry.live_mirror import Key, LiveMirror, MirrorState, MirrorTuning

pytestmark = pytest.mark.services

WAIT_S = 30.0
_names = count()
FAST = MirrorTuning(period_s=0.01, lease_s=0.4)


def state(trajectory_id: str = "t", steps: int = 1, **more: Any) -> TrajectoryState:
    return TrajectoryState.model_validate(
        {
            "trajectory_id": trajectory_id,
            "tenant": "",
            "source": "header",
            "steps": steps,
            "first_seen": 1.0,
            "last_seen": 2.0,
        }
        | more
    )


def versioned(one: TrajectoryState, number: int) -> Versioned:
    return Versioned(one.tenant, one.trajectory_id, number, dump(one))


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110  another process is waited for
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"waited in vain for: {what}")


@pytest.fixture
async def opened(redis_server: Any) -> AsyncIterator[Callable[..., RedisState]]:
    """Opens stores of one namespace that no other test uses."""
    name = f"test-{next(_names)}"
    stores: list[RedisState] = []

    def open_one(url: str = redis_server.url, ttl_s: float = 60.0) -> RedisState:
        stores.append(RedisState(url, name=name, ttl_s=ttl_s))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()


async def test_a_state_is_read_as_it_was_written(opened: Any) -> None:
    store = opened()
    full = state(
        "harbor/task:0 \ud800é",
        7,
        tenant="ab12",
        model="m",
        group_id="g",
        sample=3,
        parent_id="p",
        home="http://w1",
        segment=1,
        context_tokens=900,
        output_tokens=70,
        predicted_tokens=120.5,
        rank=2,
        weight_version="w7",
        conversation="opaque",
    )
    assert await store.save(1, [versioned(full, 1)]) == 0
    assert [page async for page in store.pages(10)] == [([full], 0)]
    await store.remove(1, [("ab12", full.trajectory_id)])
    assert [page async for page in store.pages(10)] == []


async def test_what_is_older_is_refused(opened: Any) -> None:
    store = opened()
    assert await store.save(2, [versioned(state(steps=5), 10)]) == 0
    assert await store.save(2, [versioned(state(steps=4), 9)]) == 1, "out of order"
    assert await store.save(2, [versioned(state(steps=5), 10)]) == 1, "twice"
    assert await store.save(1, [versioned(state(steps=9), 99)]) == 1, "of an earlier leader"
    await store.remove(1, [("", "t")])
    [([kept], _)] = [page async for page in store.pages(10)]
    assert kept.steps == 5
    assert await store.save(3, [versioned(state(steps=6), 1)]) == 0, "of a later leader"


async def test_the_one_written_last_comes_first_and_the_rest_is_cut(opened: Any) -> None:
    store = opened()
    number = PAGE + 30
    await store.save(1, [versioned(state(f"t{one:05}"), one + 1) for one in range(number)])
    await store.save(1, [versioned(state("t00007", 2), number + 1)])
    found = [one async for page, _ in store.pages(number) for one in page]
    assert len({one.trajectory_id for one in found}) == number
    [(few, _)] = [page async for page in store.pages(1)]
    assert few[0].trajectory_id in {"t00007", found[0].trajectory_id}
    assert [len(page) async for page, _ in store.pages(PAGE + 1)] == [PAGE, 1]


async def test_trajectories_end_with_their_time_to_live(opened: Any) -> None:
    store = opened(ttl_s=0.05)
    await store.save(1, [versioned(state("short"), 1)])
    async with asyncio.timeout(WAIT_S):
        while [one async for page, _ in store.pages(10) for one in page]:  # noqa: ASYNC110  Redis' clock is waited for
            await asyncio.sleep(0.01)
    await store.save(1, [versioned(state("other"), 2)])
    assert await store._redis.zcard(store._tag + "seen") == 1, "the index is swept"


async def test_what_another_build_wrote_is_counted_and_left(opened: Any) -> None:
    store = opened()
    await store.save(
        1, [versioned(state("good"), 1), Versioned("", "bad", 1, "{"), Versioned("", "odd", 1, "[1]")]
    )
    await store.save(1, [Versioned("", "newer", 1, '{"schema_version": 2, "trajectory_id": "newer"}')])
    [(found, unreadable)] = [page async for page in store.pages(10)]
    assert [one.trajectory_id for one in found] == ["good"]
    assert unreadable == 3


async def test_one_holds_the_lease_at_a_time(opened: Any) -> None:
    store = opened()
    first = await store.take_lease("a", 30.0, above=0)
    assert first.is_ours
    other = await store.take_lease("b", 30.0, above=0)
    assert (other.is_ours, other.holder) == (False, "a")
    assert 0 < other.left_s <= 30.0
    assert (await store.take_lease("a", 30.0, above=0)).epoch == first.epoch, "renewed"
    await store.release_lease("b")
    assert not (await store.take_lease("b", 30.0, above=0)).is_ours
    await store.release_lease("a")
    after = await store.take_lease("b", 30.0, above=0)
    assert after.epoch > first.epoch


async def test_an_epoch_is_never_given_twice_though_redis_forgot(opened: Any) -> None:
    store = opened()
    await store.take_lease("a", 30.0, above=41)
    await store._redis.delete(store._tag + "lease", store._tag + "epoch")
    assert (await store.take_lease("a", 30.0, above=42)).epoch == 43


async def test_a_redis_that_is_away_is_one_kind_of_error() -> None:
    store = RedisState("redis://127.0.0.1:1/0", name="x", ttl_s=1.0)
    for call in (
        anext(store.pages(1)),
        store.take_lease("a", 1.0, above=0),
        store.save(1, [versioned(state(), 1)]),
        store.remove(1, [("", "t")]),
    ):
        with pytest.raises(LiveStoreError):
            await call
    await store.close()


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:6379", "127.0.0.1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        RedisState(url, name="x", ttl_s=1.0)


# ------------------------------------------------------------------------------------------------- mirror


class Live:
    """What a gateway knows, and the mirror that copies it."""

    def __init__(self, store: RedisState, holder: str = "a") -> None:
        self.steps: dict[Key, int] = {}
        self.mirror = LiveMirror(
            store,
            holder=holder,
            describe=self.describe,
            everything=lambda: list(self.steps),
            fault=LiveStoreError,
            tuning=FAST,
        )

    def describe(self, key: Key, number: int) -> Versioned | None:
        if key not in self.steps:
            return None
        tenant, trajectory_id = key
        return versioned(state(trajectory_id, self.steps[key], tenant=tenant), number)

    def step(self, trajectory_id: str) -> None:
        self.steps["", trajectory_id] = self.steps.get(("", trajectory_id), 0) + 1
        self.mirror.changed("", trajectory_id)

    async def lead(self) -> bool:
        """Whether it got the lease, within the bound."""
        async with asyncio.timeout(WAIT_S):
            while True:
                lease = await self.mirror.renew()
                if lease is None or lease.is_ours:
                    return lease is not None
                await asyncio.sleep(FAST.lease_s / 8)

    async def follow(self) -> None:
        """As peers.reign does: writes what changes, keeps the lease."""
        while True:
            await self.mirror.renew()
            await self.mirror.write()
            await asyncio.sleep(FAST.period_s)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.follow())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def written(self) -> None:
        def done() -> bool:
            stats = self.mirror.stats()
            return stats.state is MirrorState.FOLLOWING and not stats.behind

        await until(done, "the copy to be complete")


async def counts(store: RedisState) -> dict[str, int]:
    return {one.trajectory_id: one.steps async for page, _ in store.pages(1000) for one in page}


async def test_the_copy_follows_and_what_ended_goes(opened: Any) -> None:
    live = Live(opened())
    assert await live.lead()
    async with live.followed():
        for name in ("x", "y", "x"):
            live.step(name)
        await live.written()
    assert await counts(opened()) == {"x": 2, "y": 1}
    del live.steps["", "y"]
    live.mirror.ended("", "y")
    live.step("x")
    await live.mirror.close()
    assert await counts(opened()) == {"x": 3}, "closing writes what is left"
    assert (await opened().take_lease("b", 1.0, above=0)).is_ours, "closing gives the lease back"


async def test_a_redis_that_comes_back_empty_is_filled_again(own_redis: Any, opened: Any) -> None:
    live = Live(opened(own_redis.url))
    assert await live.lead()
    async with live.followed():
        live.step("before")
        await live.written()
        own_redis.stop()
        live.step("during")
        await until(lambda: live.mirror.stats().state is MirrorState.LOCAL, "the outage to be noticed")
        assert live.mirror.stats().last_error
        own_redis.start()
        await live.written()
    assert await counts(opened(own_redis.url)) == {"before": 1, "during": 1}
    await live.mirror.close()


async def test_a_killed_gateways_lease_is_taken_over_and_its_late_writes_are_refused(opened: Any) -> None:
    first, second = Live(opened()), Live(opened(), "b")
    assert await first.lead()
    first.step("t")
    await first.mirror.write()
    # Killed: nothing of it runs any more, nothing is given back.
    assert await second.lead()
    second.steps["", "t"] = 6
    second.step("t")
    async with second.followed():
        await second.written()
    first.step("t")
    await first.mirror.write()
    assert first.mirror.stats().refused == 1
    assert await counts(opened()) == {"t": 7}
    lease = await first.mirror.renew()
    assert lease is not None
    assert (lease.is_ours, lease.holder) == (False, "b")
    first.mirror.stand_down()
    assert first.mirror.stats().state is MirrorState.ELSEWHERE
    first.step("t")
    await first.mirror.write()
    assert first.mirror.stats().refused == 1, "who stood down writes nothing"
    await second.mirror.close()


async def test_how_the_leader_is_reached_lies_in_its_lease(opened: Any) -> None:
    store = opened()
    assert (await store.lease("looker")).holder == "", "nobody leads"
    await store.take_lease("a", 30.0, above=0, at="here")
    looked = await store.lease("looker")
    assert (looked.is_ours, looked.holder, looked.at) == (False, "a", "here")
    refused = await store.take_lease("b", 30.0, above=0, at="there")
    assert (refused.holder, refused.at) == ("a", "here")


async def test_without_redis_the_start_is_not_delayed() -> None:
    store = RedisState("redis://127.0.0.1:1/0", name="x", ttl_s=1.0)
    live = Live(store)
    assert not await live.lead()
    assert live.mirror.stats().state is MirrorState.LOCAL
    await store.close()
