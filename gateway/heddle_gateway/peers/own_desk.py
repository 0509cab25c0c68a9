"""Decisions of this process: its book says whose a step is, its core when and where it runs.

Also the leader's side of what the others ask: `hosting` calls the same functions with their steps.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from heddle_contracts.steps import Outcome

from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.dialects.wire import Answer, Scan
from heddle_gateway.identity import Identity, Known, RequestFacts, Said, TrajectoryBook
from heddle_gateway.live.decisions import Dispatch, FailureKind
from heddle_gateway.live.directory import LiveTrajectory
from heddle_gateway.live.driver import Driver
from heddle_gateway.live.ticket import Ticket
from heddle_gateway.peers.desk import Placed, Who
from heddle_gateway.running_step import Endpoint, Fleet, Run
from heddle_gateway.stored_answers import StoredAnswers

MOST_LATE: Final = 2048
"""Each holds what was read of its request, kilobytes of a long conversation; the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt that another process began, at the worker of this ``url``, so many seconds ago."""

    url: str
    level: int
    since_s: float
    streaming: bool


class LateEnd(NamedTuple):
    """A step that ended."""

    who: Who
    scan: Scan
    tenant: str
    ticket: Ticket
    record: EndedStep
    outcome: Outcome
    answer: Answer | None


class Workers(Fleet, Protocol):
    def living(self, url: str) -> tuple[int, int] | None:
        """(id, generation) of the worker behind this URL, while it can be sent to."""


class OwnDesk:
    """``sinks`` hear of every step that ended here, whoever served it; they must neither block nor raise."""

    def __init__(
        self,
        *,
        book: TrajectoryBook,
        driver: Driver,
        fleet: Workers,
        stored: StoredAnswers,
        sinks: Sequence[Callable[[EndedStep], None]],
    ) -> None:
        self._book = book
        self._driver = driver
        self._fleet = fleet
        self._stored = stored
        self._sinks = tuple(sinks)
        self.sure_until = math.inf
        self._asked = asyncio.Event()
        self._may_be_two = False
        self.late: deque[LateEnd] = deque(maxlen=MOST_LATE)
        """Ends that came while it was not sure, or alone: whoever else decides has not heard of them."""
        self.worker: Callable[[int, int], Endpoint | None] = fleet.worker
        self.on_repeat: Callable[[LiveTrajectory, int], None] | None = None
        """Hears of a step that is asked for again: who had it may be gone."""

    # ---------------------------------------------------------------- whether it decides

    async def made_sure(self) -> None:
        await self._asked.wait()

    def sure(self, until: float, *, alone: bool = False) -> None:
        """It was found that no other process decides until then (monotonic seconds); ``alone``: that none can
        be asked about. Then one may decide all the same, and is to be told of what ended when it can.
        """
        self.sure_until, self._may_be_two = until, alone
        if not alone:
            self.late.clear()
        self.asked()

    def asked(self) -> None:
        """Who waits looks again."""
        self._asked.set()
        self._asked = asyncio.Event()

    # ---------------------------------------------------------------- steps of this process

    def arrive(self, facts: RequestFacts, on_withdraw: Callable[[], None]) -> Placed:
        claim = self._book.resolve(facts)
        scan = facts.scan
        live, gap = self.begin(claim, scan, facts.tenant)
        ticket = self._driver.arrive(
            live,
            prompt_tokens=scan.prompt_tokens,
            scan=scan,
            on_withdraw=on_withdraw,
            bound_to=self._stored.only_worker_for(scan),
        )
        return Placed(claim, claim, live, ticket, gap)

    def sent(self, run: Run) -> None:
        live, attempt = run.call.live, run.attempt
        if live is not None and attempt is not None:
            live.last_rid = attempt.rid

    def answered(self, run: Run) -> None:
        if run.attempt is not None:
            self._fleet.note_success(run.attempt.dispatch.worker, run.attempt.dispatch.generation)

    def failed(self, run: Run, kind: FailureKind) -> None:
        if run.attempt is not None:
            self._fleet.note_failure(run.attempt.dispatch.worker, run.attempt.dispatch.generation, kind)

    def first_byte(self, run: Run) -> None:
        self._driver.first_byte(run.ticket)

    def aborting(self, run: Run, now: float) -> None:
        self._driver.aborting(run.ticket)
        assert run.call.claim is not None
        # The client may be back before the engine has answered.
        self._book.client_left(run.call.claim, run.answer, now)

    def attempt_failed(self, run: Run, dispatch: Dispatch, kind: FailureKind) -> None:
        self._driver.attempt_failed(run.ticket, dispatch, kind)

    def end(self, run: Run, ended: EndedStep, outcome: Outcome, answer: Answer | None, now: float) -> None:
        call = run.call
        assert call.claim is not None
        assert call.live is not None
        self.finish(call.claim, call.live, run.ticket, call.scan, ended, outcome, answer, now)

    # ---------------------------------------------------------------- steps of any process

    def begin(self, claim: Identity, scan: Scan, tenant: str) -> tuple[LiveTrajectory, float | None]:
        """A request that was recognised is a step from now on: its trajectory, and how long after its last
        step it comes.
        """
        live = self._driver.directory.open(claim, tenant=tenant, model=scan.model)
        last = live.last_ended
        gap = None if last is None else time.monotonic() - last
        if self.on_repeat is not None and claim.retry_of_step:
            self.on_repeat(live, claim.step)
        self._book.step_started(claim)
        return live, gap

    def place(self, scan: Scan, tenant: str, said: Said, ticket: Ticket) -> Placed:
        """As `arrive`, of a request that has its ticket."""
        claim = self._book.place(scan, tenant, time.monotonic(), said)
        live, gap = self.begin(claim, scan, tenant)
        self.run(live, scan, ticket)
        return Placed(claim, claim, live, ticket, gap)

    def run(self, live: LiveTrajectory, scan: Scan, ticket: Ticket) -> None:
        """It asks to run."""
        self._driver.arrive(
            live,
            prompt_tokens=scan.prompt_tokens,
            scan=scan,
            on_withdraw=ticket.on_withdraw,
            ticket=ticket,
            bound_to=self._stored.only_worker_for(scan),
        )

    def finish(
        self,
        claim: Identity,
        live: LiveTrajectory,
        ticket: Ticket,
        scan: Scan,
        ended: EndedStep,
        outcome: Outcome,
        answer: Answer | None,
        now: float,
    ) -> None:
        """The one ending of a step: book, core, and those who count."""
        if self._may_be_two or now > self.sure_until:
            self.late.append(LateEnd(claim, scan, live.tenant, ticket, ended, outcome, answer))
        live.last_ended = now
        live.worker = ended.worker
        self._driver.end(
            ticket,
            outcome.value,
            prompt_tokens=ended.prompt_tokens,
            output_tokens=ended.output_tokens,
            cached_tokens=ended.cached_tokens,
        )
        self._book.step_ended(claim, outcome, answer, now)
        # One that failed comes again, as the last step of this trajectory and not as the first of another.
        if claim.final and outcome is Outcome.DONE:
            self._driver.finish(live)
        for sink in self._sinks:
            sink(ended)

    def resume(
        self, who: Known, scan: Scan, tenant: str, ticket: Ticket, running: Running | None
    ) -> tuple[Identity, LiveTrajectory]:
        """A step that was another process' to decide about goes on here under its number. One that runs is
        counted where it runs, and ``ticket`` has that as its decision; another one asks to run.
        """
        claim = self._book.resume(who, scan, tenant, time.monotonic())
        live = self._driver.directory.open(who, tenant=tenant, model=scan.model)
        if running is None:
            self.run(live, scan, ticket)
            return claim, live
        worker, generation = self._fleet.living(running.url) or (0, 0)
        ticket.decision = Dispatch(
            step=ticket.step,
            worker=worker,
            generation=generation,
            priority=0,
            level=running.level,
            attempt=1,
            reason="adopted",
        )
        self._driver.adopt(
            live,
            ticket,
            prompt_tokens=scan.prompt_tokens,
            worker=worker,
            generation=generation,
            level=running.level,
            running_s=running.since_s,
            streaming=running.streaming,
        )
        return claim, live
