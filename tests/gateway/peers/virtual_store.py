"""A Redis as gateways on simulated time see it: a table that may be away for anybody."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from heddle_gateway.peers.address import Address
from heddle_gateway.store.redis_state import ALIVE_S, Lease
from heddle_gateway.telemetry.live_mirror import Key

from .lossy_mail import MailAway, PostOffice


class Store:
    """What lies in Redis: the lease, who lives, live trajectories."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._holder, self._at, self._until, self._epoch, self._epochs = "", "", 0.0, 0, 0
        self._states: dict[Key, bytes] = {}
        self._heard: dict[str, float] = {}
        self.office = PostOffice(chance)
        self.ports: dict[tuple[str, str], int] = {}
        """At which who (first) reaches whom (second)."""

    @property
    def away(self) -> set[str]:
        """Processes that it does not answer."""
        return self.office.away

    async def answer(self, process: str) -> float:
        """The time, when it has answered. Raises MailAway."""
        await asyncio.sleep(self._chance.uniform(0.0, 0.002))
        if process in self.away:
            raise MailAway
        now = asyncio.get_running_loop().time()
        self._heard[process] = now
        return now

    async def take(self, process: str, ttl_s: float, above: int, at: str) -> Lease:
        now = await self.answer(process)
        if now >= self._until:
            self._holder = ""
        if self._holder not in ("", process):
            return self._seen_by(process, now)
        if not self._holder:
            self._epochs = max(self._epochs, above) + 1
            self._holder, self._epoch, self._at = process, self._epochs, at
        self._until = now + ttl_s
        return Lease(self._epoch, process, ttl_s, at)

    async def look(self, process: str) -> Lease | None:
        try:
            now = await self.answer(process)
        except MailAway:
            return None
        return self._seen_by(process, now)

    def _seen_by(self, process: str, now: float) -> Lease:
        if now >= self._until:
            return Lease(0, "", 0.0)
        address = Address.read(self._at)
        assert address is not None
        port = self.ports.get((process, self._holder), address.port)
        at = Address(address.host, port, address.http, address.secret).written()
        return Lease(0, self._holder, self._until - now, at)

    async def lives(self, asker: str, process: str) -> bool | None:
        try:
            now = await self.answer(asker)
        except MailAway:
            return None
        return now - self._heard.get(process, -ALIVE_S) < ALIVE_S

    def side(self, process: str) -> "StoreSide":
        return StoreSide(self, process)

    def release(self, process: str) -> None:
        if self._holder == process:
            self._holder = ""

    async def save(self, process: str, states: Iterable[tuple[Key, bytes]]) -> int:
        await self.answer(process)
        if self._holder == process:
            self._states |= dict(states)
        return 0

    async def load(self, process: str) -> list[bytes]:
        await self.answer(process)
        return list(self._states.values())


@dataclass
class StoreSide:
    """telemetry.live_mirror.LiveStore, for one process."""

    store: Store
    process: str

    async def take_lease(self, holder: str, ttl_s: float, *, above: int, at: str = "") -> Lease:
        return await self.store.take(holder, ttl_s, above, at)

    async def release_lease(self, holder: str) -> None:
        await self.store.answer(holder)
        self.store.release(holder)

    async def save(self, epoch: int, states: Sequence[Any]) -> int:
        return await self.store.save(self.process, states)

    async def remove(self, epoch: int, keys: Iterable[Key]) -> None:
        return None
