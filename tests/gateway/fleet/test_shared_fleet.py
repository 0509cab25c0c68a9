"""Workers that were added while a gateway ran outlive it in Redis; those of its settings are not kept."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from heddle_gateway.store.redis_state import RedisState
from heddle_gateway.store.redis_workers import RedisWorkers
from redis.asyncio import Redis

pytestmark = pytest.mark.services

_names = count()


@pytest.fixture
def state(redis_server: Any) -> dict[str, Any]:
    """Settings of gateways that share their state with each other and with nobody else."""
    return {"redis_url": redis_server.url, "namespace": f"shared-fleet-{next(_names)}"}


async def add(gateway: Any, worker: Any, **said: Any) -> dict[str, Any]:
    answer = await gateway.client.post("/admin/v1/workers", json={"url": worker.url, **said})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def active(gateway: Any) -> set[str]:
    return {one.url for one in gateway.parts.fleet.list() if one.state == "active"}


def known(gateway: Any) -> set[str]:
    return {one.url for one in gateway.parts.fleet.list()}


@pytest.fixture
async def kept(redis_server: Any, state: dict[str, Any]) -> Any:
    """The URLs in the registry."""
    redis = Redis.from_url(redis_server.url, decode_responses=True)
    tag = f"{{heddle:{state['namespace']}}}:w:"

    async def urls() -> set[str]:
        return {key.removeprefix(tag) for key in await redis.keys(tag + "*")}

    yield urls
    await redis.aclose()


async def eventually(kept: Callable[..., Any], wanted: set[str]) -> None:
    """Waits until the registry holds these."""
    async with asyncio.timeout(30):
        while await kept() != wanted:  # noqa: ASYNC110  Redis is waited for
            await asyncio.sleep(0.01)


async def test_a_worker_that_was_added_is_there_again_with_what_was_said_of_it(
    new_gateway: Any, worker: Any, new_worker: Any, state: dict[str, Any], kept: Any, until: Any
) -> None:
    first = await new_gateway(worker, **state)
    added = await new_worker()
    await add(first, added, name="extra", slots=3, api_key="secret")
    await eventually(kept, {added.url})
    await first.stop()

    second = await new_gateway(worker, **state)
    await until(lambda: active(second) == {worker.url, added.url}, "the worker that was added")
    (found,) = [one for one in second.parts.fleet.list() if one.url == added.url]
    assert (found.name, found.slots) == ("extra", 3)
    specs = {spec.url: spec for _, spec, _ in second.parts.fleet.registered()}
    assert specs[added.url].api_key == "secret"


async def test_a_gateway_that_cannot_follow_reads_which_workers_the_leader_has(
    new_gateway: Any, new_worker: Any, redis_server: Any, state: dict[str, Any], kept: Any, until: Any
) -> None:
    """As one of another release beside the old ones: without a worker it would never be ready, and an
    orchestrator that waits for that would never end the old ones.
    """
    first = await new_gateway(**state)
    workers = [await new_worker() for _ in range(2)]
    for one in workers:
        await add(first, one)
    await eventually(kept, {one.url for one in workers})
    await first.stop()

    lease = RedisState(redis_server.url, name=state["namespace"], ttl_s=600.0)
    held = await lease.take_lease("another release", 600.0, above=0, at="an address of another release")
    assert held.is_ours
    newer = await new_gateway(**state)
    await until(lambda: active(newer) == {one.url for one in workers}, "the leader's workers")
    ready = (await newer.client.get("/ready")).json()
    assert (ready["role"], ready["ready"]) == ("alone", True)

    store = RedisWorkers(redis_server.url, name=state["namespace"], lease_s=600.0)
    await store.remove(held.epoch, {workers[0].url})
    await until(lambda: known(newer) == {workers[1].url}, "the worker to leave that the leader took out")
    await store.close()
    await lease.close()


async def test_a_drained_worker_does_not_come_back(
    new_gateway: Any, worker: Any, new_worker: Any, state: dict[str, Any], kept: Any, until: Any
) -> None:
    first = await new_gateway(worker, **state)
    workers = [await new_worker() for _ in range(2)]
    shown = [await add(first, one) for one in workers]
    await until(lambda: len(active(first)) == 3, "all workers")
    await eventually(kept, {one.url for one in workers})
    drained = await first.client.delete(f"/admin/v1/workers/{shown[0]['id']}")
    assert drained.status_code == 202, drained.text
    await eventually(kept, {workers[1].url})
    await first.stop()
    second = await new_gateway(worker, **state)
    await until(lambda: active(second) == {worker.url, workers[1].url}, "the other one")
    assert workers[0].url not in known(second)


async def test_one_that_does_not_serve_before_its_lease_runs_out_is_removed(
    new_gateway: Any, worker: Any, new_worker: Any, state: dict[str, Any], kept: Any, until: Any
) -> None:
    first = await new_gateway(worker, **state, worker_lease_s=2)
    dead, alive = await new_worker(), await new_worker()
    await add(first, dead)
    await add(first, alive)
    await eventually(kept, {dead.url, alive.url})
    await first.stop()
    await dead.stop()
    second = await new_gateway(worker, **state, worker_lease_s=2)
    await until(lambda: active(second) == {worker.url, alive.url}, "the living ones")
    await until(lambda: dead.url not in known(second), "the dead one to be removed")
    assert await kept() == {alive.url}, "renewed, and only this one"


async def test_a_worker_of_the_settings_is_as_the_settings_say(
    new_gateway: Any, worker: Any, new_worker: Any, state: dict[str, Any], kept: Any, until: Any
) -> None:
    first = await new_gateway(worker, **state)
    added = await new_worker()
    await add(first, added, name="by-hand")
    await eventually(kept, {added.url})
    await first.stop()
    second = await new_gateway(worker, added, **state)
    await until(lambda: len(active(second)) == 2, "both")
    assert "by-hand" not in {one.name for one in second.parts.fleet.list()}


async def test_a_redis_that_comes_back_empty_is_told_again(
    new_gateway: Any, worker: Any, new_worker: Any, own_redis: Any, until: Any
) -> None:
    state = {"redis_url": own_redis.url, "namespace": f"shared-fleet-{next(_names)}"}
    first = await new_gateway(worker, **state)
    one, other = await new_worker(), await new_worker()
    shown = await add(first, one)
    mirror = first.parts.shared.mirror
    own_redis.stop()
    await until(lambda: mirror.stats().state == "local", "the outage")
    await add(first, other)
    await until(lambda: len(active(first)) == 3, "workers come also meanwhile")
    await first.client.delete(f"/admin/v1/workers/{shown['id']}")
    own_redis.start()
    redis = Redis.from_url(own_redis.url, decode_responses=True)
    tag = f"{{heddle:{state['namespace']}}}:w:"

    async def kept() -> set[str]:
        return {key.removeprefix(tag) for key in await redis.keys(tag + "*")}

    await eventually(kept, {other.url})
    await redis.aclose()


async def test_a_gateway_that_takes_the_lease_over_takes_the_workers_over(
    new_gateway: Any, worker: Any, new_worker: Any, state: dict[str, Any], until: Any
) -> None:
    first = await new_gateway(worker, **state)
    second = await new_gateway(worker, **state)
    added = await new_worker()
    await add(first, added)
    await until(lambda: added.url in active(first), "the worker that was added")
    await until(lambda: added.url in active(second), "the leader's workers, by its word")
    await first.stop()
    await until(lambda: second.parts.peering.role == "leader", "the lease")
    assert added.url in active(second)
