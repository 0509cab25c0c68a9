"""What else outlives the process in Redis: workers that were added while it ran, and the plan in force.

Part of the composition, beside shared_state.py. The fleet and the plan book are compared with what was
written last, so that nothing has to be told twice; the store is a moment behind and no step waits for it. An
operator's command does (`saved`). Only the holder of the lease writes. With a new epoch (a start, a takeover,
a Redis that came back empty) what is in the store is taken up first and then written again. A gateway that
decides alone beside the holder, such as one of another release, reads there which workers there are.

Invariants: a worker of the settings is never in the registry; a worker whose lease ran out is not taken up;
one that was taken up and does not serve before its lease runs out is removed.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from heddle_contracts.history import PlanRecord
from heddle_contracts.live_state import PlanPointer, RegisteredWorker

from heddle_gateway.fleet.address import parse_worker_url
from heddle_gateway.fleet.errors import FleetError
from heddle_gateway.fleet.events import WorkerSpec
from heddle_gateway.fleet.features import EngineKind, PrioritySense
from heddle_gateway.fleet.registry import Fleet
from heddle_gateway.fleet.state import SERVING
from heddle_gateway.plans.keeper import PlanKeeper
from heddle_gateway.settings import Settings
from heddle_gateway.store.redis_plan import RedisPlan
from heddle_gateway.store.redis_state import LiveStoreError
from heddle_gateway.store.redis_workers import RedisWorkers
from heddle_gateway.supervision import Background
from heddle_gateway.telemetry.live_mirror import LiveMirror
from heddle_gateway.write_rounds import WriteRounds

log = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
"""Between two looks where nothing woke the task; also how soon a store that was away is tried again."""
RENEWALS: Final = 10
"""In a lease, and in the pointer's time to live."""
TAKE_UP_TIMEOUT_S: Final = 10.0


@dataclass(slots=True)
class _Written:
    """A worker as the store has it. ``renew_at``: of the loop's clock."""

    spec: WorkerSpec
    renew_at: float


