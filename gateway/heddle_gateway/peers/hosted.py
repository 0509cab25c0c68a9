"""What the leader holds of another gateway and of its steps."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from heddle_contracts.steps import Outcome

from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.dialects.wire import Scan
from heddle_gateway.fleet.events import WorkerEndpoint, WorkerSpec
from heddle_gateway.identity import Identity
from heddle_gateway.live.decisions import Decision, Dispatch
from heddle_gateway.live.directory import LiveTrajectory
from heddle_gateway.live.ticket import Ticket
from heddle_gateway.peers.link import Link, LinkTuning

MAX_REMEMBERED: Final = 4096
"""Ends of one gateway that are known to have been taken."""


@dataclass(frozen=True, slots=True)
class HostingTuning:
    """``grace_s``: how long the steps of a gateway that is away go on, and between two questions whether it
    lives; ``unknown_s``: how long they go on while there is no answer.
    """

    grace_s: float = 5.0
    unknown_s: float = 30.0
    link: LinkTuning = field(default_factory=LinkTuning)


class Fleet(Protocol):
    """fleet.registry.Fleet."""

    def endpoints(self) -> tuple[WorkerEndpoint, ...]: ...
    def registered(self) -> tuple[tuple[int, WorkerSpec, Any], ...]: ...
    def worker(self, worker_id: int, generation: int) -> WorkerEndpoint | None: ...
    def note_success(self, worker_id: int, generation: int) -> None: ...
    def note_failure(self, worker_id: int, generation: int, kind: Any) -> None: ...


class HostedTicket(Ticket):
    """Sends what is decided to where the step runs."""

    __slots__ = ("on_decision",)

    def __init__(
        self, step: int, on_decision: Callable[[Decision], None], on_withdraw: Callable[[], None]
    ) -> None:
        super().__init__(step, 0, on_withdraw)
        self.on_decision = on_decision

    def decide(self, decision: Decision) -> None:
        super().decide(decision)
        self.on_decision(decision)


class HostedStep:
    """A step of another gateway. ``claim`` and ``live`` are of this process' book and directory."""

    __slots__ = (
        "claim",
        "is_void",
        "key",
        "live",
        "marked_left",
        "peer",
        "rid",
        "scan",
        "tenant",
        "ticket",
    )

    def __init__(
        self,
        peer: "Peer",
        key: int,
        tenant: str,
        claim: Identity,
        live: LiveTrajectory,
        scan: Scan,
        ticket: Ticket,
    ) -> None:
        self.peer = peer
        self.key = key
        self.tenant = tenant
        self.claim = claim
        self.live = live
        self.scan = scan
        self.ticket = ticket
        self.rid: str | None = None
        self.is_void = False
        self.marked_left = False


class Peer:
    """Another gateway. ``link`` is None while it is away."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.link: Link | None = None
        self.steps: dict[int, HostedStep] = {}
        self.announced: set[int] = set()
        self.waiting: set[int] = set()
        """Steps that are not begun before `Hosting.open`."""
        self.ended: deque[int] = deque(maxlen=MAX_REMEMBERED)
        self.grace: asyncio.Task[None] | None = None

    def send(self, kind: str, /, **head: Any) -> None:
        if self.link is not None:
            self.link.send(kind, **head)

    def hold(
        self, key: int, tenant: str, claim: Identity, live: LiveTrajectory, scan: Scan, ticket: Ticket
    ) -> HostedStep:
        step = self.steps[key] = HostedStep(self, key, tenant, claim, live, scan, ticket)
        return step


_DISPATCH: Final = ("worker", "generation", "priority", "level", "attempt", "reason")
_REJECT: Final = ("status", "reason", "retry_after_ms")


def of_decision(decision: Decision) -> dict[str, Any]:
    names = _DISPATCH if isinstance(decision, Dispatch) else _REJECT
    return {name: getattr(decision, name) for name in names}


def unheard(step: HostedStep, worker: str | None) -> EndedStep:
    """The end of a step whose gateway says nothing any more."""
    who, now = step.claim, time.time()
    return EndedStep(
        who.trajectory_id,
        step.tenant,
        who.group_id,
        who.sample,
        who.parent_id,
        who.source,
        step.scan.model,
        "",
        who.step,
        who.segment,
        1,
        int(who.retry_of_step),
        worker,
        Outcome.ABORTED,
        None,
        None,
        (),
        step.scan.prompt_tokens,
        0,
        0,
        False,
        None,
        now,
        None,
        None,
        now,
        None,
    )
