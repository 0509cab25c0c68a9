"""Mail between gateways in one process, in simulated time: it takes a while, and some of it gets lost."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence

TAKE_S = 1.0


class MailAway(Exception):
    """Of a store that does not answer."""


class PostOffice:
    """What Redis is to `Detours`. ``loss``: of how many messages one does not come; ``away``: processes that
    it does not answer.
    """

    def __init__(self, chance: random.Random, *, loss: float = 0.0, most_delay_s: float = 0.002) -> None:
        self._chance = chance
        self.loss = loss
        self._most_delay_s = most_delay_s
        self._boxes: dict[str, asyncio.Queue[bytes]] = defaultdict(asyncio.Queue)
        self.away: set[str] = set()
        self.posted = self.lost = 0

    def mail(self, process: str) -> "LossyMail":
        return LossyMail(self, process)

    async def post(self, by: str, to: str, message: bytes) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, self._most_delay_s))
        if by in self.away:
            raise MailAway
        self.posted += 1
        if self._chance.random() < self.loss:
            self.lost += 1
        else:
            self._boxes[to].put_nowait(message)

    async def take(self, process: str) -> Sequence[bytes]:
        if process in self.away:
            await asyncio.sleep(TAKE_S)
            raise MailAway
        try:
            async with asyncio.timeout(TAKE_S):
                return (await self._boxes[process].get(),)
        except TimeoutError:
            return ()


class LossyMail:
    """One process' side of a `PostOffice`."""

    def __init__(self, office: PostOffice, process: str) -> None:
        self._office = office
        self._process = process

    async def post(self, to: str, message: bytes) -> None:
        await self._office.post(self._process, to, message)

    async def take(self) -> Sequence[bytes]:
        return await self._office.take(self._process)

    async def close(self) -> None:
        return None
