"""What this process holds of a step that another decides about."""

import asyncio
import time
from dataclasses import dataclass

from heddle_contracts.steps import Outcome

from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.dialects.wire import Answer, Scan
from heddle_gateway.identity import Said
from heddle_gateway.live.ticket import Ticket
from heddle_gateway.peers.desk import Placed, Who
from heddle_gateway.peers.own_desk import Running
from heddle_gateway.running_step import Run


@dataclass(slots=True)
class Ended:
    """An end that the leader may not have."""

    record: EndedStep
    outcome: Outcome
    answer: Answer | None


class AskedStep:
    """A step of this process that another decides about. ``who`` and ``run`` are None until it is known whose
    it is.
    """

    __slots__ = ("ended", "known", "placed", "run", "said", "scan", "taken", "tenant", "ticket", "who")

    def __init__(self, scan: Scan, tenant: str, said: Said | None, ticket: Ticket) -> None:
        self.scan = scan
        self.tenant = tenant
        self.said = said
        self.ticket = ticket
        self.known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.placed: Placed | None = None
        self.who: Who | None = None
        self.run: Run | None = None
        self.ended: Ended | None = None
        self.taken: asyncio.Event | None = None

    def place(self, placed: Placed) -> None:
        """Whose it is. Said once more where another desk has it before its task came to run."""
        self.placed = placed
        self.who = placed.who
        if not self.known.done():
            self.known.set_result(None)

    @property
    def left(self) -> bool:
        return self.run is not None and self.run.left

    def running(self) -> Running | None:
        """The attempt under way."""
        run = self.run
        attempt = run.attempt if run is not None else None
        if run is None or attempt is None:
            return None
        sent_at = run.account.dispatched_at
        return Running(
            attempt.worker.base_url,
            attempt.dispatch.level,
            0.0 if sent_at is None else time.monotonic() - sent_at,
            run.account.answer_began,
        )
