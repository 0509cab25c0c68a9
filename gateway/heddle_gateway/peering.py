"""Several gateways as one, wired: where steps are decided about, and which gateway leads.

Part of the composition. Without a Redis this process decides for itself, and nothing of the rest is there.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from heddle_gateway import __version__
from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.fleet.events import WorkerEndpoint
from heddle_gateway.fleet.registry import Fleet
from heddle_gateway.identity import TrajectoryBook
from heddle_gateway.live.driver import Driver
from heddle_gateway.outliving import KeptCommands, Outliving
from heddle_gateway.peers.admin_proxy import AdminProxy
from heddle_gateway.peers.desk import Desks
from heddle_gateway.peers.detour import Detours
from heddle_gateway.peers.handover import FollowedFleet, Handover, by_url
from heddle_gateway.peers.hosting import Hosting
from heddle_gateway.peers.leader_desk import LeaderDesk
from heddle_gateway.peers.own_desk import OwnDesk
from heddle_gateway.peers.reign import Reign
from heddle_gateway.running_step import RunningSteps
from heddle_gateway.settings import Settings
from heddle_gateway.shared_state import SharedState
from heddle_gateway.store.redis_mail import RedisMail
from heddle_gateway.store.redis_state import LiveStoreError
from heddle_gateway.stored_answers import StoredAnswers
from heddle_gateway.upstream.forward import Upstream

ALL_ADDRESSES: Final = frozenset({"0.0.0.0", "::"})


def process_name(settings: Settings) -> str:
    """Of this process in the lease; never used twice."""
    return f"{socket.gethostname()}:{settings.port}:{uuid4().hex[:8]}"


def _mail(settings: Settings, process: str) -> RedisMail:
    assert settings.redis_url is not None
    return RedisMail(settings.redis_url.get_secret_value(), name=settings.namespace, process=process)


class Peering:
    """``sinks``: of steps that were decided about here, whoever served them. ``shared``: None decides alone.
    ``past``: takes up what the history knows; ``outliving``: what the leader keeps in Redis.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        shared: SharedState | None,
        outliving: Outliving | None,
        book: TrajectoryBook,
        driver: Driver,
        fleet: Fleet,
        upstream: Upstream,
        running: RunningSteps,
        stored: StoredAnswers,
        sinks: Sequence[Callable[[EndedStep], None]],
        past: Callable[[], Awaitable[None]],
    ) -> None:
        self._shared = shared
        self._outliving = outliving
        self._past = past
        self._is_first = True
        self._upstream = upstream
        self._driver = driver
        self._running = running
        self._stored = stored
        self._aborts: set[asyncio.Task[Any]] = set()
        self._proxy: AdminProxy | None = None
        sinks = (*sinks, self._step_ended)
        own = OwnDesk(book=book, driver=driver, fleet=fleet, stored=stored, sinks=sinks)
        self.desks = Desks(own, None)
        self.reign: Reign | None = None
        self.hosting: Hosting | None = None
        self._leader_desk: LeaderDesk | None = None
        if shared is None or outliving is None:
            return
        self._followed = FollowedFleet(fleet)
        self.hosting = Hosting(
            desk=own,
            book=book,
            driver=driver,
            fleet=fleet,
            abort=self._abort_aside,
            describe=shared.described,
            lives=shared.lives,
            release=__version__,
        )
        own.on_repeat = self.hosting.repeated
        driver.on_orders = self._orders_changed
        leader = self._leader_desk = LeaderDesk(
            book,
            driver.new_ticket,
            on_fleet=self._followed.take,
            on_orders=self._take_orders,
            on_stop=self._stop,
            note_failure=by_url(fleet.living, fleet.note_failure),
        )
        self.desks.here, self.desks.elsewhere = None, leader
        name = settings.peer_host or settings.host
        reached_as = socket.gethostname() if name in ALL_ADDRESSES else name
        at = f"[{reached_as}]" if ":" in reached_as else reached_as
        self.reign = Reign(
            shared.name,
            mirror=shared.mirror,
            look=shared.look,
            take_up=self._take_up,
            hosting=self.hosting,
            steps=Handover(
                self.desks,
                own,
                leader,
                running=running,
                driver=driver,
                book=book,
                forget=outliving.rollouts.begin_anew,
            ),
            detours=Detours(_mail(settings, shared.name), shared.name, self.hosting.protocol, LiveStoreError),
            release=__version__,
            bind_host=settings.host,
            bind_port=settings.peer_port,
            reached_as=reached_as,
            http=f"http://{at}:{settings.port}",
        )

    # ---------------------------------------------------------------- looking in

    @property
    def role(self) -> str:
        """As /ready says it."""
        return "alone" if self.reign is None else self.reign.role.value

    @property
    def leader(self) -> str | None:
        return None if self.reign is None else self.reign.leader

    @property
    def alone_because(self) -> str | None:
        """Why this gateway decides for itself although it has a Redis; None while it does not."""
        return None if self.reign is None else self.reign.alone_because

    @property
    def epoch(self) -> int:
        return 0 if self.reign is None else self.reign.epoch

    def stats(self) -> Mapping[str, float]:
        """For the metrics."""
        if self.reign is None or self.hosting is None:
            return {}
        return {**self.reign.stats(), **self.hosting.stats()}

    # ---------------------------------------------------------------- what happens

    def proxied(self, app: Any) -> Any:
        """The application, with what the leader alone knows asked of the leader, who keeps what it is told
        before it answers.
        """
        reign = self.reign
        if reign is None or self._outliving is None:
            return app
        here = KeptCommands(app, self._outliving.saved)
        self._proxy = AdminProxy(here, lambda: reign.leader_http, self._stored.is_known_here)
        return self._proxy

    def fleet_changes(self) -> None:
        """Call it before the core hears of the change."""
        if self.hosting is not None:
            self.hosting.fleet_changed()

    def abort_elsewhere(self, rid: str | None) -> None:
        if self.hosting is not None:
            self.hosting.stop(rid)

    # ---------------------------------------------------------------- lifetime

    async def start(self) -> None:
        """Returns when it is known who decides."""
        if self.reign is None:
            await self._past()
            return
        await self.reign.start()
        self._is_first = False

    async def close(self) -> None:
        if self.reign is not None:
            await self.reign.close()
            await self._followed.close()
        if self._aborts:
            await asyncio.wait(self._aborts)
        if self._proxy is not None:
            await self._proxy.close()

    # ---------------------------------------------------------------- inside

    async def _take_up(self) -> None:
        """What an earlier leader knew. Redis first: it knows more of each trajectory than the history, which
        tells of older ones, and of all when Redis is away.
        """
        known = False
        if self._shared is not None and self._leader_desk is not None:
            # The newest word first: what is known is not overwritten.
            self._shared.restore(self._leader_desk.pasts())
            known = await self._shared.take_up()
        if known and self._outliving is not None:
            await self._outliving.rollouts.take_up()
            if self._is_first:
                await self._outliving.pause.take_up()
        if self._is_first or not known:
            await self._past()

    def _orders_changed(self) -> None:
        """An operator has set the policy, or paused or gone on: whoever leads next has to know."""
        if self.hosting is not None:
            self.hosting.orders_changed()
        if self._outliving is not None:
            self._outliving.pause.changed()

    def _step_ended(self, record: EndedStep) -> None:
        if self.hosting is not None:
            self.hosting.tell_past(record.tenant, record.trajectory_id)

    def _take_orders(self, policy: dict[str, Any], paused: bool) -> None:
        """The leader's, so that this process leads under them when its turn comes."""
        self._driver.change_policy(policy)
        self._driver.pause_dispatch(paused)

    def _stop(self, rid: str | None) -> None:
        """The leader's operator aborts. Engines hear of running steps from whoever serves them."""
        self._running.end_waiting(rid)
        if rid is not None:
            for attempt in self._running.attempts_of(rid):
                self._abort_aside(attempt.worker, attempt.rid)

    def _abort_aside(self, endpoint: WorkerEndpoint | Any, rid: str) -> None:
        if not endpoint.features.abort:
            return
        task = asyncio.create_task(self._upstream.abort(endpoint, rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)
