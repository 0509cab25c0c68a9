"""Live state that outlives the process: what is written of a trajectory, and how a new process takes it up.

Part of the composition: it asks the parts for what each knows of a trajectory, and tells each what an earlier
process knew.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import uuid4

from heddle_contracts.live_state import TrajectoryState

from heddle_gateway.identity import TrajectoryBook
from heddle_gateway.live.driver import Driver
from heddle_gateway.settings import Settings
from heddle_gateway.store.redis_state import LiveStoreError, RedisState, Versioned, dump
from heddle_gateway.telemetry.live_mirror import Key, LiveMirror, MirrorTuning

log = logging.getLogger(__name__)

# A gateway that was killed holds the lease for a moment longer.
LEAD_WAIT_S: Final = 3 * MirrorTuning().lease_s
TAKE_UP_TIMEOUT_S: Final = 10.0
MAX_TAKEN_UP: Final = 50_000


class SharedState:
    """One namespace in Redis, filled with this gateway's live trajectories. ``worker_name(id)``: as in the
    fleet. Raises ValueError for a URL that is none.
    """

    def __init__(
        self,
        settings: Settings,
        url: str,
        book: TrajectoryBook,
        driver: Driver,
        worker_name: Callable[[int], str | None],
    ) -> None:
        self._store = RedisState(url, name=settings.namespace, ttl_s=settings.state_ttl_s)
        self._book = book
        self._driver = driver
        self._worker_name = worker_name
        self.mirror = LiveMirror(
            self._store,
            holder=f"{socket.gethostname()}:{settings.port}:{uuid4().hex[:8]}",
            describe=self._describe,
            everything=self._everything,
            fault=LiveStoreError,
        )

    def step_ended(self, record: Any) -> None:
        """A sink of ended steps."""
        self.mirror.changed(record.tenant, record.trajectory_id)

    async def take_up(self, capacity: int) -> int:
        """Takes the lease, and what the last holder knew; how many trajectories that were. A Redis that is
        away delays nothing: the gateway starts without.
        """
        await self.mirror.lead(LEAD_WAIT_S)
        try:
            async with asyncio.timeout(TAKE_UP_TIMEOUT_S):
                found, unreadable = await self._store.load(min(capacity, MAX_TAKEN_UP))
        except (LiveStoreError, TimeoutError) as error:
            log.warning("live state of an earlier process is not taken up: %s", error or "Redis is slow")
            return 0
        if unreadable:
            log.warning("%d trajectories in Redis are of another build and left alone", unreadable)
        self._restore(found)
        return len(found)

    def start(self) -> None:
        self.mirror.start()

    async def close(self) -> None:
        await self.mirror.close()
        await self._store.close()

    # ---------------------------------------------------------------- inside

    def _restore(self, found: Sequence[TrajectoryState]) -> None:
        now, clock = time.time(), time.monotonic()
        # The book takes the one seen longest ago first.
        for state in sorted(found, key=lambda one: one.last_seen):
            self._book.restore(state, clock - max(0.0, now - state.last_seen), state.conversation)
            if state.home is not None:
                self._driver.directory.expect_back(state.tenant, state.trajectory_id, state.home)

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
