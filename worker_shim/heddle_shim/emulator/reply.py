"""What the generation routes have in common: a reply that knows its sequences and how to say them."""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.generation import Ending, Generation, State
from heddle_shim.emulator.sampling import Choice, PromptWork

DONE = b"data: [DONE]\n\n"


class Reply(Protocol):
    """The answer to one request, whole or as a stream of events.

    ``opening``: events that SGLang sends before there is a token, and its status 200 with them; None where it
    waits for the first token, so that a refusal before it has a status of its own.
    """

    opening: bytes | None

    @property
    def stream(self) -> bool: ...

    @property
    def works(self) -> Sequence[PromptWork]: ...

    def refused(self, error: ApiError) -> bytes:
        """The events that end a stream which has begun."""
        ...

    def whole(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The JSON body once every sequence has ended."""
        ...

    def frames(self, made: Sequence[int]) -> bytes:
        """Events for what is new; ``made`` is the tokens each sequence has, in the order of ``works``."""
        ...


def named_event(payload: dict[str, Any]) -> bytes:
    """One server-sent event with its type as its name."""
    return b"event: " + str(payload["type"]).encode() + b"\n" + event(payload)


def event(payload: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def ended(generation: Generation) -> bool:
    return generation.state is State.FINISHED


def finish_word(choice: Choice) -> str:
    """OpenAI's finish_reason, and SGLang's "abort" for what was cut off."""
    if choice.generation.ending is Ending.ABORTED:
        return "abort"
    return str(choice.answer.finish)


def matched_stop(choice: Choice) -> int | str | None:
    """What the answer stopped at; None for what was cut off."""
    return None if choice.generation.ending is Ending.ABORTED else choice.answer.matched_stop


def usage_of(works: Sequence[PromptWork], made: Sequence[int], *, cache_report: bool) -> dict[str, Any]:
    """The usage object. cached_tokens is what lay in the cache before the request, counted once a prompt."""
    prompt = sum(work.choices[0].generation.prompt_tokens for work in works)
    output = sum(made)
    cached = sum(work.cached_tokens for work in works)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached} if cache_report else None,
        "reasoning_tokens": 0,
    }
