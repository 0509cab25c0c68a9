"""All steps of this process from one desk to the other, and the leader's fleet into this one's registry."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from heddle_gateway.fleet.errors import FleetError
from heddle_gateway.fleet.events import WorkerSpec
from heddle_gateway.identity import TrajectoryBook
from heddle_gateway.live.driver import Driver
from heddle_gateway.peers.desk import Desks
from heddle_gateway.peers.frames import Frame
from heddle_gateway.peers.leader_desk import LeaderDesk
from heddle_gateway.peers.link import Link
from heddle_gateway.peers.own_desk import OwnDesk
from heddle_gateway.running_step import RunningSteps

log = logging.getLogger(__name__)


class Handover:
    """Fulfils peers.reign.Steps. It begins with nobody who decides: what comes waits. ``forget``: what else
    is the leader's alone.
    """

    def __init__(
        self,
        desks: Desks,
        own: OwnDesk,
        leader: LeaderDesk,
        *,
        running: RunningSteps,
        driver: Driver,
        book: TrajectoryBook,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self._forget = forget
        self._desks = desks
        self._own = own
        self._leader = leader
        self._running = running
        self._driver = driver
        self._book = book

    def decide_here(self) -> None:
        if self._desks.here is None:
            self._leader.hand_over(self._own)
            self._desks.here, self._desks.elsewhere = self._own, None

    def ask_leader(self) -> None:
        if self._desks.elsewhere is None:
            self._leader.take_over(self._running, self._own.late)
            self._own.late.clear()
            self._driver.begin_anew()
            self._book.begin_anew()
            self._forget()
            self._desks.here, self._desks.elsewhere = None, self._leader
            self._own.asked()

    def sure(self, until: float, *, alone: bool = False) -> None:
        self._own.sure(until, alone=alone)

    @property
    def untold(self) -> int:
        return len(self._own.late)

    def joined(self, link: Link) -> None:
        self._leader.join(link)

    def left(self) -> None:
        self._leader.lost()

    def hear(self, frame: Frame) -> None:
        self._leader.take(frame)

    def welcome(self, head: dict[str, Any]) -> None:
        self._leader.welcome(head)


class Registry(Protocol):
    """fleet.registry.Fleet."""

    async def add(self, spec: WorkerSpec) -> Any: ...
    def find(self, url: str) -> Any: ...
    def drain(self, worker_id: int) -> Any: ...


class FollowedFleet:
    """Keeps this process' registry as the leader's, so that it can lead at once. Workers that the leader
    never had stay.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._told: frozenset[str] = frozenset()
        self._adding: set[asyncio.Task[None]] = set()

    def take(self, specs: Sequence[WorkerSpec]) -> None:
        """What the leader has registered now."""
        told = frozenset(spec.url for spec in specs)
        for url in self._told - told:
            self._forget(url)
        self._told = told
        task = asyncio.create_task(self._add(specs))
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)

    async def close(self) -> None:
        for task in list(self._adding):
            task.cancel()
        await asyncio.gather(*self._adding, return_exceptions=True)

    async def _add(self, specs: Sequence[WorkerSpec]) -> None:
        for spec in specs:
            if spec.url not in self._told:
                continue
            try:
                await self._registry.add(spec)
            except FleetError as error:
                log.warning("the leader's worker %s is not taken: %s", spec.url, error)
            if spec.url not in self._told:
                # Removed there while it was probed here.
                self._forget(spec.url)

    def _forget(self, url: str) -> None:
        try:
            self._registry.drain(self._registry.find(url).worker_id)
        except FleetError:
            log.debug("worker %s was not known", url)


def by_url(worker: Callable[[str], tuple[int, int] | None], note: Callable[..., None]) -> Callable[..., None]:
    """``note(worker_id, generation, kind)`` for who knows a worker by its URL."""

    def noted(url: str, kind: Any) -> None:
        found = worker(url)
        if found is not None:
            note(*found, kind)

    return noted
