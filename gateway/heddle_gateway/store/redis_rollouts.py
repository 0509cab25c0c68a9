"""Rollouts in Redis: what was announced, and how far each of its trajectories is.

Keys, with the tag of `redis_state`:

    r:ID        a hash: e(poch) of the writer, d(ata) of the rollout, m0, m1, ... its members in chunks, and
                p0, p1, ... the progress of each member, with a time to live
    rollouts    a sorted set of those keys by when they were announced

Progress is written for the members that went on alone. What an earlier leader still sends is refused.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from heddle_contracts.live_state import SCHEMA_VERSION, MemberProgress, RolloutState
from pydantic import ValidationError

from heddle_gateway.store.redis_state import FAULTS, REMOVE, LiveStoreError, key_tag, open_redis, run_script

CHUNK: Final = 500
"""Members in one field, and fields in one call."""

# KEYS: rollouts, one data key. ARGV: epoch, time to live in ms, when it was announced where all of it is
# written, then field and value each. Returns whether it was written.
_PUT: Final = """
local epoch = tonumber(ARGV[1])
if tonumber(redis.call('HGET', KEYS[2], 'e') or '-1') > epoch then return 0 end
redis.call('HSET', KEYS[2], 'e', epoch)
for i = 4, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
if ARGV[3] ~= '' then redis.call('ZADD', KEYS[1], ARGV[3], KEYS[2]) end
return 1
"""


class RedisRollouts:
    """One namespace in one Redis. Raises ValueError for a URL that is none; connects at first use.

    ``ttl_s``: how long a rollout is kept after its last write.
    """

    def __init__(self, url: str, *, name: str, ttl_s: float) -> None:
        self._redis = open_redis(url)
        self._tag = key_tag(name)
        self._ttl_ms = int(ttl_s * 1000)
        self._put = self._redis.register_script(_PUT)
        self._remove = self._redis.register_script(REMOVE)

    async def close(self) -> None:
        await self._redis.aclose()

    async def save(self, epoch: int, rollout: RolloutState) -> None:
        """All of it. Raises LiveStoreError."""
        members = [member.model_dump() for member in rollout.members]
        fields = {"d": json.dumps(rollout.model_dump(exclude={"members", "progress"}))}
        for number, start in enumerate(range(0, len(members), CHUNK)):
            fields[f"m{number}"] = json.dumps(members[start : start + CHUNK])
        fields |= _progress(dict(enumerate(rollout.progress)))
        await self._write(epoch, rollout.id, rollout.created_at, fields)

    async def save_progress(self, epoch: int, rollout: str, progress: Mapping[int, MemberProgress]) -> None:
        """Of these members of a rollout that was saved, by their number. Raises LiveStoreError."""
        await self._write(epoch, rollout, "", _progress(progress))

    async def remove(self, epoch: int, rollouts: Iterable[str]) -> None:
        """Forgets them, unless a newer leader wrote them. Raises LiveStoreError."""
        keys = [self._key(rollout) for rollout in rollouts]
        if keys:
            await run_script(self._remove, [self._tag + "rollouts", *keys], [epoch])

    async def load(self) -> tuple[list[RolloutState], int]:
        """The one announced first first; and how many could not be read. Raises LiveStoreError."""
        found: list[RolloutState] = []
        unreadable = 0
        try:
            for key in await self._redis.zrange(self._tag + "rollouts", 0, -1):
                fields = await self._redis.hgetall(key)
                if not fields:
                    await self._redis.zrem(self._tag + "rollouts", key)
                    continue
                state = _state_of(fields)
                unreadable += state is None
                found += [state] if state is not None else []
        except FAULTS as fault:
            raise LiveStoreError(f"rollouts cannot be read from Redis: {fault}") from fault
        return found, unreadable

    # ---------------------------------------------------------------- inside

    def _key(self, rollout: str) -> str:
        return f"{self._tag}r:{rollout}"

    async def _write(
        self, epoch: int, rollout: str, created_at: float | str, fields: Mapping[str, str]
    ) -> None:
        named = list(fields.items())
        keys = [self._tag + "rollouts", self._key(rollout)]
        for start in range(0, len(named), CHUNK):
            values: list[Any] = [epoch, self._ttl_ms, created_at]
            for name, value in named[start : start + CHUNK]:
                values += (name, value)
            await run_script(self._put, keys, values)


def _progress(progress: Mapping[int, MemberProgress]) -> dict[str, str]:
    return {
        f"p{number}": json.dumps([*one.model_dump().values()], separators=(",", ":"))
        for number, one in progress.items()
    }


def _state_of(fields: Mapping[str, str]) -> RolloutState | None:
    """None for what another build wrote that this one cannot read."""
    names = tuple(MemberProgress.model_fields)
    try:
        head = json.loads(fields["d"])
        if head.get("schema_version") != SCHEMA_VERSION:
            return None
        members: list[Any] = []
        while (chunk := fields.get(f"m{len(members) // CHUNK}")) is not None:
            members += json.loads(chunk)
            if len(members) % CHUNK:
                break
        progress: Sequence[Any] = [
            dict(zip(names, json.loads(fields.get(f"p{number}", "[]")), strict=False))
            for number in range(len(members))
        ]
        return RolloutState.model_validate(head | {"members": members, "progress": progress})
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
        return None
