"""Keeps a copy of the live trajectories in a store outside of the process, a moment behind.

Invariants: no request waits for it; a change is written within `MirrorTuning.period_s` while the store
answers; memory is one key a changed trajectory. While the store is away requests go on, changes gather, and
when it is back, empty or not, everything live is written again. Only the holder of the lease writes. Who
calls `renew` and `write`, and when, is peers.reign's business.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Any, Final, Protocol

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""(tenant, trajectory id)."""
MAX_GONE: Final = 65_536


class MirrorState(StrEnum):
    """How the copy is."""

    IDLE = "idle"
    FOLLOWING = "following"
    LOCAL = "local"
    """The store is away: state is in this process only."""
    ELSEWHERE = "elsewhere"
    """Another gateway leads: it writes the copy, this one nothing."""


class Lease(Protocol):
    @property
    def epoch(self) -> int: ...
    @property
    def holder(self) -> str: ...
    @property
    def left_s(self) -> float: ...
    @property
    def at(self) -> str: ...
    @property
    def is_ours(self) -> bool: ...


class LiveStore(Protocol):
    """Where the copy goes (store.redis_state.RedisState). Its calls raise the fault the mirror was given."""

    async def take_lease(self, holder: str, ttl_s: float, *, above: int, at: str = "") -> Lease: ...
    async def release_lease(self, holder: str) -> None: ...
    async def save(self, epoch: int, states: Sequence[Any]) -> int: ...
    async def remove(self, epoch: int, keys: Iterable[Key]) -> None: ...


@dataclass(frozen=True, slots=True)
class MirrorTuning:
    """``period_s``: how far the copy may be behind. ``lease_s``: how soon another gateway takes over."""

    period_s: float = 0.1
    lease_s: float = 1.6
    batch: int = 1000


@dataclass(frozen=True, slots=True)
class MirrorStats:
    """Counts since the start. ``behind``: changed trajectories that are not written yet."""

    state: MirrorState
    epoch: int
    behind: int
    written: int
    refused: int
    failed: int
    last_error: str | None


class LiveMirror:
    """``describe(key, number)``: the state to write, None when the trajectory is gone. ``everything``: the
    keys of all live trajectories. ``fault``: what the store raises.
    """

    def __init__(
        self,
        store: LiveStore,
        *,
        holder: str,
        describe: Callable[[Key, int], Any | None],
        everything: Callable[[], Iterable[Key]],
        fault: type[Exception],
        tuning: MirrorTuning | None = None,
    ) -> None:
        self._store = store
        self._holder = holder
        self._describe = describe
        self._everything = everything
        self._fault = fault
        self._tuning = tuning or MirrorTuning()
        self._numbers = count(1)
        # In the order they changed; a dict, because a set has none.
        self._changed: dict[Key, None] = {}
        self._gone: dict[Key, None] = {}
        self._epoch = 0
        self._highest_epoch = 0
        self._state = MirrorState.IDLE
        self._written = self._refused = self._failed = 0
        self._last_error: str | None = None

    # ---------------------------------------------------------------- what changes

    def changed(self, tenant: str, trajectory_id: str) -> None:
        """Costs a dictionary entry."""
        self._changed[tenant, trajectory_id] = None

    def ended(self, tenant: str, trajectory_id: str) -> None:
        """The trajectory is over: its copy goes."""
        self._changed.pop((tenant, trajectory_id), None)
        self._gone[tenant, trajectory_id] = None
        if len(self._gone) > MAX_GONE:
            # The store is away for long; what it still has of these ends with its time to live.
            del self._gone[next(iter(self._gone))]

    def stats(self) -> MirrorStats:
        return MirrorStats(
            state=self._state,
            epoch=self._epoch,
            behind=len(self._changed) + len(self._gone),
            written=self._written,
            refused=self._refused,
            failed=self._failed,
            last_error=self._last_error,
        )

    # ---------------------------------------------------------------- the lease

    @property
    def epoch(self) -> int:
        """Of the reign of this process; 0 while it has none."""
        return self._epoch

    async def renew(self, at: str = "") -> Lease | None:
        """Takes the lease, or keeps it; None when the store is away: then a reign goes on as it is. ``at``:
        how this process is reached.
        """
        try:
            lease = await self._store.take_lease(
                self._holder, self._tuning.lease_s, above=self._highest_epoch, at=at
            )
        except self._fault as fault:
            self._fail(fault)
            return None
        if not lease.is_ours:
            return lease
        if lease.epoch != self._epoch or self._state is not MirrorState.FOLLOWING:
            # A new reign, or a store that was away: it may know nothing, or something old.
            self._changed = dict.fromkeys(self._everything()) | self._changed
            logger.info("live state is written to the store, epoch %d", lease.epoch)
        self._state, self._epoch = MirrorState.FOLLOWING, lease.epoch
        self._highest_epoch = max(self._highest_epoch, lease.epoch)
        return lease

    def stand_down(self) -> None:
        """Another gateway leads: what is to be written, it writes."""
        self._state, self._epoch = MirrorState.ELSEWHERE, 0
        self._changed.clear()
        self._gone.clear()

    async def close(self) -> None:
        """Writes what is changed, gives the lease back."""
        await self.write()
        if self._epoch:
            with suppress(self._fault):
                await self._store.release_lease(self._holder)

    async def write(self) -> None:
        """What has changed, while this process leads."""
        if self._epoch:
            await self._write()

    async def _write(self) -> None:
        while self._gone or self._changed:
            gone = list(self._gone)[: self._tuning.batch]
            keys = list(self._changed)[: self._tuning.batch]
            for key in keys:
                del self._changed[key]
            described = ((key, self._describe(key, next(self._numbers))) for key in keys)
            states = [state for _, state in described if state is not None]
            try:
                if gone:
                    await self._store.remove(self._epoch, gone)
                    for key in gone:
                        self._gone.pop(key, None)
                if states:
                    refused = await self._store.save(self._epoch, states)
                    self._refused += refused
                    self._written += len(states) - refused
            except self._fault as fault:
                self._changed = dict.fromkeys(keys) | self._changed
                self._fail(fault)
                return

    def _fail(self, fault: Exception) -> None:
        self._failed += 1
        self._last_error = str(fault)
        if self._state is not MirrorState.LOCAL:
            logger.warning("live state stays in this process: %s", fault)
        self._state = MirrorState.LOCAL
