"""Live trajectories in Redis: written by the gateway that holds the lease, read by the one that takes over.

Keys, all with one hash tag so that a cluster keeps them together (``{heddle:NAME}:``):

    lease           who leads and how it is reached, with a time to live; absent when nobody does
    epoch           grows by one with each new leader
    t:TENANT:ID     a hash: e(poch) and n(umber) of the writer, d(ata), with a time to live
    seen            a sorted set of those keys by when they were written
    alive:PROCESS   there while that process asks who leads

(`redis_workers` and `redis_plan` keep theirs beside these.)

Every write is compared and set in one script: what an earlier leader still sends, or what comes out of order,
is refused. All ages are by Redis' own clock (``TIME``, key expiry), so hosts' clocks do not matter.
"""

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle_contracts.live_state import SCHEMA_VERSION, TrajectoryState
from pydantic import ValidationError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

TIMEOUT_S: Final = 2.0
ALIVE_S: Final = 3.0
"""Processes ask a few times as often."""
PAGE: Final = 500
BATCH: Final = 200

FAULTS: Final = (RedisError, OSError, TimeoutError)

# KEYS: seen, then one data key an item. ARGV: epoch, time to live in ms, then number and data an item.
_SAVE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local epoch, ttl = tonumber(ARGV[1]), tonumber(ARGV[2])
local refused = {}
for i = 2, #KEYS do
  local number, data = tonumber(ARGV[2 * i - 1]), ARGV[2 * i]
  local held = redis.call('HMGET', KEYS[i], 'e', 'n')
  local e, n = tonumber(held[1] or '-1'), tonumber(held[2] or '-1')
  if e > epoch or (e == epoch and n >= number) then
    refused[#refused + 1] = i - 2
  else
    redis.call('HSET', KEYS[i], 'e', epoch, 'n', number, 'd', data)
    redis.call('PEXPIRE', KEYS[i], ttl)
    redis.call('ZADD', KEYS[1], now, KEYS[i])
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ttl)
return refused
"""

# KEYS: seen, then the data keys. ARGV: epoch.  Other sets of keys are kept in the same way.
REMOVE: Final = """
local removed = 0
for i = 2, #KEYS do
  if tonumber(redis.call('HGET', KEYS[i], 'e') or '-1') <= tonumber(ARGV[1]) then
    removed = removed + redis.call('DEL', KEYS[i])
    redis.call('ZREM', KEYS[1], KEYS[i])
  end
end
return removed
"""

# KEYS: lease, epoch, sign of life of who asks. ARGV: its time to live in ms, then holder, time to live in ms,
# the lowest epoch that may be given, how to reach the holder; or nothing more, to look only. Returns {epoch,
# holder, ms left, how to reach it}; epoch 0 when another holds it, and no holder when nobody does.
_TAKE: Final = """
local held = redis.call('HMGET', KEYS[1], 'holder', 'e', 'at')
redis.call('SET', KEYS[3], '', 'PX', ARGV[1])
if #ARGV == 1 or (held[1] and held[1] ~= ARGV[2]) then
  return {0, held[1] or '', redis.call('PTTL', KEYS[1]), held[3] or ''}
end
local epoch = tonumber(held[2] or '0')
if epoch == 0 then
  epoch = redis.call('INCR', KEYS[2])
  if epoch < tonumber(ARGV[4]) then
    epoch = tonumber(ARGV[4])
    redis.call('SET', KEYS[2], epoch)
  end
  redis.call('HSET', KEYS[1], 'holder', ARGV[2], 'e', epoch, 'at', ARGV[5])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {epoch, ARGV[2], tonumber(ARGV[3]), ARGV[5]}
"""

_RELEASE: Final = """
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class LiveStoreError(Exception):
    """Redis is away, or does not do what is asked. The message is fit for an operator."""


@dataclass(frozen=True, slots=True)
class Lease:
    """``epoch`` 0: ``holder`` leads, for ``left_s`` seconds more unless it renews; nobody where it is empty.
    Else this process does. ``at``: how the holder is reached, in its own words.
    """

    epoch: int
    holder: str
    left_s: float
    at: str = ""

    @property
    def is_ours(self) -> bool:
        return self.epoch > 0


@dataclass(frozen=True, slots=True)
class Versioned:
    """A state and its number, which grows with every change the writer makes. ``data``: JSON."""

    tenant: str
    trajectory_id: str
    number: int
    data: str


def open_redis(url: str) -> Any:
    """A client that connects at first use. Raises ValueError for a URL that is none."""
    return Redis.from_url(
        url,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        decode_responses=True,
        # The callers have their own ways to try again, with the state of the moment.
        retry=Retry(NoBackoff(), 0),
    )


def key_tag(namespace: str) -> str:
    """What all keys of a namespace begin with."""
    return "{heddle:" + namespace + "}:"


