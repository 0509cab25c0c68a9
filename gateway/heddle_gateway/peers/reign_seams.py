"""What a reign is in, and the parts that it acts on."""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from heddle_gateway.peers.frames import Frame
from heddle_gateway.peers.link import Link, LinkTuning
from heddle_gateway.telemetry.live_mirror import Lease


class Role(StrEnum):
    """As /ready says it."""

    SEEKING = "seeking"
    LEADER = "leader"
    FOLLOWER = "follower"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class ReignTuning:
    """``period_s``: between two writes of live state. ``lease_s``: as the mirror's. ``seek_s``: longest wait
    of a step for somebody to decide. ``settle_s``: the others may say what runs before anything new is sent.
    ``direct_s``: how often a follower by way of Redis tries to reach its leader without.
    """

    period_s: float = 0.1
    lease_s: float = 1.6
    seek_s: float = 3.0
    settle_s: float = 0.3
    connect_s: float = 0.7
    direct_s: float = 5.0
    link: LinkTuning = field(default_factory=LinkTuning)


class Mirror(Protocol):
    """telemetry.live_mirror.LiveMirror."""

    @property
    def epoch(self) -> int: ...
    async def renew(self, at: str = "") -> Lease | None: ...
    async def write(self) -> None: ...
    async def close(self) -> None: ...
    def stand_down(self) -> None: ...


class Hosting(Protocol):
    """peers.hosting.Hosting."""

    def protocol(self) -> Link: ...
    def lead(self, leader: str, secret: str) -> None: ...
    def open(self) -> None: ...
    def stand_down(self) -> None: ...


class Detours(Protocol):
    """peers.detour.Detours."""

    def start(self) -> None: ...
    def connect(self, to: str, protocol: asyncio.Protocol) -> None: ...
    async def close(self) -> None: ...


class Steps(Protocol):
    """The steps of this process (peers.handover.Handover)."""

    @property
    def untold(self) -> int:
        """Steps that ended here, of which a leader is still to be told."""

    def decide_here(self) -> None:
        """They are decided about here from now on."""

    def sure(self, until: float, *, alone: bool = False) -> None:
        """Until then (monotonic seconds) no other process can have been given the lease; ``alone``: one may
        have been, and cannot be asked about. What ends here it is told when it can.
        """

    def ask_leader(self) -> None:
        """Another decides from now on; what is known here of trajectories is forgotten."""

    def joined(self, link: Link) -> None: ...
    def left(self) -> None: ...
    def hear(self, frame: Frame) -> None: ...
    def welcome(self, head: dict[str, Any]) -> None: ...
