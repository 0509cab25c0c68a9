"""What of rollouts is written, and when: before an answer leaves, and before the lease is given back. In
simulated time, but for the order in which a gateway closes.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from heddle_contracts.live_state import MemberProgress, RolloutState
from heddle_contracts.rollouts import RolloutCreate
from heddle_core import scan_body
from heddle_gateway.live.directory import Directory
from heddle_gateway.live.driver import Driver
from heddle_gateway.live.policy import new_core
from heddle_gateway.plans.rollout_progress import Known
from heddle_gateway.plans.rollouts import RolloutBook
from heddle_gateway.shared_rollouts import SharedRollouts

from tests.simulate.virtual_time import run_in_virtual_time

WRITE_S = 0.05
NOTHING = Known({}, lambda worker: None, lambda live: None, quiet_s=60.0)


class Store:
    """Each write takes a while. ``found``: what an earlier leader left."""

    def __init__(self) -> None:
        self.saved: dict[str, RolloutState] = {}
        self.progress: dict[tuple[str, int], MemberProgress] = {}
        self.found: list[RolloutState] = []
        self.writes = 0

    async def save(self, epoch: int, rollout: RolloutState) -> None:
        self.writes += 1
        await asyncio.sleep(WRITE_S)
        self.saved[rollout.id] = rollout

    async def save_progress(self, epoch: int, rollout: str, progress: Mapping[int, MemberProgress]) -> None:
        await asyncio.sleep(WRITE_S)
        self.progress |= {(rollout, number): one for number, one in progress.items()}

    async def remove(self, epoch: int, rollouts: Iterable[str]) -> None:
        pass

    async def load(self) -> tuple[list[RolloutState], int]:
        return self.found, 0

    async def close(self) -> None:
        pass


class Parts:
    def __init__(self) -> None:
        self.book = RolloutBook()
        self.over: list[str] = []
        loop = asyncio.get_running_loop()
        self.driver = Driver(
            new_core({}, journal=False),
            Directory(),
            max_trajectories=1000,
            on_expire=lambda live, reason: self.over.append(live.trajectory_id),
            clock=lambda: round(1e6 * loop.time()),
        )
        self.store: Any = Store()
        self.shared = SharedRollouts(self.store, self.book, self.driver, lambda: 1)

    def announce(self, count: int = 1) -> str:
        asked = RolloutCreate(lengths=[100] * count)
        rollout, members, _ = self.book.draft(asked, room=1000, known=NOTHING)
        self.book.keep(rollout, asked, [(one, 0.5, self.live(rollout, one)) for one in members])
        return rollout

    def live(self, rollout: str, member: Any) -> Any:
        return self.driver.directory.announce(
            member.trajectory_id, group_id=member.group_id, sample=0, model=None, rollout=rollout
        )


def test_saved_returns_only_when_what_was_announced_is_written() -> None:
    async def main() -> None:
        parts = Parts()
        parts.shared.start()
        first = parts.announce()
        while not parts.store.writes:  # noqa: ASYNC110  time is simulated
            await asyncio.sleep(WRITE_S / 5)
        assert first not in parts.store.saved, "a write is under way"
        second = parts.announce()
        await parts.shared.saved()
        assert second in parts.store.saved
        await parts.shared.close()

    run_in_virtual_time(main())


def test_what_changed_just_before_the_end_is_written() -> None:
    async def main() -> None:
        parts = Parts()
        parts.shared.start()
        rollout = parts.announce()
        await parts.shared.saved()
        # The task rests between two writes now.
        parts.book.trajectory_over(f"{rollout}-0-0")
        await parts.shared.close()
        assert parts.store.progress[rollout, 0].over
        assert parts.shared.behind == 0

    run_in_virtual_time(main())


def test_trajectories_that_were_away_for_long_are_not_ranked_until_they_come() -> None:
    async def main() -> None:
        before, now = Parts(), time.time()
        rollout = before.announce(4)
        state = before.book.state_of(rollout)
        ends = (None, now, now - 600.0, now - 600.0)
        progress = tuple(
            MemberProgress(steps=end is not None, output_tokens=9, first_at=end, last_at=end) for end in ends
        )
        parts = Parts()
        parts.store.found = [state.model_copy(update={"progress": progress})]
        parts.shared.start()
        await parts.shared.take_up()
        directory = parts.driver.directory
        assert {directory.by_handle(row[0]).trajectory_id for row in parts.driver.active()} == {
            f"{rollout}-0-0",
            f"{rollout}-1-0",
        }
        assert directory.total == 4

        # One comes back all the same, the other one is forgotten when it has been idle for too long.
        who: Any = SimpleNamespace(trajectory_id=f"{rollout}-2-0", source="header", step=2, segment=0)
        came = directory.open(who, tenant="t", model=None)
        parts.driver.arrive(came, prompt_tokens=9, scan=scan_body(b"{}", "chat"), on_withdraw=lambda: None)
        assert came.rollout == rollout
        left_s = parts.driver.policy()["idle_ttl_ms"] / 1000.0 - 600.0
        await asyncio.sleep(0.9 * left_s)
        assert directory.total == 4
        await asyncio.sleep(0.12 * left_s)
        assert parts.over == [f"{rollout}-3-0"]
        await parts.shared.close()

    run_in_virtual_time(main())


def test_one_that_is_not_ranked_is_forgotten_when_its_rollout_is_said_to_be_over() -> None:
    async def main() -> None:
        parts = Parts()
        rollout = parts.announce()
        (live,) = parts.book.unfinished(rollout) or ()
        parts.driver.finish(live)
        assert (parts.over, parts.driver.directory.total) == ([f"{rollout}-0-0"], 0)

    run_in_virtual_time(main())


@pytest.mark.services
async def test_a_gateway_writes_a_last_time_while_it_holds_the_lease(
    new_gateway: Any, worker: Any, redis_server: Any
) -> None:
    gateway = await new_gateway(worker, redis_url=redis_server.url, namespace="closing-in-order")
    closed = []

    def noting(part: Any, name: str) -> None:
        close = part.close

        async def noted() -> None:
            closed.append(name)
            await close()

        part.close = noted

    parts = gateway.parts
    noting(parts.peering, "peering")
    for name in ("fleet", "rollouts", "pause"):
        noting(getattr(parts.outliving, name), name)
    await gateway.stop()
    assert sorted(closed[:-1]) == ["fleet", "pause", "rollouts"]
    assert closed[-1] == "peering"
