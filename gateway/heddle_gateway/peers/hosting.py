"""At the leader: the steps of the other gateways, in its own book, directory and core.

Invariants: a step of another gateway is ended once, by that gateway's word or when it is gone
(peers/followers.py); before that a repeat of it ends it, since its client has come back by another way;
nothing of another gateway runs before the leader knows what ran when it took over (`open`).
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from heddle_contracts.steps import Outcome

from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.dialects.wire import Answer, Scan
from heddle_gateway.fleet.events import WorkerEndpoint
from heddle_gateway.identity import Known, Said, TrajectoryBook
from heddle_gateway.live.decisions import Decision, Dispatch
from heddle_gateway.live.directory import LiveTrajectory
from heddle_gateway.live.driver import Driver
from heddle_gateway.live.ticket import Ticket
from heddle_gateway.peers.followers import Followers
from heddle_gateway.peers.frames import Frame
from heddle_gateway.peers.hosted import (
    Fleet,
    HostedStep,
    HostedTicket,
    HostingTuning,
    Peer,
    of_decision,
    unheard,
)
from heddle_gateway.peers.link import Link
from heddle_gateway.peers.messages import (
    of_fleet,
    of_identity,
    to_answer,
    to_ended,
    to_identity,
    to_running,
)
from heddle_gateway.peers.own_desk import OwnDesk

log = logging.getLogger(__name__)


class Hosting:
    """``abort(endpoint, rid)`` tells an engine to stop, without being waited for. ``describe(tenant, id)``:
    what is known of a trajectory, None when it is over. ``lives``: as `Followers` has it.
    """

    def __init__(
        self,
        *,
        desk: OwnDesk,
        book: TrajectoryBook,
        driver: Driver,
        fleet: Fleet,
        abort: Callable[[WorkerEndpoint, str], None],
        describe: Callable[[str, str], bytes | None],
        lives: Callable[[str], Awaitable[bool | None]],
        release: str,
        tuning: HostingTuning | None = None,
    ) -> None:
        self._desk = desk
        self._book = book
        self._driver = driver
        self._fleet = fleet
        self._abort = abort
        self._describe = describe
        self._followers = Followers(
            greeting=lambda: {**self._told_fleet(), **self._orders()},
            hear=self._hear,
            on_away=self._away,
            on_gone=self._gone,
            lives=lives,
            release=release,
            tuning=tuning or HostingTuning(),
        )
        self._waiting: list[tuple[Peer, Frame]] | None = None

    # ---------------------------------------------------------------- lifetime

    def protocol(self) -> Link:
        """Of a connection that came in."""
        return self._followers.protocol()

    def lead(self, leader: str, secret: str) -> None:
        """Others may come and say what runs; what is to be decided waits for `open`."""
        self._followers.lead(leader, secret)
        if self._waiting is None:
            self._waiting = []

    def open(self) -> None:
        """What waited is decided, in the order it came."""
        waiting, self._waiting = self._waiting or [], None
        for peer in self._followers:
            peer.waiting.clear()
        for peer, frame in waiting:
            try:
                self._hear(peer, frame)
            except (KeyError, TypeError, ValueError) as error:
                # As where it came in: one gateway's nonsense is not the others' loss.
                log.warning("a link to another gateway is closed: %s: %s", type(error).__name__, error)
                if peer.link is not None:
                    peer.link.close()

    def stand_down(self) -> None:
        """Another leads. The others are sent to it with their steps; nothing is ended."""
        self._waiting = None
        self._followers.stand_down()

    # ---------------------------------------------------------------- looking in, and telling

    def stats(self) -> dict[str, float]:
        """For the metrics."""
        return {
            "followers": float(sum(peer.link is not None for peer in self._followers)),
            "hosted_steps": float(sum(len(peer.steps) for peer in self._followers)),
        }

    def fleet_changed(self) -> None:
        """Call it before the core hears of it: what it decides may name the worker."""
        head = None
        for peer in self._followers:
            if peer.link is not None:
                head = head or self._told_fleet()
                peer.send("fleet", **head)

    def orders_changed(self) -> None:
        """What an operator has set: whoever leads next goes on under it."""
        for peer in self._followers:
            peer.send("orders", **self._orders())

    def tell_past(self, tenant: str, trajectory_id: str) -> None:
        """A step has ended. Its client may go on elsewhere at once, and Redis is a moment behind: one of the
        others that leads next has to know. Said before the client has its last byte.
        """
        links = [peer.link for peer in self._followers if peer.link is not None]
        past = self._describe(tenant, trajectory_id) if links else None
        if past is not None:
            for link in links:
                link.send("past", past, of=[tenant, trajectory_id])
                link.flush()

    def stop(self, rid: str | None) -> None:
        """An operator aborts: those who serve the step see to it, and of one that is away its step ends."""
        for peer in self._followers:
            peer.send("stop", rid=rid)
            if peer.link is None:
                for hosted in list(peer.steps.values()):
                    if rid is None or hosted.rid == rid:
                        self._give_up(hosted)

    def repeated(self, live: LiveTrajectory, step: int) -> None:
        """A client asks for a step again. Where the gateway that had it is away, it has ended."""
        for peer in self._followers:
            if peer.link is None:
                for hosted in [
                    one for one in peer.steps.values() if one.live is live and one.claim.step == step
                ]:
                    self._give_up(hosted)

    # ---------------------------------------------------------------- who is away

    def _away(self, peer: Peer) -> None:
        now = time.monotonic()
        for step in peer.steps.values():
            if not step.marked_left:
                # Its client may be back by another way before it is.
                self._book.client_left(step.claim, None, now)
                step.marked_left = True

    def _gone(self, peer: Peer) -> None:
        for step in list(peer.steps.values()):
            self._give_up(step)

    def _give_up(self, step: HostedStep) -> None:
        """The step has ended without a word: aborted, and the engine is told."""
        decision = step.ticket.decision
        endpoint = None
        if isinstance(decision, Dispatch):
            endpoint = self._fleet.worker(decision.worker, decision.generation)
        if endpoint is not None and step.rid is not None and endpoint.features.abort:
            self._abort(endpoint, step.rid)
        self._finish(step, unheard(step, None if endpoint is None else endpoint.name), Outcome.ABORTED, None)

    def _told_fleet(self) -> dict[str, Any]:
        specs = [spec for _, spec, _ in self._fleet.registered()]
        return of_fleet(self._fleet.endpoints(), specs)

    def _orders(self) -> dict[str, Any]:
        return {"policy": self._driver.policy(), "paused": self._driver.is_paused}

    # ---------------------------------------------------------------- messages

    def _hear(self, peer: Peer, frame: Frame) -> None:
        kind, head, blob = frame
        if kind == "note":
            self._fleet.note_failure(head["worker"], head["generation"], head["kind"])
            return
        if kind == "synced":
            for key in set(peer.steps) - peer.announced:
                self._give_up(peer.steps[key])
            return
        key = head["k"]
        peer.announced.add(key)
        step = peer.steps.get(key)
        if self._waiting is not None and _must_wait(peer, step, frame):
            peer.waiting.add(key)
            self._waiting.append((peer, frame))
            return
        match kind:
            case "arrive":
                if step is None:
                    self._arrive(peer, key, head, blob)
                else:
                    self._tell_again(step)
            case "again":
                self._go_on(peer, key, step, head, blob)
            case "over":
                self._over(peer, key, step, head, blob)
            case "end":
                if step is not None:
                    record, decision = to_ended(head["record"]), step.ticket.decision
                    if record.outcome is Outcome.DONE and isinstance(decision, Dispatch):
                        self._fleet.note_success(decision.worker, decision.generation)
                    self._finish(step, record, record.outcome, to_answer(blob))
                peer.send("done", k=key)
            case _ if step is not None:
                self._news(step, kind, head, blob)

    def _news(self, step: HostedStep, kind: str, head: dict[str, Any], blob: bytes) -> None:
        decision = step.ticket.decision
        match kind:
            case "sent":
                step.rid = step.live.last_rid = head["rid"]
            case "first":
                if isinstance(decision, Dispatch):
                    self._fleet.note_success(decision.worker, decision.generation)
                self._driver.first_byte(step.ticket)
            case "failed":
                if isinstance(decision, Dispatch):
                    step.rid = None
                    step.is_void = False
                    self._driver.attempt_failed(step.ticket, decision, head["kind"])
            case "left":
                self._driver.aborting(step.ticket)
                if not step.marked_left:
                    self._book.client_left(step.claim, to_answer(blob), time.monotonic())
                    step.marked_left = True
            case "drop":
                self._give_up(step)
            case _:
                raise ValueError(f"a message of kind {kind!r}")

    def _arrive(self, peer: Peer, key: int, head: dict[str, Any], blob: bytes) -> None:
        scan, tenant = Scan.from_bytes(blob), head["tenant"]
        claim = self._book.place(scan, tenant, time.monotonic(), Said(*head["said"]))
        live, gap = self._desk.begin(claim, scan, tenant)
        step = peer.hold(key, tenant, claim, live, scan, self._new_ticket(peer, key))
        peer.send("is", k=key, who=of_identity(claim), gap=gap)
        self._desk.run(live, scan, step.ticket)

    def _go_on(
        self, peer: Peer, key: int, step: HostedStep | None, head: dict[str, Any], blob: bytes
    ) -> None:
        """A step that the other holds: as it is known here, or as another leader left it."""
        who, running = to_identity(head["who"]), to_running(head["running"])
        scan = Scan.from_bytes(blob)
        if step is not None:
            if step.marked_left and not head["left"]:
                # It was only away.
                step.claim = self._book.resume(who, scan, step.tenant, time.monotonic())
                step.marked_left = False
            step.rid = head["rid"] or step.rid
            if running is None or step.is_void:
                self._tell_again(step)
            return
        self._resume(peer, key, who, scan, head)

    def _resume(self, peer: Peer, key: int, who: Known, scan: Scan, head: dict[str, Any]) -> None:
        ticket = self._new_ticket(peer, key)
        running = to_running(head["running"])
        if running is None:
            claim = self._book.resume(who, scan, head["tenant"], time.monotonic())
            live = self._driver.directory.open(who, tenant=head["tenant"], model=scan.model)
        else:
            claim, live = self._desk.resume(who, scan, head["tenant"], ticket, running)
        step = peer.hold(key, head["tenant"], claim, live, scan, ticket)
        if running is None:
            self._desk.run(live, scan, ticket)
            return
        step.rid = live.last_rid = head["rid"]
        assert isinstance(ticket.decision, Dispatch)
        peer.send("held", k=key, d=of_decision(ticket.decision))
        if head["left"]:
            self._driver.aborting(ticket)
            self._book.client_left(claim, None, time.monotonic())
            step.marked_left = True

    def _over(self, peer: Peer, key: int, step: HostedStep | None, head: dict[str, Any], blob: bytes) -> None:
        record = to_ended(head["record"])
        scan, answer = Scan.from_bytes(blob[: head["scan"]]), to_answer(blob[head["scan"] :])
        who = to_identity(head["who"])
        if step is not None and step.marked_left:
            step.claim = self._book.resume(who, scan, step.tenant, time.monotonic())
            step.marked_left = False
        if step is None and key not in peer.ended:
            # The leader that had it may have told nobody.
            running = to_running([record.worker or "", 0, 0.0, False])
            ticket = self._new_ticket(peer, key)
            claim, live = self._desk.resume(who, scan, head["tenant"], ticket, running)
            step = peer.hold(key, head["tenant"], claim, live, scan, ticket)
        if step is not None:
            self._finish(step, record, record.outcome, answer)
        peer.send("done", k=key)

    def _finish(self, step: HostedStep, record: EndedStep, outcome: Outcome, answer: Answer | None) -> None:
        peer = step.peer
        del peer.steps[step.key]
        peer.ended.append(step.key)
        self._desk.finish(
            step.claim, step.live, step.ticket, step.scan, record, outcome, answer, time.monotonic()
        )

    # ---------------------------------------------------------------- decisions

    def _new_ticket(self, peer: Peer, key: int) -> Ticket:
        number = self._driver.new_ticket(lambda: None).step

        def decided(decision: Decision) -> None:
            kind = "go" if isinstance(decision, Dispatch) else "no"
            peer.send(kind, k=key, d=of_decision(decision))

        def withdrawn() -> None:
            step = peer.steps.get(key)
            if step is not None:
                step.is_void = True
            peer.send("void", k=key)

        return HostedTicket(number, decided, withdrawn)

    def _tell_again(self, step: HostedStep) -> None:
        peer, key = step.peer, step.key
        peer.send("is", k=key, who=of_identity(step.claim), gap=None)
        decision = step.ticket.decision
        if decision is not None:
            kind = "go" if isinstance(decision, Dispatch) else "no"
            peer.send(kind, k=key, d=of_decision(decision))
        if step.is_void:
            peer.send("void", k=key)


def _must_wait(peer: Peer, step: HostedStep | None, frame: Frame) -> bool:
    """Until `Hosting.open`, what asks for a place; and what else is said of the same step, or its end
    would be heard before its beginning.
    """
    if frame.head["k"] in peer.waiting:
        return True
    asks = frame.kind == "arrive" or (frame.kind == "again" and frame.head["running"] is None)
    return asks and step is None
