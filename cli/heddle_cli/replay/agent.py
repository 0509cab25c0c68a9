"""One recorded agent, acted out with the plain openai SDK.

It sends its history, gets a tool call, waits as long as the tool took, appends a result as long as the
recorded one, and goes on. Context sizes follow the record: step k's prompt has ``context_before(k)`` tokens
by the format of ``filler_text``, if every answer has the recorded length. Unless it was given a name,
nothing in a request names the trajectory; retries are left to the SDK.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from openai import AsyncOpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from heddle_cli.replay.filler_text import (
    ANSWER_OPENING_TOKENS,
    MESSAGE_TOKENS,
    TOOLS_TOKENS,
    count_tokens,
    filler,
)
from heddle_cli.replay.loader import RecordedTrajectory

TOOLS: Final[list[ChatCompletionToolParam]] = [
    {
        "type": "function",
        "function": {
            "name": "run_command",
            "description": "Run a command in the shell.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
]
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


@dataclass(frozen=True, slots=True)
class StepResult:
    """One answered step. Times are real seconds of the monotonic clock."""

    asked_at: float
    answered_at: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish_reason: str


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


@dataclass(slots=True)
class _Said:
    """An answer, streamed or whole."""

    message: dict[str, Any]
    call_ids: list[str]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


async def replay(
    client: AsyncOpenAI,
    trajectory: RecordedTrajectory,
    settings: ReplaySettings,
    on_step: Callable[[StepResult], None],
    name: str | None = None,
) -> TrajectoryResult:
    """Runs one agent to its end, or to the first error that the SDK's retries did not cure.

    ``name``: sent as X-Heddle-Trajectory-Id.
    """
    result = TrajectoryResult(trajectory, time.monotonic())
    messages = _opening(trajectory)
    context = trajectory.prompt_tokens
    for index, step in enumerate(trajectory.steps):
        asked = time.monotonic()
        try:
            said = await _ask(client, settings, messages, step.output_tokens, _named(name))
        except OpenAIError as error:
            result.error = f"step {index}: {type(error).__name__}: {error}"
            break
        done = StepResult(
            asked,
            time.monotonic(),
            said.prompt_tokens,
            said.cached_tokens,
            said.output_tokens,
            said.finish_reason,
        )
        result.steps.append(done)
        on_step(done)
        if index + 1 == len(trajectory.steps):
            break
        gap = settings.default_gap_s if step.tool_seconds is None else step.tool_seconds
        await asyncio.sleep(min(gap, settings.max_gap_s) / settings.speed)
        context += step.output_tokens
        wanted = trajectory.context_before(index + 1)
        context += _append_results(messages, said, f"{trajectory.id}/{index}", wanted - context)
    result.ended_at = time.monotonic()
    return result


def _opening(trajectory: RecordedTrajectory) -> list[ChatCompletionMessageParam]:
    """System and user message of exactly the recorded first prompt, or the shortest there can be.

    Samples of one task have the same.
    """
    tools = TOOLS_TOKENS + count_tokens(json.dumps(TOOLS, separators=(",", ":")))
    words = max(2, trajectory.prompt_tokens - tools - 2 * MESSAGE_TOKENS - ANSWER_OPENING_TOKENS)
    shared = min(SHARED_PROMPT_TOKENS, words // 2)
    return [
        {"role": "system", "content": filler(trajectory.domain, shared)},
        {"role": "user", "content": filler(trajectory.task_id, words - shared)},
    ]


def _append_results(messages: list[Any], said: _Said, seed: str, wanted: int) -> int:
    """Appends the answer and a tool result for each of its calls; returns the tokens of the results.

    ``wanted`` is what the results shall have, the openings of messages and of the next answer included. An
    answer without a call is followed by a user message, as agents do that insist on one.
    """
    messages.append(said.message)
    framing = max(1, len(said.call_ids)) * MESSAGE_TOKENS + ANSWER_OPENING_TOKENS
    words = max(0, wanted - framing)
    if not said.call_ids:
        messages.append({"role": "user", "content": filler(seed, words)})
    for place, call_id in enumerate(said.call_ids):
        content = filler(seed, words if place == 0 else 0)
        messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
    return words + framing


def _conversation(messages: list[ChatCompletionMessageParam]) -> dict[str, Any]:
    """The bulk of a request as the SDK's ``extra_body``; the bytes sent are the same.

    Proper arguments are walked field by field against their types at every call. Of a hundred agents with
    long histories in one process that took 25 ms a step: the agents, not the servers, set the pace.
    """
    return {"messages": messages, "tools": TOOLS}


def _named(name: str | None) -> dict[str, str] | None:
    return None if name is None else {"X-Heddle-Trajectory-Id": name}


async def _ask(
    client: AsyncOpenAI,
    settings: ReplaySettings,
    messages: list[ChatCompletionMessageParam],
    tokens: int,
    headers: dict[str, str] | None,
) -> _Said:
    if settings.stream:
        return await _ask_streaming(client, settings, messages, tokens, headers)
    answer = await client.chat.completions.create(
        model=settings.model,
        messages=[],
        max_tokens=tokens,
        extra_body=_conversation(messages),
        extra_headers=headers,
    )
    choice = answer.choices[0]
    usage = answer.usage
    details = usage.prompt_tokens_details if usage else None
    return _Said(
        message=choice.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}),
        call_ids=[call.id for call in choice.message.tool_calls or ()],
        finish_reason=choice.finish_reason,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        output_tokens=usage.completion_tokens if usage else 0,
    )


async def _ask_streaming(
    client: AsyncOpenAI,
    settings: ReplaySettings,
    messages: list[ChatCompletionMessageParam],
    tokens: int,
    headers: dict[str, str] | None,
) -> _Said:
    said = _Said({"role": "assistant"}, [], "", 0, 0, 0)
    content: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    stream = await client.chat.completions.create(
        model=settings.model,
        messages=[],
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=_conversation(messages),
        extra_headers=headers,
    )
    async for chunk in stream:
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            said.prompt_tokens = chunk.usage.prompt_tokens
            said.cached_tokens = (details.cached_tokens or 0) if details else 0
            said.output_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            said.finish_reason = choice.finish_reason or said.finish_reason
            content.append(choice.delta.content or "")
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(
                    part.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                call["id"] = part.id or call["id"]
                if part.function is not None:
                    call["function"]["name"] += part.function.name or ""
                    call["function"]["arguments"] += part.function.arguments or ""
    if text := "".join(content):
        said.message["content"] = text
    if calls:
        said.message["tool_calls"] = [calls[index] for index in sorted(calls)]
        said.call_ids = [call["id"] for call in said.message["tool_calls"]]
    return said
