"""What can be known of a trajectory while it runs: its origin, and its steps as they end.

A step here is known *when it ends*: it carries the tool gap, the tool's error and the observation that came
before it, never those of the tool call that it has just asked for. Nothing of the future can leak into
features that are built from these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heddle_contracts.steps import StepRecord
from heddle_core import Siblings


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known before the first step. Empty strings and None where it is not.

    ``prompt`` names the task: samples of one prompt share it, within a group and over epochs.
    """

    trajectory_id: str
    prompt: str
    domain: str = ""
    model: str = ""
    sample: int | None = None
    prompt_tokens: int = 0
    prompt_text: str | None = None


class EndedStep(NamedTuple):
    """One LLM call, as known at its last token.

    ``input_tokens`` were appended to the context before it (0 at the first step, whose prompt is the
    origin's); ``gap_before_s`` and ``error_before`` are of the tool call that the previous step asked for;
    ``seconds`` is the call's own time.
    """

    # A tuple: one is made at each step, and a frozen dataclass takes three times as long to make.

    output_tokens: int
    input_tokens: int = 0
    tools: tuple[str, ...] = ()
    finish_reason: str | None = None
    seconds: float | None = None
    gap_before_s: float | None = None
    error_before: bool | None = None
    observation: str | None = None
    text: str | None = None
    compacted: bool = False


def origin_of(record: StepRecord) -> Origin:
    """The origin that a gateway's record of a first step tells.

    Samples of a group share a prompt; without a group a trajectory is its own.
    """
    return Origin(
        trajectory_id=record.trajectory_id,
        prompt=f"{record.tenant}/{record.group_id}" if record.group_id is not None else "",
        domain=record.tenant,
        model=record.model or "",
        sample=record.sample,
        prompt_tokens=record.prompt_tokens,
    )


def step_of(record: StepRecord, context_before: int) -> EndedStep:
    """The step that a gateway's record tells; ``context_before`` is prompt plus output of the step before,
    0 at the first.
    """
    appended = record.prompt_tokens - context_before
    started = record.dispatched_at if record.dispatched_at is not None else record.arrived_at
    return EndedStep(
        output_tokens=record.output_tokens,
        input_tokens=max(0, appended) if context_before else 0,
        tools=record.tool_names,
        finish_reason=record.finish_reason,
        seconds=max(0.0, record.ended_at - started),
        gap_before_s=record.gap_before_s,
        compacted=bool(context_before) and appended < 0,
    )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A trajectory that was observed. ``finished`` is False where it was cut off: its length is then at least
    what is here. ``started_at`` is in seconds of any clock that its set shares; None where not recorded.
    ``siblings``: who of its prompt was known to have finished before each step, as it was when it ran; empty
    where not recorded.
    """

    origin: Origin
    steps: tuple[EndedStep, ...]
    finished: bool = True
    started_at: float | None = None
    siblings: tuple[Siblings, ...] = ()

    @property
    def output_tokens(self) -> int:
        """Tokens it generated."""
        return sum(step.output_tokens for step in self.steps)


def tokens_left(steps: Sequence[EndedStep]) -> list[int]:
    """Output tokens still to come before each step."""
    left = sum(step.output_tokens for step in steps)
    remaining = []
    for step in steps:
        remaining.append(left)
        left -= step.output_tokens
    return remaining
