"""Redis as docker-compose.yml starts it, when more is written than it may hold."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from heddle_gateway.store.redis_state import RedisState, Versioned, key_tag, open_redis
from redis.asyncio import Redis as AnyRedis

from tests.conftest import Redis

pytestmark = pytest.mark.services

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
LEASE_S = 10.0
DATA = "x" * 1000
OLD, NEW, BATCH = 8000, 4000, 100


@pytest.fixture
async def client(own_redis: Redis) -> AsyncIterator[Any]:
    client = open_redis(own_redis.url)
    yield client
    await client.aclose()


@pytest.fixture
async def state(own_redis: Redis) -> AsyncIterator[RedisState]:
    state = RedisState(own_redis.url, name="full", ttl_s=3600)
    yield state
    await state.close()


async def test_a_full_redis_keeps_the_leaders_lease(own_redis: Redis, client: Any, state: RedisState) -> None:
    command: list[str] = yaml.safe_load(COMPOSE.read_text())["services"]["redis"]["command"]
    await client.config_set("maxmemory-policy", command[command.index("--maxmemory-policy") + 1])
    lease = await state.take_lease("leader", LEASE_S, above=0, at="here")
    assert lease.is_ours
    await rest(own_redis.url, OLD)
    await client.config_set("maxmemory", (await client.info("memory"))["used_memory"])
    for batch in range(NEW // BATCH):
        states = [Versioned("tenant", f"{batch}-{index}", 1, DATA) for index in range(BATCH)]
        assert await state.save(lease.epoch, states) == 0
        assert (await state.lease("follower")).holder == "leader"
        renewed = await state.take_lease("leader", LEASE_S, above=0, at="here")
        assert renewed.epoch == lease.epoch
    assert (await client.info("stats"))["evicted_keys"] >= NEW


async def rest(url: str, count: int) -> None:
    """Trajectories that nobody has touched for ten minutes."""
    raw: Any = AnyRedis.from_url(url)
    await raw.hset("one", mapping={"e": 1, "n": 1, "d": DATA})
    dumped = await raw.dump("one")
    pipe = raw.pipeline(transaction=False)
    for index in range(count):
        pipe.restore(f"{key_tag('full')}t:tenant:old-{index}", 3_600_000, dumped, idletime=600)
    await pipe.execute()
    await raw.aclose()
