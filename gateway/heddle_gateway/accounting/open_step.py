"""A step between its arrival and its ending.

Invariants: it ends exactly once (``end`` a second time raises StepEndedTwice); what it says about tokens is
the worker's own usage where there was one, else the number of chunks that were seen.
"""

import time
from typing import Final, Protocol

from heddle_contracts.steps import Outcome, StepIdentity

from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.accounting.endings import LEGAL_MOVES, StepPhase

# No context is as long, nor a batch of prompts. A larger count is a defect of the worker; believed, it would
# stand for a working set that fits nowhere, and SQL has no number for the largest.
MAX_TOKENS: Final = 1_000_000_000


class StepEndedTwice(RuntimeError):
    """A second ending of one step: a defect of the gateway, never of a client or worker."""


class Who(StepIdentity, Protocol):
    """What identity says of a step."""

    @property
    def retry_of_step(self) -> bool: ...


class Said(Protocol):
    """What an answer said of itself (heddle_core.Answer)."""

    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def cached_tokens(self) -> int | None: ...
    @property
    def finish_reasons(self) -> list[str]: ...
    @property
    def tool_names(self) -> list[str]: ...
    @property
    def chunks(self) -> int: ...


class OpenStep:
    """The account of one step. Times inside are monotonic seconds; the record has epoch seconds.
    ``waited_s``: how long ago it arrived.
    """

    __slots__ = (
        "_arrived_epoch",
        "_said",
        "_who",
        "arrived_at",
        "attempts",
        "dialect",
        "dispatched_at",
        "estimated_prompt_tokens",
        "first_byte_at",
        "gap_before_s",
        "model",
        "phase",
        "priority_level",
        "tenant",
        "worker",
    )

    def __init__(
        self,
        who: Who,
        *,
        tenant: str,
        model: str | None,
        dialect: str,
        estimated_prompt_tokens: int,
        arrived_at: float,
        gap_before_s: float | None,
        waited_s: float = 0.0,
    ) -> None:
        self._who = who
        self._said: Said | None = None
        self._arrived_epoch = time.time() - waited_s
        self.tenant = tenant
        self.model = model
        self.dialect = dialect
        self.estimated_prompt_tokens = estimated_prompt_tokens
        self.arrived_at = arrived_at
        self.gap_before_s = gap_before_s
        self.phase = StepPhase.ARRIVED
        self.attempts = 0
        self.worker: str | None = None
        self.priority_level: int | None = None
        self.dispatched_at: float | None = None
        self.first_byte_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.phase is StepPhase.ENDED

    @property
    def answer_began(self) -> bool:
        """Something of an answer has gone to the client, so no other worker can take the step."""
        return self.phase is StepPhase.ANSWERING

    def dispatched(self, worker: str, level: int, now: float) -> None:
        """An attempt begins. The time kept is that of the attempt that gave the answer."""
        if StepPhase.DISPATCHED not in LEGAL_MOVES[self.phase]:
            raise self._illegal(StepPhase.DISPATCHED)
        self.phase = StepPhase.DISPATCHED
        self.attempts += 1
        self.worker = worker
        self.priority_level = level
        self.dispatched_at = now
        self._said = None

    def answering(self, now: float) -> None:
        """The first byte of the answer is about to go to the client."""
        if StepPhase.ANSWERING not in LEGAL_MOVES[self.phase]:
            raise self._illegal(StepPhase.ANSWERING)
        self.phase = StepPhase.ANSWERING
        self.first_byte_at = now

    def heard(self, said: Said) -> None:
        """What the answer said, whole or up to where it broke off."""
        self._said = said

    def end(self, outcome: Outcome, *, status: int | None, now: float) -> EndedStep:
        """Closes the account. ``status``: what the caller saw; None when it left before any."""
        if self.phase is StepPhase.ENDED:
            raise StepEndedTwice(f"step {self._who.step} of {self._who.trajectory_id} has ended before")
        self.phase = StepPhase.ENDED
        who = self._who
        said = self._said
        shift = self._arrived_epoch - self.arrived_at
        output = None
        finish_reason: str | None = None
        tool_names: tuple[str, ...] = ()
        if said is None:
            prompt, cached, chunks = (self.estimated_prompt_tokens if self.attempts else 0), 0, 0
        else:
            # The worker's usage; else the estimate, and the chunks seen.
            counted, output = _believed(said.prompt_tokens), _believed(said.output_tokens)
            prompt = self.estimated_prompt_tokens if counted is None else counted
            cached, chunks = _believed(said.cached_tokens) or 0, said.chunks
            reasons, names = said.finish_reasons, said.tool_names
            finish_reason = reasons[0] if reasons else None
            tool_names = tuple(names)
        return EndedStep(
            who.trajectory_id,
            self.tenant,
            who.group_id,
            who.sample,
            who.parent_id,
            who.source,
            self.model,
            self.dialect,
            who.step,
            who.segment,
            self.attempts,
            int(who.retry_of_step),
            self.worker,
            outcome,
            status,
            finish_reason,
            tool_names,
            prompt,
            cached,
            chunks if output is None else output,
            output is not None,
            self.priority_level,
            self._arrived_epoch,
            self.dispatched_at + shift if self.dispatched_at is not None else None,
            self.first_byte_at + shift if self.first_byte_at is not None else None,
            now + shift,
            self.gap_before_s,
        )

    def _illegal(self, phase: StepPhase) -> RuntimeError:
        return RuntimeError(f"a step cannot go from {self.phase.value} to {phase.value}")


def _believed(tokens: int | None) -> int | None:
    """A worker's count, unless it is absurd: then as if it had said nothing."""
    return tokens if tokens is None or tokens <= MAX_TOKENS else None
