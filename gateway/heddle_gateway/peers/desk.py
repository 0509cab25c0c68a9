"""Where a step is decided about, as the data path sees it.

Invariant: at any moment one desk has all steps of this process; a change of desks moves them at once, and
their tasks do not notice.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from heddle_contracts.steps import Outcome

from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.dialects.wire import Answer
from heddle_gateway.identity import Identity, Known, RequestFacts
from heddle_gateway.live.decisions import Dispatch, FailureKind
from heddle_gateway.live.directory import LiveTrajectory
from heddle_gateway.live.ticket import Ticket

if TYPE_CHECKING:
    from heddle_gateway.running_step import Endpoint, Run


class Who(Known, Protocol):
    """What identity says of a step, to whoever shows it."""

    @property
    def retry_of_step(self) -> bool: ...


class Placed(NamedTuple):
    """A request that has become a step. ``claim`` and ``live`` are of this process' own book and directory;
    None while another decides. ``gap_before_s``: since the trajectory's last step ended.
    """

    who: Who
    claim: Identity | None
    live: LiveTrajectory | None
    ticket: Ticket
    gap_before_s: float | None


class Desk(Protocol):
    """The calls of one step, in their order: ``arrive`` or ``ask``, then ``sent`` for each attempt,
    ``first_byte``, ``attempt_failed`` or ``aborting``, and one ``end``.
    """

    @property
    def sure_until(self) -> float:
        """Until then (monotonic seconds) it is certain who decides. Later a step neither begins nor ends: its
        client's next request may be with who decides before that one has heard.
        """

    async def made_sure(self) -> None:
        """Waits for the next answer to that question; another desk may have all steps then."""

    def worker(self, worker_id: int, generation: int) -> "Endpoint | None": ...
    def sent(self, run: "Run") -> None: ...
    def answered(self, run: "Run") -> None:
        """The worker gave a sign of life."""

    def failed(self, run: "Run", kind: FailureKind) -> None:
        """The worker did not do well; `attempt_failed` tells the core."""

    def first_byte(self, run: "Run") -> None: ...
    def aborting(self, run: "Run", now: float) -> None: ...
    def attempt_failed(self, run: "Run", dispatch: Dispatch, kind: FailureKind) -> None: ...
    def end(
        self, run: "Run", ended: EndedStep, outcome: Outcome, answer: Answer | None, now: float
    ) -> None: ...


class DecidesHere(Desk, Protocol):
    def arrive(self, facts: RequestFacts, on_withdraw: Callable[[], None]) -> Placed:
        """Raises InvalidId."""


class DecidesElsewhere(Desk, Protocol):
    async def ask(self, facts: RequestFacts, on_withdraw: Callable[[], None]) -> Placed:
        """Waits for who decides, a moment or until one is found. Raises InvalidId."""

    def begun(self, run: "Run") -> None:
        """The step that was asked about has its account."""

    async def taken(self, run: "Run") -> None:
        """Who decides knows that the step has ended, or will before the client can go on elsewhere."""


@dataclass(slots=True)
class Desks:
    """Which desk has the steps now. One of the two is None."""

    here: DecidesHere | None
    elsewhere: DecidesElsewhere | None

    async def sure(self) -> Desk:
        """The desk that certainly has the steps, when there is one."""
        while time.monotonic() > (desk := self.now).sure_until:
            await desk.made_sure()
        return desk

    @property
    def now(self) -> Desk:
        desk = self.here or self.elsewhere
        assert desk is not None
        return desk
