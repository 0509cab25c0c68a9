"""Live state that outlives the process: what is written of a trajectory, and how a new leader takes it up.

Part of the composition: it asks the parts for what each knows of a trajectory, and tells each what an earlier
leader knew.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from heddle_contracts.live_state import TrajectoryState

from heddle_gateway.identity import TrajectoryBook
from heddle_gateway.live.driver import Driver
from heddle_gateway.settings import Settings
from heddle_gateway.store.redis_state import Lease, LiveStoreError, RedisState, Versioned, dump, state_of
from heddle_gateway.telemetry.live_mirror import Key, LiveMirror

log = logging.getLogger(__name__)

TAKE_UP_TIMEOUT_S: Final = 10.0
MAX_TAKEN_UP: Final = 50_000


class SharedState:
    """One namespace in Redis, filled with this gateway's live trajectories. ``worker_name(id)``: as in the
    fleet; ``name``: of this process in the lease. Raises ValueError for a URL that is none.
    """

    def __init__(
        self,
        settings: Settings,
        url: str,
        name: str,
        book: TrajectoryBook,
        driver: Driver,
        worker_name: Callable[[int], str | None],
    ) -> None:
        self._store = RedisState(url, name=settings.namespace, ttl_s=settings.state_ttl_s)
        self._capacity = min(settings.max_trajectories, MAX_TAKEN_UP)
        self._book = book
        self._driver = driver
        self._worker_name = worker_name
        self.name = name
        self.mirror = LiveMirror(
            self._store,
            holder=name,
            describe=self._describe,
            everything=self._everything,
            fault=LiveStoreError,
        )

    def step_ended(self, record: Any) -> None:
        """A sink of ended steps."""
        self.mirror.changed(record.tenant, record.trajectory_id)

    def described(self, tenant: str, trajectory_id: str) -> bytes | None:
        """A trajectory as it is written, for `restore` in another process; None when it is over."""
        found = self._describe((tenant, trajectory_id), 0)
        return None if found is None else found.data.encode("ascii")

    def restore(self, written: Iterable[bytes]) -> None:
        """What was `described` elsewhere, beside what is known here."""
        states = [state_of(data.decode("ascii")) for data in written]
        self._restore([state for state in states if state is not None])

    async def look(self) -> Lease | None:
        """Who has the lease; None when Redis is away."""
        try:
            return await self._store.lease(self.name)
        except LiveStoreError:
            return None

    async def lives(self, process: str) -> bool | None:
        """Whether Redis has heard of that process lately; None when it is away."""
        try:
            return await self._store.lives(process)
        except LiveStoreError:
            return None

    async def take_up(self) -> bool:
        """What the last leader knew, beside what is known here; False when Redis is away."""
        try:
            async with asyncio.timeout(TAKE_UP_TIMEOUT_S):
                found, unreadable = await self._store.load(self._capacity)
        except (LiveStoreError, TimeoutError) as error:
            log.warning("live state of an earlier leader is not taken up: %s", error or "Redis is slow")
            return False
        if unreadable:
            log.warning("%d trajectories in Redis are of another build and left alone", unreadable)
        self._restore(found)
        return True

    async def close(self) -> None:
        await self._store.close()

    # ---------------------------------------------------------------- inside

    def _restore(self, found: Sequence[TrajectoryState]) -> None:
        now, clock = time.time(), time.monotonic()
        directory = self._driver.directory
        # The book takes the one seen longest ago first.
        for state in sorted(found, key=lambda one: one.last_seen):
            self._book.restore(state, clock - max(0.0, now - state.last_seen), state.conversation)
            if state.home is not None and directory.find(state.trajectory_id, state.tenant) is None:
                directory.expect_back(state.tenant, state.trajectory_id, state.home)

    def _everything(self) -> list[Key]:
        return [(one.tenant, one.trajectory_id) for one in self._driver.directory]

    def _describe(self, key: Key, number: int) -> Versioned | None:
        tenant, trajectory_id = key
        live = self._driver.directory.find(trajectory_id, tenant)
        view = None if live is None else self._driver.trajectory_view(live)
        if live is None or view is None:
            return None
        state = TrajectoryState.model_construct(
            trajectory_id=trajectory_id,
            tenant=tenant,
            source=live.source,
            model=live.model,
            group_id=live.group_id,
            sample=live.sample,
            parent_id=live.parent_id,
            home=None if view["home"] is None else self._worker_name(view["home"]),
            # A step that is under way ends with this process: its number is given again.
            steps=live.step + (0 if view["live_steps"] else 1),
            segment=live.segment,
            context_tokens=view["context_tokens"],
            output_tokens=view["generated"],
            predicted_tokens=float(view["remaining"]),
            rank=view["rank"],
            first_seen=live.started_at,
            last_seen=live.last_seen_at,
            conversation=self._book.memory(tenant, trajectory_id),
        )
        return Versioned(tenant, trajectory_id, number, dump(state))
