"""A follower's registry is the leader's, whatever comes in between."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from heddle_gateway.fleet.errors import FleetError
from heddle_gateway.fleet.events import WorkerSpec
from heddle_gateway.peers.handover import FollowedFleet

A = WorkerSpec(url="http://a")
B = WorkerSpec(url="http://b")


@dataclass
class Found:
    worker_id: str


class SlowRegistry:
    """Probes take until ``answered``; ids are URLs."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.asked: list[str] = []
        self.added: list[str] = []
        self.there: set[str] = set()

    async def add(self, spec: WorkerSpec) -> None:
        self.asked.append(spec.url)
        await self.answered.wait()
        self.added.append(spec.url)
        self.there.add(spec.url)

    def find(self, url: str) -> Found:
        if url not in self.there:
            raise FleetError("not there")
        return Found(url)

    def drain(self, worker_id: str) -> None:
        self.there.discard(worker_id)


async def test_a_worker_removed_while_it_is_probed_does_not_come_back(
    until: Callable[..., Awaitable[None]],
) -> None:
    registry = SlowRegistry()
    fleet = FollowedFleet(registry)
    fleet.take([A, B])
    await until(lambda: registry.asked == ["http://a"], "the first probe")
    fleet.take([])
    registry.answered.set()
    await until(lambda: registry.added == ["http://a"] and not registry.there, "added late, removed at once")
    assert registry.asked == ["http://a"], "B was gone before its turn"
    fleet.take([B])
    await until(lambda: registry.there == {"http://b"}, "the one that is there now")
    await fleet.close()
