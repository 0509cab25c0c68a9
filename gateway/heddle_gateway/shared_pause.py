"""A pause outlives the gateway it was asked of: kept in Redis, taken up by a process that starts and leads.

Part of the composition, beside shared_rollouts.py. Only the holder of the lease writes. A process that
followed heard of the pause from its leader, and does not ask Redis, which may have been away when it ended.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from heddle_gateway.live.driver import Driver
from heddle_gateway.settings import Settings
from heddle_gateway.store.redis_pause import RedisPause
from heddle_gateway.store.redis_state import LiveStoreError
from heddle_gateway.supervision import Background
from heddle_gateway.telemetry.live_mirror import LiveMirror
from heddle_gateway.write_rounds import WriteRounds

log = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
"""Between two looks where nothing woke the task; also how soon a store that was away is tried again."""
RENEWALS: Final = 10
"""In the time to live."""
TAKE_UP_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 5.0


class SharedPause:
    """``epoch()``: of the lease this process holds, 0 for none. Raises ValueError for a URL that is none."""

    def __init__(self, settings: Settings, url: str, driver: Driver, epoch: Callable[[], int]) -> None:
        self._store = RedisPause(url, name=settings.namespace, ttl_s=settings.state_ttl_s)
        self._renew_s = settings.state_ttl_s / RENEWALS
        self._driver = driver
        self._epoch = epoch
        self._written: tuple[int, bool] = (0, False)
        self._renew_at = 0.0
        self._wake = asyncio.Event()
        self._rounds = WriteRounds()
        self._away = False
        self._closing = False
        self._task = Background("shared-pause", self._run)

    def start(self) -> None:
        self._task.start()

    async def close(self) -> None:
        """Writes a change that is not written: call it while the lease is held."""
        self._closing = True
        self._wake.set()
        await self._task.ended(CLOSE_TIMEOUT_S)
        await self._store.close()

    def changed(self) -> None:
        """An operator has paused, or gone on."""
        self._wake.set()

    async def saved(self) -> bool:
        """Returns when Redis knows whether generation is paused, or cannot be told for now (False)."""
        if self._epoch() and not self._away:
            return await self._rounds.written(self._wake.set)
        self._wake.set()
        return False

    async def take_up(self) -> None:
        """A pause that an earlier life of this gateway was in holds."""
        try:
            async with asyncio.timeout(TAKE_UP_TIMEOUT_S):
                paused = await self._store.load()
        except (LiveStoreError, TimeoutError) as error:
            log.warning("whether generation is paused is not known: %s", error or "Redis is slow")
            return
        if paused:
            log.warning("generation was paused and still is: POST /continue_generation ends it")
            self._driver.pause_dispatch(True)

    # ---------------------------------------------------------------- inside

    async def _run(self) -> None:
        while True:
            last, mark = self._closing, self._rounds.begin()
            self._wake.clear()
            self._rounds.end(mark, written=await self._write())
            if last:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()

    async def _write(self) -> bool:
        """Whether it is known there."""
        now, there = asyncio.get_running_loop().time(), (self._epoch(), self._driver.is_paused)
        epoch, paused = there
        # That there is none need not be renewed: without a word of it there is none.
        if not epoch:
            return False
        if there == self._written and not (paused and now >= self._renew_at):
            return True
        try:
            await self._store.save(epoch, paused=paused)
        except LiveStoreError as error:
            log.debug("the pause is not in Redis: %s", error)
            self._away = True
        else:
            self._written, self._renew_at = there, now + self._renew_s
            self._away = False
        return not self._away


def open_shared_pause(settings: Settings, driver: Driver, mirror: LiveMirror) -> SharedPause:
    """For a gateway with a Redis, whose lease ``mirror`` holds."""
    assert settings.redis_url is not None
    return SharedPause(settings, settings.redis_url.get_secret_value(), driver, lambda: mirror.epoch)
