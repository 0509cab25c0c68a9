"""Rollouts outlive their leader: kept in Redis a moment behind, taken up by whoever leads next.

Part of the composition, beside shared_fleet.py. Only the holder of the lease writes; with a new epoch all is
written again. A rollout that is taken up is announced to the core anew: its trajectories are ranked before
they come back, but for those that were away for so long that they were not ranked any more.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from heddle_contracts.live_state import RolloutState

from heddle_gateway.live.driver import Driver
from heddle_gateway.plans.rollouts import RolloutBook
from heddle_gateway.settings import Settings
from heddle_gateway.store.redis_rollouts import RedisRollouts
from heddle_gateway.store.redis_state import LiveStoreError
from heddle_gateway.supervision import Background
from heddle_gateway.telemetry.live_mirror import LiveMirror
from heddle_gateway.write_rounds import WriteRounds

log = logging.getLogger(__name__)

PERIOD_S: Final = 0.1
AGAIN_S: Final = 1.0
"""A store that was away is tried again after so long."""
TAKE_UP_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 5.0
TURN: Final = 256
"""Announcements between which steps get their turn."""


class SharedRollouts:
    """``epoch()``: of the lease this process holds, 0 for none."""

    def __init__(
        self, store: RedisRollouts, book: RolloutBook, driver: Driver, epoch: Callable[[], int]
    ) -> None:
        self._store = store
        self._book = book
        self._driver = driver
        self._epoch = epoch
        self._written_epoch = 0
        # Taken up and not ranked: when it is forgotten, by the loop's clock, and its handle.
        self._dormant: list[tuple[float, int]] = []
        self._away = False
        self._wake = asyncio.Event()
        self._rounds = WriteRounds()
        self._writing = 0
        self._closing = False
        self._task = Background("shared-rollouts", self._run)
        book.on_change = self._wake.set

    @property
    def behind(self) -> int:
        """Rollouts that have changed and are not written yet."""
        return self._book.changes + self._writing

    # ---------------------------------------------------------------- lifetime

    def start(self) -> None:
        self._task.start()

    async def close(self) -> None:
        """Writes what has changed: call it while the lease is held."""
        self._closing = True
        self._wake.set()
        await self._task.ended(CLOSE_TIMEOUT_S)
        await self._store.close()

    async def take_up(self) -> None:
        """What an earlier leader announced, beside what is known here; nothing where Redis is away."""
        try:
            async with asyncio.timeout(TAKE_UP_TIMEOUT_S):
                found, unreadable = await self._store.load()
        except (LiveStoreError, TimeoutError) as error:
            log.warning("rollouts of an earlier leader are not taken up: %s", error or "Redis is slow")
            return
        if unreadable:
            log.warning("%d rollouts in Redis are of another build and left alone", unreadable)
        for state in found:
            if state.id not in self._book:
                self._book.restore(state, await self._announced(state))

    def begin_anew(self) -> None:
        """Another process leads from now on."""
        self._dormant.clear()
        self._book.begin_anew()

    async def saved(self) -> bool:
        """Returns when what was announced lies in Redis, or cannot be written there for now (False)."""
        if self._epoch() and not self._away:
            return self.behind == 0 or await self._rounds.written(self._wake.set)
        self._wake.set()
        return False

    # ---------------------------------------------------------------- inside

    async def _announced(self, state: RolloutState) -> list[Any]:
        """A live entry of each member that is not over, else None."""
        directory, policy = self._driver.directory, self._driver.policy()
        dormant_s, idle_s = policy["dormant_after_ms"] / 1000.0, policy["idle_ttl_ms"] / 1000.0
        now, clock = time.time(), asyncio.get_running_loop().time()
        lives: list[Any] = []
        for number, (member, progress) in enumerate(zip(state.members, state.progress, strict=True)):
            if progress.over:
                lives.append(None)
                continue
            known = directory.named(member.who.trajectory_id)
            live = known[0] if known else None
            if live is None:
                live = directory.announce(
                    member.who.trajectory_id,
                    group_id=member.who.group_id,
                    sample=member.who.sample,
                    model=state.model,
                    rollout=state.id,
                )
                away_s = 0.0 if progress.last_at is None else now - progress.last_at
                if away_s >= dormant_s:
                    # Most such trajectories have ended: ranks and shares are for those that run. One that is
                    # in a long step has a while to be told of.
                    heapq.heappush(self._dormant, (clock + max(idle_s - away_s, dormant_s), live.handle))
                else:
                    left = max(1.0, (member.who.predicted or 0.0) - progress.output_tokens)
                    self._driver.expect(live, mean=left, sigma=member.sigma)
            lives.append(live)
            if number % TURN == TURN - 1:
                await asyncio.sleep(0)
        return lives

    async def _run(self) -> None:
        while True:
            last, mark = self._closing, self._rounds.begin()
            self._wake.clear()
            self._forget_dormant()
            await self._sync()
            self._rounds.end(mark, written=not self._away)
            if last:
                return
            await asyncio.sleep(AGAIN_S if self._away else PERIOD_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._wake.wait()

    def _forget_dormant(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._dormant and self._dormant[0][0] <= now:
            live = self._driver.directory.by_handle(heapq.heappop(self._dormant)[1])
            if live is not None and not live.has_arrived:
                self._driver.finish(live)

    async def _sync(self) -> None:
        epoch = self._epoch()
        if not epoch:
            return
        if epoch != self._written_epoch:
            self._book.all_changed()
        changed, gone = self._book.take_changes()
        self._writing = len(changed) + len(gone)
        try:
            await self._store.remove(epoch, gone)
            for rollout, numbers in changed.items():
                if rollout not in self._book:
                    continue
                if numbers is None:
                    await self._store.save(epoch, self._book.state_of(rollout))
                else:
                    progress = self._book.progress_of(rollout, numbers)
                    await self._store.save_progress(epoch, rollout, progress)
        except LiveStoreError as error:
            if not self._away:
                log.warning("rollouts stay in this process: %s", error)
            self._away = True
            self._written_epoch = 0
            self._book.all_changed(gone)
        else:
            self._away = False
            self._written_epoch = epoch
        finally:
            self._writing = 0


def open_shared_rollouts(
    settings: Settings, book: RolloutBook, driver: Driver, mirror: LiveMirror
) -> SharedRollouts:
    """For a gateway with a Redis, whose lease ``mirror`` holds. Raises ValueError for a URL that is none."""
    assert settings.redis_url is not None
    url = settings.redis_url.get_secret_value()
    store = RedisRollouts(url, name=settings.namespace, ttl_s=settings.state_ttl_s)
    return SharedRollouts(store, book, driver, lambda: mirror.epoch)
