"""Whether an operator has paused generation, in Redis: a gateway that starts anew must not send into a pause.

Key, with the tag of `redis_state`: ``pause``, a hash of e(poch) of the writer and p(aused), with a time to
live. What an earlier leader still sends is refused.
"""

from typing import Final

from heddle_gateway.store.redis_state import FAULTS, LiveStoreError, key_tag, open_redis, run_script

# KEYS: pause. ARGV: epoch, time to live in ms, 1 or 0. Returns whether it was written.
_SAVE: Final = """
if tonumber(redis.call('HGET', KEYS[1], 'e') or '-1') > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'e', ARGV[1], 'p', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""


class RedisPause:
    """One namespace in one Redis. Raises ValueError for a URL that is none; connects at first use.

    ``ttl_s``: how long it is kept after the last write.
    """

    def __init__(self, url: str, *, name: str, ttl_s: float) -> None:
        self._redis = open_redis(url)
        self._key = key_tag(name) + "pause"
        self._ttl_ms = int(ttl_s * 1000)
        self._save = self._redis.register_script(_SAVE)

    async def close(self) -> None:
        await self._redis.aclose()

    async def save(self, epoch: int, *, paused: bool) -> None:
        """Raises LiveStoreError."""
        await run_script(self._save, [self._key], [epoch, self._ttl_ms, int(paused)])

    async def load(self) -> bool:
        """False where nothing is known. Raises LiveStoreError."""
        try:
            return bool(await self._redis.hget(self._key, "p") == "1")
        except FAULTS as fault:
            raise LiveStoreError(f"a pause cannot be read from Redis: {fault}") from fault
