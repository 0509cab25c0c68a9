"""The plan pointer in Redis: which plan is in force, and how far versions were counted.

Key, with the tag of `redis_state`: ``plan``, a hash of e(poch) and n(umber) of the writer and d(ata), with a
time to live. It is compared and set in one script: what an earlier leader still sends is refused.
"""

import json
from typing import Final

from heddle_contracts.live_state import SCHEMA_VERSION, PlanPointer
from pydantic import ValidationError

from heddle_gateway.store.redis_state import FAULTS, LiveStoreError, key_tag, open_redis, run_script

# KEYS: plan. ARGV: epoch, number, time to live in ms, data. Returns whether it was written.
_SAVE: Final = """
local epoch, number = tonumber(ARGV[1]), tonumber(ARGV[2])
local held = redis.call('HMGET', KEYS[1], 'e', 'n')
local e, n = tonumber(held[1] or '-1'), tonumber(held[2] or '-1')
if e > epoch or (e == epoch and n >= number) then return 0 end
redis.call('HSET', KEYS[1], 'e', epoch, 'n', number, 'd', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""


class RedisPlan:
    """One namespace in one Redis. Raises ValueError for a URL that is none; connects at first use.

    ``ttl_s``: how long the pointer is kept after its last write.
    """

    def __init__(self, url: str, *, name: str, ttl_s: float) -> None:
        self._redis = open_redis(url)
        self._key = key_tag(name) + "plan"
        self._ttl_ms = int(ttl_s * 1000)
        self._save = self._redis.register_script(_SAVE)

    async def close(self) -> None:
        await self._redis.aclose()

    async def save(self, epoch: int, number: int, pointer: PlanPointer) -> bool:
        """``number`` grows with every write of an epoch. False if a newer one is there."""
        # ASCII: ids may hold lone surrogates, which UTF-8 has no bytes for.
        data = json.dumps(pointer.model_dump())
        return bool(await run_script(self._save, [self._key], [epoch, number, self._ttl_ms, data]))

    async def load(self) -> PlanPointer | None:
        """None where there is none, or one that this build cannot read."""
        try:
            data = await self._redis.hget(self._key, "d")
        except FAULTS as fault:
            raise LiveStoreError(f"the plan pointer cannot be read from Redis: {fault}") from fault
        if data is None:
            return None
        try:
            # Not pydantic's JSON, which refuses lone surrogates.
            pointer = PlanPointer.model_validate(json.loads(data))
        except (ValueError, ValidationError):
            return None
        return pointer if pointer.schema_version == SCHEMA_VERSION else None
