"""Carries out a live driver's moves of KV between emulated engines, in the loop's time.

In the place of shims: what is known at the source is locked, room is set aside at the target, the transfer
takes its set-up and its tokens, then the target knows them too.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from heddle_core import CancelMigration, Migrate
from heddle_core.names import MigrationFailure
from heddle_gateway.live.directory import LiveTrajectory
from heddle_gateway.live.driver import Driver
from heddle_shim.emulator.driver import EngineDriver
from heddle_shim.emulator.generation import Generation
from heddle_shim.emulator.kv_moves import KvMoves
from heddle_shim.emulator.kv_pool import KvHold

from .same_trace import micros


@dataclass
class _Transfer:
    action: Migrate
    text: bytes
    hold: KvHold
    timer: asyncio.TimerHandle


class VirtualMover:
    """``link``: tokens a second, and seconds of a transfer of none."""

    def __init__(
        self, driver: Driver, engines: Sequence[EngineDriver], link: tuple[float, float] | None
    ) -> None:
        self._driver = driver
        self._engines = engines
        self._moves: Final = [KvMoves(engine.engine) for engine in engines]
        self._link = link
        self._last: dict[int, Generation] = {}
        self._transfers: dict[int, _Transfer] = {}
        self._loop = asyncio.get_running_loop()
        self._failed: deque[tuple[int, MigrationFailure]] = deque()

    def ran(self, live: LiveTrajectory, generation: Generation) -> None:
        """The trajectory's latest step."""
        self._last[live.handle] = generation

    def begin(self, action: Migrate, live: LiveTrajectory) -> None:
        failure = self._begin(action, live)
        if failure is not None:
            self._report(action.migration, failure)

    def cancel(self, action: CancelMigration) -> None:
        transfer = self._transfers.pop(action.migration, None)
        if transfer is not None:
            transfer.timer.cancel()
            self._let_go(transfer)
            self._report(action.migration, "cancelled")

    def flush(self) -> None:
        """Tells the driver what has failed at once: after an arrival before the next of that moment, else
        when all that ended at that moment has been told.
        """
        while self._failed:
            self._driver.migration_failed(*self._failed.popleft())

    def _report(self, migration: int, why: MigrationFailure) -> None:
        self._failed.append((migration, why))
        self._loop.call_soon(self.flush)

    def _begin(self, action: Migrate, live: LiveTrajectory) -> MigrationFailure | None:
        assert self._link is not None
        generation = self._last[live.handle]
        rate, setup = self._link
        now = self._loop.time()
        source, target = self._moves[action.from_worker], self._moves[action.to_worker]
        hold = source.hold(now, generation.sequence(min(generation.computed, action.tokens)))
        if hold is None or not hold.shared:
            return "declined"
        text = generation.sequence(hold.shared)
        known, _ = self._engines[action.to_worker].engine.pool.tree.match(text)
        moved = hold.shared - known
        took = setup + moved / rate
        worth = action.worth_us is None or micros(took) <= action.worth_us
        if not worth or not target.promise(now, hold.shared):
            source.let_go(now, hold)
            return "declined" if not worth else "target_full"
        timer = self._loop.call_at(micros(now + took) / 1e6, self._land, action.migration)
        self._transfers[action.migration] = _Transfer(action, text, hold, timer)
        self._catch_up(action)
        return None

    def _land(self, migration: int) -> None:
        transfer = self._transfers.pop(migration)
        action, now = transfer.action, self._loop.time()
        self._moves[action.to_worker].adopt(now, transfer.hold.shared, transfer.text)
        self._moves[action.from_worker].let_go(now, transfer.hold)
        self._catch_up(action)
        self._driver.migration_landed(migration, transfer.hold.shared)
        self.flush()

    def _let_go(self, transfer: _Transfer) -> None:
        now = self._loop.time()
        self._moves[transfer.action.to_worker].adopt(now, transfer.hold.shared, b"")
        self._moves[transfer.action.from_worker].let_go(now, transfer.hold)
        self._catch_up(transfer.action)

    def _catch_up(self, action: Migrate) -> None:
        self._engines[action.from_worker].catch_up()
        self._engines[action.to_worker].catch_up()