class SharedFleet:
    """``epoch()``: of the lease this process holds, 0 for none; ``is_alone()``: it decides without one.
    Raises ValueError for a URL that is none.
    """

    def __init__(
        self,
        settings: Settings,
        url: str,
        fleet: Fleet,
        keeper: PlanKeeper,
        epoch: Callable[[], int],
        is_alone: Callable[[], bool],
    ) -> None:
        self._lease_s = settings.worker_lease_s
        self._ttl_s = settings.state_ttl_s
        self._workers = RedisWorkers(url, name=settings.namespace, lease_s=self._lease_s)
        self._plan = RedisPlan(url, name=settings.namespace, ttl_s=self._ttl_s)
        self._fleet = fleet
        self._keeper = keeper
        self._epoch = epoch
        self._is_alone = is_alone
        self._fixed = {parse_worker_url(worker.url).url for worker in settings.workers}
        self._written: dict[str, _Written] = {}
        self._written_epoch = 0
        # Removed here; the store may still have them.
        self._gone: set[str] = set()
        # Read in the registry while another held the lease.
        self._heard: set[str] = set()
        # Taken up and not seen to serve: the loop's time at which their lease runs out.
        self._on_trial: dict[int, float] = {}
        self._pointer: tuple[Any, ...] = ()
        self._pointer_renew_at = 0.0
        self._number = 0
        self._wake = asyncio.Event()
        self._rounds = WriteRounds()
        self._away = False
        self._closing = False
        self._task = Background("shared-fleet", self._run)
        keeper.book.on_change = self._wake.set

    # ---------------------------------------------------------------- lifetime

    async def start(self) -> None:
        """Takes up what an earlier process left, if this one leads, and follows. A Redis that is away delays
        nothing.
        """
        try:
            async with asyncio.timeout(TAKE_UP_TIMEOUT_S):
                if epoch := self._epoch():
                    await self._take_up(epoch)
                elif self._is_alone():
                    await self._hear()
        except (LiveStoreError, TimeoutError) as error:
            log.warning("workers of an earlier process are not taken up: %s", error or "Redis is slow")
        self._task.start()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Writes what has changed. Workers stay registered: this process may come back."""
        self._closing = True
        self._wake.set()
        await self._task.ended(timeout_s)
        await self._workers.close()
        await self._plan.close()

    async def saved(self) -> bool:
        """Returns when workers and plan lie in Redis as they are, or cannot be written there for now
        (False).
        """
        if self._epoch() and not self._away:
            return await self._rounds.written(self._wake.set)
        self._wake.set()
        return False

    async def _run(self) -> None:
        while True:
            last, mark = self._closing, self._rounds.begin()
            self._wake.clear()
            changed = asyncio.create_task(self._fleet.changed())
            woken = asyncio.create_task(self._wake.wait())
            try:
                self._rounds.end(mark, written=await self._sync())
                if last:
                    return
                await asyncio.wait({changed, woken}, timeout=PERIOD_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
                woken.cancel()

    # ---------------------------------------------------------------- taking up

    async def _take_up(self, epoch: int) -> None:
        workers, unreadable = await self._workers.load()
        pointer = await self._plan.load()
        if unreadable:
            log.warning("%d workers in Redis are of another build and left alone", unreadable)
        now = asyncio.get_running_loop().time()
        known = {spec.url for _, spec, _ in self._fleet.registered()} | self._fixed | self._gone
        self._written.clear()
        self._pointer = ()
        for worker, left_s in workers:
            if worker.url in self._fleet.taken_out:
                # By a leader that could not write it, or did not live to.
                self._gone.add(worker.url)
            elif worker.url not in known:
                await self._add(worker, now + left_s)
        if pointer is not None:
            record = PlanRecord(pointer.plan, pointer.lengths) if pointer.plan is not None else None
            self._keeper.resume(pointer.last_version, record)
        self._written_epoch = epoch

    async def _add(self, worker: RegisteredWorker, until: float) -> None:
        try:
            spec = _spec(worker)
            view = await self._fleet.add(spec)
        except (FleetError, ValueError) as error:
            log.warning("worker %s is not taken up: %s", worker.url, error)
            return
        self._written[worker.url] = _Written(spec, renew_at=0.0)
        self._on_trial[view.worker_id] = until

    async def _hear(self) -> None:
        """What the holder of the lease keeps there now. Workers that it never had stay."""
        workers, _ = await self._workers.load()
        there = {worker.url for worker, _ in workers}
        ids = {spec.url: worker_id for worker_id, spec, _ in self._fleet.registered()}
        for url in (self._heard - there) & ids.keys():
            self._fleet.drain(ids[url], stays_out=False)
        self._heard &= there
        for worker, _ in workers:
            if worker.url in ids.keys() | self._fixed or worker.url in self._fleet.taken_out:
                continue
            try:
                await self._fleet.add(_spec(worker))
            except (FleetError, ValueError) as error:
                log.warning("worker %s is not taken up: %s", worker.url, error)
            else:
                self._heard.add(worker.url)

    # ---------------------------------------------------------------- following

    async def _sync(self) -> bool:
        """Whether all is written."""
        epoch = self._epoch()
        self._look_for_gone()
        is_alone = not epoch and self._is_alone()
        if not is_alone:
            self._heard.clear()
        if not epoch and not is_alone:
            return False
        try:
            if is_alone:
                await self._hear()
            else:
                if epoch != self._written_epoch:
                    await self._take_up(epoch)
                await self._write_workers(epoch)
                await self._write_pointer(epoch)
        except LiveStoreError as error:
            if not self._away:
                log.warning("workers and plans stay in this process: %s", error)
            self._away = True
        else:
            self._away = False
        return not is_alone and not self._away

    def _look_for_gone(self) -> None:
        now = asyncio.get_running_loop().time()
        there = {worker_id: (spec, state) for worker_id, spec, state in self._fleet.registered()}
        for worker_id, until in list(self._on_trial.items()):
            if worker_id not in there or there[worker_id][1] in SERVING:
                del self._on_trial[worker_id]
            elif now >= until:
                del self._on_trial[worker_id]
                spec, _ = there.pop(worker_id)
                log.warning("worker %s did not serve before its lease ran out: removed", spec.url)
                self._fleet.drain(worker_id, stays_out=False)
        urls = {spec.url for spec, _ in there.values()}
        self._gone = (self._gone | self._written.keys()) - urls
        for url in self._gone:
            self._written.pop(url, None)

    async def _write_workers(self, epoch: int) -> None:
        now = asyncio.get_running_loop().time()
        changed = []
        for worker_id, spec, state in self._fleet.registered():
            held = self._written.get(spec.url)
            due = held is None or held.spec != spec or (state in SERVING and now >= held.renew_at)
            if due and spec.url not in self._fixed:
                changed.append((worker_id, spec))
        if self._gone:
            gone = set(self._gone)
            await self._workers.remove(epoch, gone)
            self._gone -= gone
        if changed:
            await self._workers.put(epoch, [_registered(number, spec) for number, spec in changed])
            for _, spec in changed:
                self._written[spec.url] = _Written(spec, now + self._lease_s / RENEWALS)

    async def _write_pointer(self, epoch: int) -> None:
        book, now = self._keeper.book, asyncio.get_running_loop().time()
        plan = book.in_force
        here = (book.last_version, *((plan.version, plan.expires_at) if plan is not None else ()))
        if here == self._pointer and now < self._pointer_renew_at:
            return
        lengths = tuple(book.lengths(plan.version or 0)) if plan is not None else ()
        self._number += 1
        pointer = PlanPointer(last_version=book.last_version, plan=plan, lengths=lengths)
        await self._plan.save(epoch, self._number, pointer)
        self._pointer, self._pointer_renew_at = here, now + self._ttl_s / RENEWALS


def open_shared_fleet(
    settings: Settings, fleet: Fleet, keeper: PlanKeeper, mirror: LiveMirror, is_alone: Callable[[], bool]
) -> SharedFleet:
    """For a gateway with a Redis, whose lease ``mirror`` holds."""
    assert settings.redis_url is not None
    url = settings.redis_url.get_secret_value()
    return SharedFleet(settings, url, fleet, keeper, lambda: mirror.stats().epoch, is_alone)


_SAID: Final = tuple(one.name for one in fields(WorkerSpec))


def _registered(number: int, spec: WorkerSpec) -> RegisteredWorker:
    return RegisteredWorker(number=number, **{name: getattr(spec, name) for name in _SAID})


def _spec(worker: RegisteredWorker) -> WorkerSpec:
    """Raises ValueError for what another build allowed."""
    said = {name: getattr(worker, name) for name in _SAID}
    said["kind"] = EngineKind(worker.kind) if worker.kind is not None else None
    said["priority"] = PrioritySense(worker.priority) if worker.priority is not None else None
    return WorkerSpec(**said)
