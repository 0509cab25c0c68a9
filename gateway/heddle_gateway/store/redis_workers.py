"""The worker registry in Redis: workers that were added while a gateway ran, each with a lease.

Keys, with the tag of `redis_state`:

    w:URL       a hash: e(poch) of the writer, d(ata), with the lease as its time to live
    workers     a sorted set of those keys by the end of their lease

A lease that is not renewed runs out by Redis' own clock. What an earlier leader still sends is refused.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from heddle_contracts.live_state import SCHEMA_VERSION, RegisteredWorker
from pydantic import ValidationError

from heddle_gateway.store.redis_state import FAULTS, REMOVE, LiveStoreError, key_tag, open_redis, run_script

# KEYS: workers, then one data key an item. ARGV: epoch, lease in ms, then data an item.
_PUT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local epoch, lease = tonumber(ARGV[1]), tonumber(ARGV[2])
local refused = 0
for i = 2, #KEYS do
  if tonumber(redis.call('HGET', KEYS[i], 'e') or '-1') > epoch then
    refused = refused + 1
  else
    redis.call('HSET', KEYS[i], 'e', epoch, 'd', ARGV[i + 1])
    redis.call('PEXPIRE', KEYS[i], lease)
    redis.call('ZADD', KEYS[1], now + lease, KEYS[i])
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return refused
"""


class RedisWorkers:
    """One namespace in one Redis. Raises ValueError for a URL that is none; connects at first use."""

    def __init__(self, url: str, *, name: str, lease_s: float) -> None:
        self._redis = open_redis(url)
        self._tag = key_tag(name)
        self._lease_ms = int(lease_s * 1000)
        self._put = self._redis.register_script(_PUT)
        self._remove = self._redis.register_script(REMOVE)

    async def close(self) -> None:
        await self._redis.aclose()

    async def put(self, epoch: int, workers: Sequence[RegisteredWorker]) -> int:
        """Writes workers, each with a whole lease; how many were refused: a newer leader wrote them."""
        keys = [self._tag + "workers", *(self._key(worker.url) for worker in workers)]
        data = [json.dumps(worker.model_dump(exclude_none=True)) for worker in workers]
        return int(await run_script(self._put, keys, [epoch, self._lease_ms, *data])) if workers else 0

    async def remove(self, epoch: int, urls: Iterable[str]) -> None:
        """Forgets workers, unless a newer leader wrote them."""
        keys = [self._key(url) for url in urls]
        if keys:
            await run_script(self._remove, [self._tag + "workers", *keys], [epoch])

    async def load(self) -> tuple[list[tuple[RegisteredWorker, float]], int]:
        """Workers whose lease has not run out, in their order, with the seconds it has left; and how many
        could not be read.
        """
        found: list[tuple[RegisteredWorker, float]] = []
        unreadable = 0
        try:
            keys = await self._redis.zrange(self._tag + "workers", 0, -1)
            async with self._redis.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.hget(key, "d")
                    pipe.pttl(key)
                rows: list[Any] = await pipe.execute() if keys else []
        except FAULTS as fault:
            raise LiveStoreError(f"workers cannot be read from Redis: {fault}") from fault
        for data, left_ms in zip(rows[::2], rows[1::2], strict=True):
            if data is None:
                continue  # its lease ran out
            worker = _worker_of(data)
            if worker is None:
                unreadable += 1
            else:
                found.append((worker, max(0, left_ms) / 1000.0))
        return sorted(found, key=lambda one: one[0].number), unreadable

    def _key(self, url: str) -> str:
        return f"{self._tag}w:{url}"


def _worker_of(data: str) -> RegisteredWorker | None:
    """None for what another build wrote that this one cannot read."""
    try:
        worker = RegisteredWorker.model_validate_json(data)
    except ValidationError:
        return None
    return worker if worker.schema_version == SCHEMA_VERSION else None
