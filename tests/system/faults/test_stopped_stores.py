"""Redis and PostgreSQL go away under a rollout and come back: no step notices, and nothing is missing."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.system.conftest import wait_until

from .accounts import counts_agree, journal_replays
from .cluster import Cluster

pytestmark = pytest.mark.faults

NewCluster = Callable[..., Cluster]

REDIS_OUTAGE_S = 10.0
POSTGRESQL_OUTAGE_S = 60.0
GIVEN_UP = 6
"""Writes that fail before the longest pause between two."""


async def test_redis_is_away_for_ten_seconds_and_comes_back_empty(
    new_cluster: NewCluster, own_redis: Any
) -> None:
    cluster = new_cluster(redis=own_redis)
    await cluster.start()
    async with cluster.rollout() as rollout:
        await rollout.all_have(1)
        own_redis.stop()
        back = asyncio.get_running_loop().time() + REDIS_OUTAGE_S

        async def is_local() -> bool:
            ready = await cluster.ready()
            return (ready["ready"], ready["live_state"]) == (True, "local")

        await wait_until(is_local, "the outage in /ready")
        await rollout.all_have(rollout.least + 2)
        await asyncio.sleep(back - asyncio.get_running_loop().time())
        own_redis.start()
        await wait_until(cluster.is_mirrored, "all that is live in the Redis that came back empty")
    assert rollout.troubles == 0
    await counts_agree(cluster, rollout)
    await wait_until(cluster.is_mirrored, "the last steps in Redis")
    # What lies there is enough for another life.
    last = {agent.name: len(agent.answers) for agent in rollout.agents}
    await cluster.gateway.part.kill()
    await cluster.start_gateway()
    await asyncio.gather(*(agent.step() for agent in rollout.agents))
    assert {agent.name: agent.answers[-1].step for agent in rollout.agents} == last
    await counts_agree(cluster, rollout, gateway_died=True)
    await journal_replays(cluster)


async def test_postgresql_is_away_for_a_minute_and_no_record_is_missing_or_there_twice(
    new_cluster: NewCluster, own_postgresql: Any
) -> None:
    cluster = new_cluster(postgresql=own_postgresql)
    await cluster.start()
    async with cluster.rollout() as rollout:
        await rollout.all_have(1)
        own_postgresql.stop()
        back = asyncio.get_running_loop().time() + POSTGRESQL_OUTAGE_S
        before = rollout.least

        async def has_given_up() -> bool:
            return (await cluster.gateway.get("/stats"))["history"]["failed_writes"] >= GIVEN_UP

        await wait_until(has_given_up, f"{GIVEN_UP} writes that fail")
        ready = await cluster.ready()
        assert (ready["ready"], ready["history"]) == (True, "backing_off")
        await asyncio.sleep(back - asyncio.get_running_loop().time())
        assert rollout.least > before + 2, "agents went on meanwhile"
        history = (await cluster.gateway.get("/stats"))["history"]
        assert history["queued"] > len(rollout.agents)
        assert (history["dropped"], history["not_on_disk"]) == (0, 0)
        own_postgresql.start()
    assert rollout.troubles == 0
    await counts_agree(cluster, rollout)
    await journal_replays(cluster)


async def test_a_gateway_that_is_told_to_end_without_its_database_loses_no_record(
    new_cluster: NewCluster, own_postgresql: Any
) -> None:
    cluster = new_cluster(postgresql=own_postgresql)
    await cluster.start()
    async with cluster.rollout() as rollout:
        await rollout.all_have(1)
        own_postgresql.stop()
        await rollout.all_have(rollout.least + 1)
    stats = (await cluster.gateway.get("/stats"))["history"]
    assert stats["queued"] > 0
    assert await cluster.gateway.part.stop() == 0
    own_postgresql.start()
    await cluster.start_gateway()

    async def written() -> bool:
        history = (await cluster.gateway.get("/stats"))["history"]
        return history["recovered"] > 0 and history["spilled"] == history["queued"] == 0

    await wait_until(written, "what was spilled in the database")
    await asyncio.gather(*(agent.step() for agent in rollout.agents))

    async def all_there() -> bool:
        [(count,)] = await cluster.sql("select count(*) from steps")
        return bool(count == sum(len(agent.answers) for agent in rollout.agents))

    await wait_until(all_there, "every step's record")
