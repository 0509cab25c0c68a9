"""At the leader: the links of the gateways that follow it.

Invariants: a connection is nobody's until it has shown the lease's secret; a gateway has one link, the
newest; it is gone when it has been away for `HostingTuning.grace_s` and Redis does not say that it lives.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from heddle_gateway.peers.frames import MAX_HELLO, Frame
from heddle_gateway.peers.hosted import HostingTuning, Peer
from heddle_gateway.peers.link import Link

log = logging.getLogger(__name__)

HELLO_S: Final = 5.0


class Followers:
    """``greeting()``: the head of a welcome; ``hear``: what one says; ``on_away``: its link is lost;
    ``on_gone``: it does not come back. ``lives(name)``: whether Redis has heard of a gateway lately, None
    where Redis cannot be asked.
    """

    def __init__(
        self,
        *,
        greeting: Callable[[], dict[str, Any]],
        hear: Callable[[Peer, Frame], None],
        on_away: Callable[[Peer], None],
        on_gone: Callable[[Peer], None],
        lives: Callable[[str], Awaitable[bool | None]],
        release: str,
        tuning: HostingTuning,
    ) -> None:
        self._greeting = greeting
        self._hear = hear
        self._on_away = on_away
        self._on_gone = on_gone
        self._lives = lives
        self._release = release
        self._tuning = tuning
        self._peers: dict[str, Peer] = {}
        self._links: dict[Link, Peer | None] = {}
        self._secret: str | None = None
        self._leader = ""

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))

    # ---------------------------------------------------------------- lifetime

    def protocol(self) -> Link:
        """Of a connection that came in."""
        link = Link(self._take, self._lost, self._tuning.link, max_frame=MAX_HELLO)
        self._links[link] = None
        asyncio.get_running_loop().call_later(HELLO_S, self._must_be_known, link)
        return link

    def lead(self, leader: str, secret: str) -> None:
        """Who shows the secret of this leader is let in."""
        self._leader, self._secret = leader, secret

    def stand_down(self) -> None:
        """They are to look for who leads."""
        self._secret = None
        for peer in self._peers.values():
            if peer.grace is not None:
                peer.grace.cancel()
        self._peers.clear()
        for link in list(self._links):
            link.close()
        self._links.clear()

    # ---------------------------------------------------------------- links

    def _must_be_known(self, link: Link) -> None:
        if self._links.get(link, link) is None:
            link.close()

    def _take(self, link: Link, frame: Frame) -> None:
        peer = self._links.get(link)
        if peer is not None:
            self._hear(peer, frame)
            return
        kind, head, _ = frame
        secret = self._secret
        if kind != "hello" or secret is None:
            link.close()  # not leading (any more): it will look for who does
            return
        if not hmac.compare_digest(secret, str(head["secret"])) or head["leader"] != self._leader:
            log.warning("a gateway that does not know the lease is refused")
            link.close()
            return
        if head["release"] != self._release:
            log.warning("gateway %s of release %s is refused", head["id"], head["release"])
            link.send("refused", why=f"the leader is of release {self._release}")
            link.close()
            return
        self._welcome(link, str(head["id"]))

    def _welcome(self, link: Link, name: str) -> None:
        peer = self._peers.setdefault(name, Peer(name))
        if peer.link is not None:
            self._links[peer.link] = None
            peer.link.close()
        if peer.grace is not None:
            peer.grace.cancel()
            peer.grace = None
        link.known()
        peer.link = link
        peer.announced = set()
        self._links[link] = peer
        peer.send("welcome", **self._greeting())
        log.info("gateway %s follows%s", name, " by way of Redis" if link.is_detour else "")

    def _lost(self, link: Link) -> None:
        peer = self._links.pop(link, None)
        if peer is None or peer.link is not link:
            return
        peer.link = None
        log.warning("gateway %s is away with %d steps", peer.name, len(peer.steps))
        self._on_away(peer)
        peer.grace = asyncio.create_task(self._bury(peer), name=f"grace of {peer.name}")

    async def _bury(self, peer: Peer) -> None:
        """Ends what is held of it, unless it comes back. Its clients may still get their answers by it: only
        one that is dead, or that nobody can say anything of for long, is taken for gone.
        """
        grace_s, unknown_s = self._tuning.grace_s, 0.0
        while True:
            await asyncio.sleep(grace_s)
            lives = await self._lives(peer.name)
            unknown_s += grace_s if lives is None else -unknown_s
            if not lives and (lives is not None or unknown_s >= self._tuning.unknown_s):
                break
            log.info("gateway %s cannot be reached and is not known to be dead: its steps go on", peer.name)
        peer.grace = None
        if self._peers.get(peer.name) is peer:
            del self._peers[peer.name]
        self._on_gone(peer)
