"""The worker registry and the plan pointer in a real Redis."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest
from heddle_contracts.live_state import PlanPointer, RegisteredWorker
from heddle_contracts.planning import Plan
from heddle_gateway.store.redis_plan import RedisPlan
from heddle_gateway.store.redis_state import LiveStoreError
from heddle_gateway.store.redis_workers import RedisWorkers
from redis.asyncio import Redis

pytestmark = pytest.mark.services

EXAMPLE: dict[str, Any] = Plan.model_config["json_schema_extra"]["examples"][0]  # type: ignore[index,call-overload]
_names = count()


def worker(number: int, **said: Any) -> RegisteredWorker:
    return RegisteredWorker(number=number, url=f"http://w{number}:30000", **said)


@pytest.fixture
async def workers(redis_server: Any) -> AsyncIterator[Callable[..., RedisWorkers]]:
    """Opens registries of one namespace that no other test uses."""
    name = f"registry-{next(_names)}"
    opened: list[RedisWorkers] = []

    def open_one(lease_s: float = 60.0) -> RedisWorkers:
        opened.append(RedisWorkers(redis_server.url, name=name, lease_s=lease_s))
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close()


@pytest.fixture
async def plans(redis_server: Any) -> AsyncIterator[RedisPlan]:
    plans = RedisPlan(redis_server.url, name=f"pointer-{next(_names)}", ttl_s=60.0)
    yield plans
    await plans.close()


async def urls(registry: RedisWorkers) -> list[str]:
    return [one.url for one, _ in (await registry.load())[0]]


async def test_workers_are_read_as_they_were_written_in_their_order(workers: Any) -> None:
    registry = workers()
    said = {"name": "é", "kind": "sglang", "degree": 4, "priority": "higher", "api_key": "k", "kv_tokens": 9}
    written = [worker(3, **said), worker(1), worker(2, shim_url="http://shim:31000")]
    assert await registry.put(1, written) == 0
    found, unreadable = await registry.load()
    assert ([one for one, _ in found], unreadable) == ([written[1], written[2], written[0]], 0)
    assert all(0 < left <= 60 for _, left in found)
    await registry.remove(1, [written[1].url, "http://nobody:1"])
    assert await urls(registry) == [written[2].url, written[0].url]


async def test_what_an_earlier_leader_still_sends_is_refused(workers: Any) -> None:
    registry = workers()
    assert await registry.put(7, [worker(1, degree=2)]) == 0
    assert await registry.put(6, [worker(1, degree=1), worker(2)]) == 1
    await registry.remove(6, [worker(1).url])
    found, _ = await registry.load()
    assert [(one.number, one.degree) for one, _ in found] == [(1, 2), (2, None)]


async def test_a_lease_that_is_not_renewed_runs_out_and_another_one_does_not(workers: Any) -> None:
    short, long = workers(lease_s=0.05), workers()
    await short.put(1, [worker(1), worker(2)])
    await long.put(1, [worker(2)])
    async with asyncio.timeout(10):
        while await urls(long) != [worker(2).url]:  # noqa: ASYNC110  Redis' clock is waited for
            await asyncio.sleep(0.01)


async def test_what_another_build_wrote_is_counted_and_left(workers: Any, redis_server: Any) -> None:
    registry = workers()
    await registry.put(1, [worker(1), worker(2), worker(3)])
    redis = Redis.from_url(redis_server.url, decode_responses=True)
    keys = await redis.keys(f"{{heddle:registry-{next(_names) - 1}}}:w:*")
    assert len(keys) == 3
    await redis.hset(sorted(keys)[0], "d", '{"schema_version": 99, "number": 1, "url": "http://w1:30000"}')
    await redis.hset(sorted(keys)[1], "d", "no JSON")
    await redis.aclose()
    assert (await urls(registry), (await registry.load())[1]) == ([worker(3).url], 2)


async def test_the_pointer_is_read_as_it_was_written_and_never_set_back(plans: RedisPlan) -> None:
    assert await plans.load() is None
    members = (("odd\ud800",), (1,))
    plan = Plan.model_validate(EXAMPLE | {"made_at": time.time(), "members": members, "version": 4})
    pointer = PlanPointer(last_version=6, plan=plan, lengths=(5.0, 7.5))
    assert await plans.save(3, 1, pointer)
    assert await plans.load() == pointer
    older = PlanPointer(last_version=5)
    assert not await plans.save(2, 9, older), "an earlier leader's"
    assert not await plans.save(3, 1, older), "out of order"
    assert await plans.load() == pointer
    assert await plans.save(4, 1, PlanPointer(last_version=7))
    assert await plans.load() == PlanPointer(last_version=7)


async def test_a_redis_that_is_away_is_one_kind_of_error() -> None:
    registry = RedisWorkers("redis://127.0.0.1:1/0", name="n", lease_s=1.0)
    pointer = RedisPlan("redis://127.0.0.1:1/0", name="n", ttl_s=1.0)
    for ask in (
        lambda: registry.load(),
        lambda: registry.put(1, [worker(1)]),
        lambda: registry.remove(1, ["u"]),
        lambda: pointer.load(),
        lambda: pointer.save(1, 1, PlanPointer(last_version=1)),
    ):
        with pytest.raises(LiveStoreError):
            await ask()
    await registry.close()
    await pointer.close()