async def run_script(script: Any, keys: Sequence[str], values: Sequence[Any]) -> Any:
    """Raises LiveStoreError."""
    try:
        return await script(keys=keys, args=values)
    except FAULTS as fault:
        raise LiveStoreError(f"Redis: {fault or type(fault).__name__}") from fault


class RedisState:
    """One namespace in one Redis. Raises ValueError for a URL that is none; connects at first use.

    ``ttl_s``: how long a trajectory is kept after its last write.
    """

    def __init__(self, url: str, *, name: str, ttl_s: float) -> None:
        self._redis = open_redis(url)
        self._tag = key_tag(name)
        self._ttl_ms = int(ttl_s * 1000)
        self._save = self._redis.register_script(_SAVE)
        self._remove = self._redis.register_script(REMOVE)
        self._take = self._redis.register_script(_TAKE)
        self._release = self._redis.register_script(_RELEASE)

    async def close(self) -> None:
        await self._redis.aclose()

    # ---------------------------------------------------------------- lease

    async def take_lease(self, holder: str, ttl_s: float, *, above: int, at: str = "") -> Lease:
        """Takes or renews the lease. A new one gets an epoch above ``above``, whatever Redis forgot. ``at``:
        how the holder is reached.
        """
        return await self._lease(holder, [holder, int(ttl_s * 1000), above + 1, at])

    async def lease(self, asker: str) -> Lease:
        """Who has the lease; takes nothing. ``asker``: the process that wants to know."""
        return await self._lease(asker, [])

    async def lives(self, process: str) -> bool:
        """Whether that process has asked for the lease, or who has it, in the last `ALIVE_S` seconds."""
        try:
            return bool(await self._redis.exists(f"{self._tag}alive:{process}"))
        except FAULTS as fault:
            raise LiveStoreError(f"Redis: {fault or type(fault).__name__}") from fault

    async def release_lease(self, holder: str) -> None:
        """Nothing happens if another holds it."""
        await run_script(self._release, [self._tag + "lease"], [holder])

    # ---------------------------------------------------------------- trajectories

    async def save(self, epoch: int, states: Sequence[Versioned]) -> int:
        """Writes the states; returns how many were refused because a newer one is there."""
        refused = 0
        for start in range(0, len(states), BATCH):
            part = states[start : start + BATCH]
            keys = [self._tag + "seen", *(self._key(one.tenant, one.trajectory_id) for one in part)]
            values: list[Any] = [epoch, self._ttl_ms]
            for one in part:
                values += (one.number, one.data)
            refused += len(await run_script(self._save, keys, values))
        return refused

    async def remove(self, epoch: int, keys: Iterable[tuple[str, str]]) -> None:
        """Forgets trajectories, (tenant, id) each, unless a newer leader wrote them."""
        found = [self._key(*key) for key in keys]
        for start in range(0, len(found), BATCH):
            await run_script(self._remove, [self._tag + "seen", *found[start : start + BATCH]], [epoch])

    async def pages(self, limit: int) -> AsyncIterator[tuple[list[TrajectoryState], int]]:
        """Up to ``limit`` trajectories, the one written last first; with each page how many of it could not
        be read.
        """
        try:
            for start in range(0, limit, PAGE):
                last = min(start + PAGE, limit) - 1
                keys = await self._redis.zrange(self._tag + "seen", start, last, desc=True)
                if not keys:
                    break
                async with self._redis.pipeline(transaction=False) as pipe:
                    for key in keys:
                        pipe.hget(key, "d")
                    rows = await pipe.execute()
                # One that expired meanwhile is nobody's loss.
                states = [state_of(data) for data in rows if data is not None]
                found = [state for state in states if state is not None]
                yield found, len(states) - len(found)
        except FAULTS as fault:
            raise LiveStoreError(f"live state cannot be read from Redis: {fault}") from fault

    # ---------------------------------------------------------------- inside

    def _key(self, tenant: str, trajectory_id: str) -> str:
        # Tenants are hashes: no colon in them.
        return f"{self._tag}t:{tenant}:{_storable(trajectory_id)}"

    async def _lease(self, asker: str, values: Sequence[Any]) -> Lease:
        keys = [self._tag + "lease", self._tag + "epoch", f"{self._tag}alive:{asker}"]
        asked = [int(ALIVE_S * 1000), *values]
        epoch, holder, left_ms, at = await run_script(self._take, keys, asked)
        return Lease(int(epoch), str(holder), float(left_ms) / 1000.0, str(at))


def dump(state: TrajectoryState) -> str:
    """The state as it is stored."""
    # ASCII: ids may hold lone surrogates, which UTF-8 has no bytes for.
    return json.dumps(state.model_dump(exclude_none=True), separators=(",", ":"))


def state_of(data: str) -> TrajectoryState | None:
    """None for what another build wrote that this one cannot read."""
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict) or fields.get("schema_version") != SCHEMA_VERSION:
            return None
        return TrajectoryState.model_validate(fields)
    except (ValueError, ValidationError):
        return None


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
