"""Messages between the processes of a namespace through Redis, for those that reach it and not each other.

Key, with the tag of `redis_state`: ``mail:PROCESS``, a list that this process reads, first in first out, with
a time to live: what is sent to a process that is gone goes too.
"""

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from heddle_gateway.store.redis_state import FAULTS, TIMEOUT_S, LiveStoreError, key_tag

TTL_MS: Final = 10_000
AT_ONCE: Final = 256
"""Messages taken in one go."""


class RedisMail:
    """``process``: whose messages are taken here. Raises ValueError for a URL that is none; connects at first
    use.
    """

    def __init__(self, url: str, *, name: str, process: str) -> None:
        # Bytes, where the rest of the namespace is text.
        self._redis: Any = Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._tag = key_tag(name) + "mail:"
        self._own = self._tag + process

    async def close(self) -> None:
        await self._redis.aclose()

    async def post(self, to: str, message: bytes) -> None:
        """In the order of the calls, each awaited. Raises LiveStoreError."""
        key = self._tag + to
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.rpush(key, message)
                pipe.pexpire(key, TTL_MS)
                await pipe.execute()
        except FAULTS as fault:
            raise LiveStoreError(f"Redis: {fault or type(fault).__name__}") from fault

    async def take(self) -> Sequence[bytes]:
        """What has come, after a wait of a second at most. Raises LiveStoreError."""
        try:
            first = await self._redis.blpop([self._own], timeout=TIMEOUT_S / 2)
            if first is None:
                return ()
            return (first[1], *(await self._redis.lpop(self._own, AT_ONCE) or ()))
        except FAULTS as fault:
            raise LiveStoreError(f"Redis: {fault or type(fault).__name__}") from fault
