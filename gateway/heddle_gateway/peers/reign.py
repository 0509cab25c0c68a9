"""Which gateway of a namespace decides: this one, or another that is asked.

    seeking     nobody is known to decide: steps that run go on, new ones wait
    leader      this one: it has the lease, and hosts the others' steps
    follower    another one: it is asked over a link
    alone       this one for itself: neither a leader nor the lease can be had

Invariants: one task changes the role; a change moves all steps at once; a follower does not take the lease
while its leader answers, whatever Redis says; a leader that Redis cannot be asked about goes on leading; one
that reads another holder in Redis does not. Seeking ends within `ReignTuning.seek_s`.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from heddle_gateway.peers.address import Address
from heddle_gateway.peers.frames import Frame
from heddle_gateway.peers.link import Link
from heddle_gateway.peers.reign_seams import Detours, Hosting, Mirror, ReignTuning, Role, Steps
from heddle_gateway.supervision import Background
from heddle_gateway.telemetry.live_mirror import Lease

log = logging.getLogger(__name__)

CLOSE_S: Final = 5.0


class Reign:
    """``name``: of this process, never used twice. ``look``: who has the lease, None where Redis is away.
    ``take_up``: reads what an earlier leader wrote. ``detours``: links by way of Redis. ``http``: where this
    gateway's admin API is.
    """

    def __init__(
        self,
        name: str,
        *,
        mirror: Mirror,
        look: Callable[[], Awaitable[Lease | None]],
        take_up: Callable[[], Awaitable[None]],
        hosting: Hosting,
        steps: Steps,
        detours: Detours,
        release: str,
        bind_host: str,
        bind_port: int,
        reached_as: str,
        http: str,
        tuning: ReignTuning | None = None,
    ) -> None:
        self._name = name
        self._mirror = mirror
        self._look = look
        self._take_up = take_up
        self._hosting = hosting
        self._steps = steps
        self._detours = detours
        self._release = release
        self._bind = (bind_host, bind_port)
        self._reached_as = reached_as
        self._http = http
        self._tuning = tuning or ReignTuning()
        self._server: asyncio.Server | None = None
        self._address = ""
        self._secret = secrets.token_urlsafe(24)
        self._link: Link | None = None
        self._leader: tuple[str, Address] | None = None
        self._decided = asyncio.Event()
        self._wake = asyncio.Event()
        self._closing = False
        self._task = Background("reign", self._run)
        self._takeovers = self._times_alone = 0
        self._alone_since = 0.0
        self._sought_since = 0.0
        self._asked_last = True
        self._direct_at = 0.0
        # Of another's lease: holder, when it was looked at, what was left of it then.
        self._seen: tuple[str, float, float] | None = None
        self.role = Role.SEEKING
        self.epoch = 0
        self.alone_because: str | None = None
        """Why this process decides for itself, while it does."""

    # ---------------------------------------------------------------- looking in

    @property
    def leader(self) -> str | None:
        """Name of who decides; None while that is not known."""
        if self.role in {Role.LEADER, Role.ALONE}:
            return self._name
        return self._leader[0] if self.role is Role.FOLLOWER and self._leader is not None else None

    @property
    def leader_http(self) -> str | None:
        """Base URL of the leader's admin API; None where that is this process, or nobody."""
        return self._leader[1].http if self.role is Role.FOLLOWER and self._leader is not None else None

    def stats(self) -> dict[str, float]:
        """For the metrics."""
        roles = {f"is_{role}": float(self.role is role) for role in Role}
        by_detour = self._link is not None and self._link.is_detour
        roles |= {"by_way_of_redis": float(by_detour)}
        return roles | {
            "reign_epoch": float(self.epoch),
            "takeovers_total": float(self._takeovers),
            "times_alone_total": float(self._times_alone),
            "untold_ends": float(self._steps.untold),
        }

    # ---------------------------------------------------------------- lifetime

    async def start(self) -> None:
        """Returns when somebody decides."""
        loop = asyncio.get_running_loop()
        host, port = self._bind
        self._server = await loop.create_server(self._accept, host, port)
        bound = self._server.sockets[0].getsockname()[1]
        self._address = Address(self._reached_as, bound, self._http, self._secret).written()
        self._detours.start()
        self._task.start()
        await self._decided.wait()

    async def close(self) -> None:
        """Gives the lease back, so that another may take it at once."""
        self._closing = True
        self._wake.set()
        await self._task.ended(CLOSE_S)
        if self.role in {Role.LEADER, Role.ALONE}:
            await self._mirror.close()
        if self._link is not None:
            self._link.close()
        if self._server is not None:
            # Before the links: who loses its leader asks it once more.
            self._server.close()
        self._hosting.stand_down()
        await self._detours.close()

    # ---------------------------------------------------------------- the task

    def _accept(self) -> Link:
        link = self._hosting.protocol()
        if self._closing:
            link.close()
        return link

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._sought_since = loop.time()
        ask_at = 0.0
        while not self._closing:
            self._wake.clear()
            if self.role is Role.FOLLOWER:
                if loop.time() >= ask_at:
                    ask_at = loop.time() + self._tuning.lease_s / 2
                    await self._check_leader()
            elif self.role is Role.SEEKING:
                late = loop.time() - self._sought_since > self._tuning.seek_s
                await self._find_leader(late=late)
                ask_at = 0.0
            else:
                if loop.time() >= ask_at:
                    ask_at = loop.time() + self._tuning.lease_s / 4
                    await self._keep()
                await self._mirror.write()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tuning.period_s):
                    await self._wake.wait()

    async def _check_leader(self) -> None:
        """A leader that another has followed on is not asked any more."""
        lease = await self._look()
        link, leader = self._link, self._leader
        if link is None or leader is None:
            return
        if lease is not None and lease.holder and lease.holder != leader[0]:
            log.warning("gateway %s leads now", lease.holder)
            link.close()
        elif link.is_detour and (now := asyncio.get_running_loop().time()) >= self._direct_at:
            self._direct_at = now + self._tuning.direct_s
            await self._follow(*leader)

    def _seek(self) -> None:
        """The leader is gone."""
        log.warning("the leader is away: looking for another")
        self.role = Role.SEEKING
        self._sought_since = asyncio.get_running_loop().time()
        self._asked_last = False
        self._decided.clear()
        self._wake.set()

    async def _find_leader(self, *, late: bool) -> None:
        if not self._asked_last and self._leader is not None:
            # It may live without its lease, where Redis does not answer it.
            self._asked_last = True
            if await self._follow(*self._leader):
                return
        lease = await self._mirror.renew(self._address)
        if lease is not None and lease.is_ours:
            await self._begin(lease)
        elif lease is not None:
            address = Address.read(lease.at)
            if (address is None or not await self._reach(lease, address)) and late:
                await self._be_alone(f"gateway {lease.holder} leads and cannot be reached")
        elif self._leader is None or (not await self._follow(*self._leader) and late):
            await self._be_alone("Redis is away, and no leader answers")

    async def _keep(self) -> None:
        """Leader or alone: the lease is kept, or taken, or somebody else has it."""
        began = asyncio.get_running_loop().time()
        lease = await self._mirror.renew(self._address)
        if lease is None:
            # Redis is away: who leads goes on.
            self._steps.sure(math.inf, alone=True)
            return
        if lease.is_ours:
            if self.role is Role.ALONE or lease.epoch != self.epoch:
                await self._begin(lease)
            self._steps.sure(began + self._tuning.lease_s)
            return
        address = Address.read(lease.at)
        if address is not None and await self._reach(lease, address, lives=self.role is Role.LEADER):
            return
        if self.role is Role.LEADER:
            self._now_alone(f"gateway {lease.holder} leads and cannot be reached")
            self._hosting.stand_down()
            self._mirror.stand_down()
        self._steps.sure(math.inf, alone=True)

    async def _begin(self, lease: Lease) -> None:
        """This process leads."""
        was = self.role
        if was is not Role.LEADER:
            await self._read_what_was_left()
            self._hosting.lead(self._name, self._secret)
            if lease.epoch > 1:
                # What runs elsewhere is told before its place is given away.
                await asyncio.sleep(self._tuning.settle_s)
        self._alone_no_more("leads")
        self.role, self.epoch = Role.LEADER, lease.epoch
        if was is not Role.LEADER:
            self._takeovers += 1
            log.info("this gateway leads, epoch %d", lease.epoch)
            self._steps.sure(asyncio.get_running_loop().time() + self._tuning.lease_s / 2)
            self._steps.decide_here()
            self._hosting.open()
        self._decided.set()

    async def _read_what_was_left(self) -> None:
        """Many trajectories take longer than a lease: it is kept meanwhile."""
        reading = asyncio.ensure_future(self._take_up())
        while not (await asyncio.wait({reading}, timeout=self._tuning.lease_s / 4))[0]:
            await self._mirror.renew(self._address)
        await reading

    async def _be_alone(self, why: str) -> None:
        await self._take_up()
        self._now_alone(why)
        self._steps.sure(math.inf, alone=True)
        self._steps.decide_here()
        self._decided.set()

    def _now_alone(self, why: str) -> None:
        log.warning("this gateway decides for itself: %s", why)
        self.role, self.alone_because = Role.ALONE, why
        self._alone_since = asyncio.get_running_loop().time()
        self._times_alone += 1

    def _alone_no_more(self, now: str) -> None:
        if self.alone_because is None:
            return
        self.alone_because = None
        lasted_s = asyncio.get_running_loop().time() - self._alone_since
        log.warning(
            "this gateway decided for itself for %.1f s and now %s; ended steps to tell of: %d",
            lasted_s,
            now,
            self._steps.untold,
        )

    # ---------------------------------------------------------------- following

    async def _reach(self, lease: Lease, address: Address, *, lives: bool = False) -> bool:
        """Whether the lease's holder takes this one's steps. One that cannot be reached and ``lives``, as is
        known or as it renews its lease, is asked by way of Redis: two that decide at once would give the
        same steps twice.
        """
        now = asyncio.get_running_loop().time()
        seen, self._seen = self._seen, (lease.holder, now, lease.left_s)
        if await self._follow(lease.holder, address):
            return True
        if seen is not None and seen[0] == lease.holder:
            _, at, left_s = seen
            lives |= lease.left_s > left_s - (now - at) + self._tuning.lease_s / 8
        return lives and await self._follow(lease.holder, address, detour=True)

    async def _follow(self, holder: str, address: Address, *, detour: bool = False) -> bool:
        """Whether that gateway takes this one's steps."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take(link: Link, frame: Frame) -> None:
            if link is self._link:
                self._steps.hear(frame)
            elif frame.kind == "welcome" and not answered.done():
                # At once: what comes behind it is about the steps.
                self._join(holder, address, link, frame.head)
                answered.set_result(None)
            elif frame.kind == "refused":
                log.warning("gateway %s refuses this one: %s", holder, frame.head["why"])
                link.close()

        def lost(link: Link) -> None:
            if not answered.done():
                answered.set_result(None)
            if link is self._link:
                self._link = None
                self._steps.left()
                if not self._closing:
                    self._seek()

        link = Link(take, lost, self._tuning.link)
        try:
            async with asyncio.timeout(self._tuning.connect_s):
                if detour:
                    self._detours.connect(holder, link)
                else:
                    loop = asyncio.get_running_loop()
                    await loop.create_connection(lambda: link, address.host, address.port)
                hello = {"id": self._name, "leader": holder, "secret": address.secret}
                link.send("hello", **hello, release=self._release)
                await answered
        except (OSError, TimeoutError) as error:
            way = " by way of Redis" if detour else ""
            log.info("gateway %s cannot be reached%s: %s", holder, way, str(error) or "it says nothing")
            link.close()
        return self._link is link

    def _join(self, holder: str, address: Address, link: Link, head: dict[str, Any]) -> None:
        self._alone_no_more("follows")
        if self.role in {Role.LEADER, Role.ALONE}:
            self._hosting.stand_down()
            self._steps.ask_leader()
        elif self._link is not None:
            # From one way to the other: what was on the first one is said again.
            old, self._link = self._link, None
            old.close()
            self._steps.left()
        self._mirror.stand_down()
        self._leader, self._link = (holder, address), link
        self._direct_at = asyncio.get_running_loop().time() + self._tuning.direct_s
        self.role = Role.FOLLOWER
        log.info("gateway %s leads; this one follows%s", holder, " by way of Redis" if link.is_detour else "")
        self._steps.welcome(head)
        self._steps.joined(link)
        self._decided.set()
