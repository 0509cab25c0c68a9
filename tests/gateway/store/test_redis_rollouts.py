"""Rollouts in Redis: read as they were written, progress member by member, late words of an earlier leader
refused.
"""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from heddle_contracts.live_state import MemberProgress, MemberState, RolloutState
from heddle_contracts.rollouts import RolloutMember
from heddle_gateway.store.redis_rollouts import CHUNK, RedisRollouts

pytestmark = pytest.mark.services

_names = count()


def rollout(name: str, members: int, created_at: float = 100.0) -> RolloutState:
    return RolloutState(
        id=name,
        name="epoch \ud800",
        policy_version="step-7",
        model="m",
        created_at=created_at,
        plan_version=3,
        members=tuple(
            MemberState(
                who=RolloutMember(
                    trajectory_id=f"{name}-{number}", group_id="g", sample=number, prompt=0, predicted=90.5
                ),
                sigma=0.5,
            )
            for number in range(members)
        ),
        progress=(MemberProgress(),) * members,
    )


@pytest.fixture
async def store(redis_server: Any) -> AsyncIterator[RedisRollouts]:
    store = RedisRollouts(redis_server.url, name=f"rollouts-{next(_names)}", ttl_s=60.0)
    yield store
    await store.close()


@pytest.mark.parametrize("members", [1, CHUNK - 1, CHUNK, 2 * CHUNK + 3])
async def test_a_rollout_is_read_as_it_was_written(store: RedisRollouts, members: int) -> None:
    one, earlier = rollout("ro-1", members), rollout("ro-0", 2, created_at=50.0)
    await store.save(1, one)
    await store.save(1, earlier)
    assert await store.load() == ([earlier, one], 0)
    await store.remove(1, ["ro-1"])
    assert await store.load() == ([earlier], 0)


async def test_progress_is_written_for_those_that_went_on(store: RedisRollouts) -> None:
    await store.save(1, rollout("ro-1", 3))
    went_on = MemberProgress(steps=2, output_tokens=70, first_at=1.5, last_at=9.0, over=True)
    await store.save_progress(1, "ro-1", {1: went_on})
    [found], _ = await store.load()
    assert found.progress == (MemberProgress(), went_on, MemberProgress())


async def test_what_an_earlier_leader_still_says_is_refused(store: RedisRollouts) -> None:
    newer = rollout("ro-1", 2)
    await store.save(2, newer)
    await store.save_progress(1, "ro-1", {0: MemberProgress(steps=9)})
    await store.remove(1, ["ro-1"])
    assert await store.load() == ([newer], 0)


async def test_what_another_build_wrote_is_counted_and_left(store: RedisRollouts) -> None:
    await store.save(1, rollout("ro-1", 2).model_copy(update={"schema_version": 99}))
    await store.save(1, rollout("ro-2", 2))
    found, unreadable = await store.load()
    assert ([one.id for one in found], unreadable) == (["ro-2"], 1)
