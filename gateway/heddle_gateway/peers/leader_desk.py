"""Decisions of another process: the leader is asked over a link.

Invariants: a step is remembered here until the leader has its end; while there is no link, running steps run
on, their news is kept as state, and new ones wait; what was decided is void for a step that was not sent yet
when the link was lost.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from heddle_contracts.steps import Outcome

from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.asgi.request_body import ClientError
from heddle_gateway.dialects.wire import Answer
from heddle_gateway.fleet.events import WorkerEndpoint, WorkerSpec
from heddle_gateway.identity import RequestFacts, TrajectoryBook
from heddle_gateway.live.decisions import Dispatch, FailureKind, Reject
from heddle_gateway.live.ticket import Ticket
from heddle_gateway.peers.asked import AskedStep, Ended
from heddle_gateway.peers.desk import Placed, Who
from heddle_gateway.peers.frames import Frame
from heddle_gateway.peers.link import Link
from heddle_gateway.peers.messages import (
    of_answer,
    of_ended,
    of_identity,
    of_running,
    to_endpoints,
    to_identity,
    to_specs,
)
from heddle_gateway.peers.own_desk import LateEnd, OwnDesk, Running
from heddle_gateway.running_step import Endpoint, Run

log = logging.getLogger(__name__)

MAX_PASTS: Final = 8192
"""Trajectories whose last end is remembered: more than end in the moment that Redis is behind."""


class LeaderDesk:
    """``new_ticket`` numbers steps, apart from all others of this process; ``on_fleet`` hears of the workers
    that the leader has registered, ``on_orders`` of the policy in force there and whether dispatch is paused.
    """

    def __init__(
        self,
        book: TrajectoryBook,
        new_ticket: Callable[[Callable[[], None]], Ticket],
        *,
        on_fleet: Callable[[Sequence[WorkerSpec]], None],
        on_orders: Callable[[dict[str, Any], bool], None],
        on_stop: Callable[[str | None], None],
        note_failure: Callable[[str, FailureKind], None],
    ) -> None:
        self._book = book
        self._new_ticket = new_ticket
        self._on_fleet = on_fleet
        self._on_orders = on_orders
        self._on_stop = on_stop
        self._note_failure = note_failure
        self._steps: dict[int, AskedStep] = {}
        self._endpoints: dict[int, WorkerEndpoint] = {}
        self._link: Link | None = None
        self._joined = asyncio.Event()
        self._pasts: dict[tuple[str, str], bytes] = {}
        self.sure_until = -math.inf

    async def made_sure(self) -> None:
        await self._joined.wait()

    def __len__(self) -> int:
        return len(self._steps)

    # ---------------------------------------------------------------- steps

    async def ask(self, facts: RequestFacts, on_withdraw: Callable[[], None]) -> Placed:
        said = self._book.said(facts)
        step = AskedStep(facts.scan, facts.tenant, said, self._new_ticket(on_withdraw))
        key = step.ticket.step
        self._steps[key] = step
        self._send_arrival(step)
        try:
            await step.known
        except BaseException:
            # Nobody waits for it any more: a shutdown, or the leader's refusal.
            if self._steps.pop(key, None) is not None:
                self._send("drop", k=key)
            raise
        assert step.placed is not None
        return step.placed

    def begun(self, run: Run) -> None:
        """The step that `ask` placed has its account."""
        step = self._steps.get(run.ticket.step)
        if step is not None:
            step.run = run

    def worker(self, worker_id: int, generation: int) -> Endpoint | None:
        endpoint = self._endpoints.get(worker_id)
        return endpoint if endpoint is not None and endpoint.generation == generation else None

    def sent(self, run: Run) -> None:
        attempt = run.attempt
        if attempt is not None:
            self._send("sent", k=run.ticket.step, rid=attempt.rid, worker=attempt.worker.base_url)

    def answered(self, run: Run) -> None:
        """The leader hears of it by the first byte and the end."""

    def failed(self, run: Run, kind: FailureKind) -> None:
        attempt = run.attempt
        if attempt is not None:
            self._note_failure(attempt.worker.base_url, kind)
            dispatch = attempt.dispatch
            self._send("note", worker=dispatch.worker, generation=dispatch.generation, kind=kind)

    def first_byte(self, run: Run) -> None:
        self._send("first", k=run.ticket.step)

    def aborting(self, run: Run, now: float) -> None:
        self._send("left", of_answer(run.answer), k=run.ticket.step)

    def attempt_failed(self, run: Run, dispatch: Dispatch, kind: FailureKind) -> None:
        run.ticket.decision = None
        self._send(
            "failed",
            k=run.ticket.step,
            worker=dispatch.worker,
            generation=dispatch.generation,
            kind=kind,
        )

    def end(self, run: Run, ended: EndedStep, outcome: Outcome, answer: Answer | None, now: float) -> None:
        step = self._steps.get(run.ticket.step)
        if step is None:
            return
        step.ended = Ended(ended, outcome, answer)
        step.run = None
        self._send("end", of_answer(answer), k=run.ticket.step, record=of_ended(ended))
        if self._link is not None:
            # Before the client has its last byte.
            self._link.flush()

    async def taken(self, run: Run) -> None:
        step = self._steps.get(run.ticket.step)
        if step is not None and self._link is not None and self._link.is_detour:
            step.taken = asyncio.Event()
            await step.taken.wait()

    # ---------------------------------------------------------------- the leader

    def join(self, link: Link) -> None:
        """A leader is there: it hears of every step of this process, and decides from now on."""
        self._link = link
        for step in list(self._steps.values()):
            if step.who is None:
                self._send_arrival(step)
            elif step.ended is not None:
                self._tell_of_end(step, step.who, step.ended)
            else:
                self._tell_of(step, step.who)
        self._send("synced")
        self.sure_until = math.inf
        self._look_again()

    def lost(self) -> None:
        """The leader is gone. Steps that wait have no decision any more."""
        self._link = None
        self.sure_until = -math.inf
        self._endpoints = {}
        for step in self._steps.values():
            if step.run is None or step.run.attempt is None:
                step.ticket.decision = None
            if step.taken is not None:
                step.taken.set()

    def take(self, frame: Frame) -> None:
        """Raises KeyError, TypeError or ValueError on a message of another release."""
        kind, head, blob = frame
        match kind:
            case "past":
                tenant, trajectory_id = head["of"]
                self._pasts.pop((tenant, trajectory_id), None)
                self._pasts[tenant, trajectory_id] = blob
                if len(self._pasts) > MAX_PASTS:
                    del self._pasts[next(iter(self._pasts))]
            case "fleet":
                self._learn_fleet(head)
            case "orders":
                self._on_orders(head["policy"], head["paused"])
            case "stop":
                self._on_stop(head["rid"])
            case "done":
                step = self._steps.pop(head["k"], None)
                if step is not None and step.taken is not None:
                    step.taken.set()
            case _:
                step = self._steps.get(head["k"])
                if step is not None:
                    self._hear(step, kind, head)

    def welcome(self, head: dict[str, Any]) -> None:
        self._learn_fleet(head)
        self._on_orders(head["policy"], head["paused"])

    def pasts(self) -> list[bytes]:
        """What the leader said last of trajectories, as it may not have written it; said once."""
        found, self._pasts = list(self._pasts.values()), {}
        return found

    # ---------------------------------------------------------------- a change of desks

    def hand_over(self, desk: OwnDesk) -> None:
        """All steps go on at the desk of this process: the running ones first, then those that wait, the one
        that came first first.
        """
        steps, self._steps = list(self._steps.values()), {}
        self._endpoints = {}
        self._look_again()
        waiting = []
        for step in steps:
            if step.who is None or (step.ended is None and step.running() is None):
                waiting.append(step)
            else:
                self._hand_over(desk, step, step.who, step.running())
        for step in sorted(waiting, key=lambda one: one.ticket.step):
            step.ticket.decision = None
            if step.who is not None:
                self._hand_over(desk, step, step.who, None)
            elif step.said is not None:
                step.place(desk.place(step.scan, step.tenant, step.said, step.ticket))

    def take_over(self, runs: Iterable[Run], late: Iterable[LateEnd]) -> None:
        """All steps of this process are asked about elsewhere from now on; ``late``: ends that nobody else
        has heard of.
        """
        for end in late:
            step = AskedStep(end.scan, end.tenant, None, end.ticket)
            step.who, step.ended = end.who, Ended(end.record, end.outcome, end.answer)
            self._steps[end.ticket.step] = step
        for run in runs:
            call = run.call
            step = AskedStep(call.scan, call.tenant, None, run.ticket)
            step.who, step.run = call.who, run
            if run.attempt is None:
                run.ticket.decision = None
            call.claim = call.live = None
            self._steps[run.ticket.step] = step

    # ---------------------------------------------------------------- inside

    def _look_again(self) -> None:
        self._joined.set()
        self._joined = asyncio.Event()

    def _send(self, kind: str, blob: bytes = b"", /, **head: Any) -> None:
        if self._link is not None:
            self._link.send(kind, blob, **head)

    def _send_arrival(self, step: AskedStep) -> None:
        if self._link is not None and step.said is not None:
            self._send("arrive", step.scan.to_bytes(), k=step.ticket.step, tenant=step.tenant, said=step.said)

    def _tell_of(self, step: AskedStep, who: Who) -> None:
        run = step.run
        attempt = run.attempt if run is not None else None
        self._send(
            "again",
            step.scan.to_bytes(),
            k=step.ticket.step,
            tenant=step.tenant,
            who=of_identity(who),
            running=of_running(step.running()),
            rid=None if attempt is None else attempt.rid,
            left=step.left,
        )

    def _tell_of_end(self, step: AskedStep, who: Who, ended: Ended) -> None:
        scan = step.scan.to_bytes()
        self._send(
            "over",
            scan + of_answer(ended.answer),
            k=step.ticket.step,
            tenant=step.tenant,
            who=of_identity(who),
            record=of_ended(ended.record),
            scan=len(scan),
        )

    def _learn_fleet(self, head: dict[str, Any]) -> None:
        self._endpoints = {one.worker_id: one for one in to_endpoints(head)}
        self._on_fleet(to_specs(head))

    def _hear(self, step: AskedStep, kind: str, head: dict[str, Any]) -> None:
        ticket = step.ticket
        match kind:
            case "is":
                step.place(Placed(to_identity(head["who"]), None, None, ticket, head["gap"]))
            case "refused":
                if not step.known.done():
                    step.known.set_exception(ClientError(head["status"], head["message"]))
            case "held" | "go":
                dispatch = Dispatch(step=ticket.step, **head["d"])
                if kind == "held":
                    ticket.decision = dispatch
                    if step.run is not None and step.run.attempt is not None:
                        step.run.attempt.dispatch = dispatch
                elif step.run is None or step.run.attempt is None:
                    ticket.decide(dispatch)
            case "no":
                ticket.decide(Reject(step=ticket.step, **head["d"]))
            case "void":
                ticket.withdraw()
            case _:
                raise ValueError(f"a message of kind {kind!r}")

    def _hand_over(self, desk: OwnDesk, step: AskedStep, who: Who, running: Running | None) -> None:
        ended = step.ended
        if ended is not None:
            # The leader that had it may have told nobody.
            ticket = Ticket(step.ticket.step, 0, _nothing)
            url = ended.record.worker or ""
            claim, live = desk.resume(
                who, step.scan, step.tenant, ticket, Running(url, 0, 0.0, streaming=False)
            )
            record, outcome, answer = ended.record, ended.outcome, ended.answer
            desk.finish(claim, live, ticket, step.scan, record, outcome, answer, time.monotonic())
            return
        claim, live = desk.resume(who, step.scan, step.tenant, step.ticket, running)
        run = step.run
        if run is None:
            gap = None if step.placed is None else step.placed.gap_before_s
            step.place(Placed(who, claim, live, step.ticket, gap))
            return
        run.call.claim, run.call.live = claim, live
        if run.attempt is not None:
            assert isinstance(step.ticket.decision, Dispatch)
            run.attempt.dispatch = step.ticket.decision
            live.last_rid = run.attempt.rid
        if step.left:
            desk.aborting(run, time.monotonic())


def _nothing() -> None:
    """Of a step that has ended there is nothing to withdraw."""
