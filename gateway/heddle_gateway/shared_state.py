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

TAKE_UP_TIMEOUT_S: Final = 20.0
"""Time for reading. What was written last is read first, and what has come by then is taken up."""
SLICE: Final = 1000
"""Trajectories taken up before others have a turn: links and the lease live meanwhile."""


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
        self._capacity = settings.max_trajectories
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
        known = [state for state in states if state is not None]
        self._restore(sorted(known, key=lambda one: one.last_seen))

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
        found: list[TrajectoryState] = []
        unreadable = 0
        try:
            async with asyncio.timeout(TAKE_UP_TIMEOUT_S):
                async for states, unread in self._store.pages(self._capacity):
                    found += states
                    unreadable += unread
        except (LiveStoreError, TimeoutError) as error:
            why = error or "Redis is slow"
            if not found:
                log.warning("live state of an earlier leader is not taken up: %s", why)
                return False
            log.warning("of an earlier leader's live state the newest %d are taken up: %s", len(found), why)
        if unreadable:
            log.warning("%d trajectories in Redis are of another build and left alone", unreadable)
        # The book takes the one seen longest ago first.
        found.sort(key=lambda one: one.last_seen)
        for start in range(0, len(found), SLICE):
            self._restore(found[start : start + SLICE])
            await asyncio.sleep(0)
        return True

    async def close(self) -> None:
        await self._store.close()

    # ---------------------------------------------------------------- inside

    def _restore(self, found: Sequence[TrajectoryState]) -> None:
        now, clock = time.time(), time.monotonic()
        directory = self._driver.directory
        for state in found:
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
