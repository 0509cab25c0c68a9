"""One recorded agent, acted out.

It sends its history, gets a tool call, waits as long as the tool took, appends a result as long as the
recorded one, and goes on. Context sizes follow the record: step k's prompt has ``context_before(k)`` tokens
by the format of ``filler_text``, if every answer has the recorded length. Unless its conversation was given a
name, nothing in a request names the trajectory.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from heddle_cli.replay.conversation import TOOLS, AgentGaveUp, Conversation, Said
from heddle_cli.replay.filler_text import (
    ANSWER_OPENING_TOKENS,
    MESSAGE_TOKENS,
    TOOLS_TOKENS,
    count_tokens,
    filler,
)
from heddle_cli.replay.loader import RecordedStep, RecordedTrajectory

SHARED_PROMPT_TOKENS: Final = 600
"""System prompt that all agents of a domain share; at most half of the first prompt."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How to act a record out. Gaps are recorded seconds; ``speed`` divides them."""

    model: str = "default"
    speed: float = 1.0
    default_gap_s: float = 1.0
    """Where the record has no tool time."""
    max_gap_s: float = 600.0
    """Longer gaps are cut: some records hold people's thinking time."""
    stream: bool = False

    def gap_s(self, step: RecordedStep) -> float:
        """Recorded seconds between a step's answer and the next request."""
        return min(self.default_gap_s if step.tool_seconds is None else step.tool_seconds, self.max_gap_s)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One answered step. Times are real seconds of the monotonic clock."""

    asked_at: float
    answered_at: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish_reason: str
    engine_s: float | None = None
    """Simulated seconds that an emulated worker had it for; None where it does not say."""


@dataclass(slots=True)
class TrajectoryResult:
    """What became of one agent. ``error`` is the one that ended it early; the steps not done are lost."""

    trajectory: RecordedTrajectory
    started_at: float
    ended_at: float = 0.0
    steps: list[StepResult] = field(default_factory=list)
    error: str | None = None

    @property
    def lost_steps(self) -> int:
        return len(self.trajectory.steps) - len(self.steps)

    @property
    def seconds(self) -> float:
        return self.ended_at - self.started_at


async def replay(
    conversation: Conversation,
    trajectory: RecordedTrajectory,
    settings: ReplaySettings,
    on_step: Callable[[StepResult], None],
) -> TrajectoryResult:
    """Runs one agent to its end, or to the first step without an answer."""
    result = TrajectoryResult(trajectory, time.monotonic())
    _open(conversation, trajectory)
    context = trajectory.prompt_tokens
    for index, step in enumerate(trajectory.steps):
        asked = time.monotonic()
        try:
            said = await conversation.answer(step.output_tokens)
        except AgentGaveUp as error:
            result.error = f"step {index}: {error}"
            break
        done = StepResult(
            asked,
            time.monotonic(),
            said.prompt_tokens,
            said.cached_tokens,
            said.output_tokens,
            said.finish_reason,
            said.engine_s,
        )
        result.steps.append(done)
        on_step(done)
        if index + 1 == len(trajectory.steps):
            break
        context += step.output_tokens
        wanted = trajectory.context_before(index + 1)
        context += _append_results(conversation, said, f"{trajectory.id}/{index}", wanted - context)
        # The tool was at work meanwhile: the gap is counted from the answer.
        gap_ends = done.answered_at + settings.gap_s(step) / settings.speed
        await asyncio.sleep(max(0.0, gap_ends - time.monotonic()))
    result.ended_at = time.monotonic()
    return result


def _open(conversation: Conversation, trajectory: RecordedTrajectory) -> None:
    """System and user message of exactly the recorded first prompt, or the shortest there can be.

    Samples of one task have the same.
    """
    tools = TOOLS_TOKENS + count_tokens(json.dumps(TOOLS, separators=(",", ":")))
    words = max(2, trajectory.prompt_tokens - tools - 2 * MESSAGE_TOKENS - ANSWER_OPENING_TOKENS)
    shared = min(SHARED_PROMPT_TOKENS, words // 2)
    conversation.append({"role": "system", "content": filler(trajectory.domain, shared)})
    conversation.append({"role": "user", "content": filler(trajectory.task_id, words - shared)})


def _append_results(conversation: Conversation, said: Said, seed: str, wanted: int) -> int:
    """Appends the answer and a tool result for each of its calls; returns the tokens of the results.

    ``wanted`` is what the results shall have, the openings of messages and of the next answer included. An
    answer without a call is followed by a user message, as agents do that insist on one.
    """
    conversation.append(said.message)
    framing = max(1, len(said.call_ids)) * MESSAGE_TOKENS + ANSWER_OPENING_TOKENS
    words = max(0, wanted - framing)
    if not said.call_ids:
        conversation.append({"role": "user", "content": filler(seed, words)})
    for place, call_id in enumerate(said.call_ids):
        content = filler(seed, words if place == 0 else 0)
        conversation.append({"role": "tool", "tool_call_id": call_id, "content": content})
    return words + framing
