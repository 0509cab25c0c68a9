"""The answer to a step that an operator aborted before any worker had it.

SGLang answers an aborted request with a normal answer whose finish reason is "abort"; partial-rollout loops
(slime's among them) count on that and would send a step again that ended with an error status.
"""

import json
from typing import Any

from heddle_gateway.dialects.dialect import CHAT, GENERATE, Dialect

MESSAGE = "Aborted before it began."


def aborted_answer(
    dialect: Dialect, *, request_id: str, model: str | None, choices: int, prompt_tokens: int, created: int
) -> bytes:
    """A whole answer without output. ``created``: Unix seconds."""
    return json.dumps(
        _answer(dialect, request_id, model, choices, prompt_tokens, created, stream=False)
    ).encode()


def aborted_stream(
    dialect: Dialect, *, request_id: str, model: str | None, choices: int, prompt_tokens: int, created: int
) -> bytes:
    """The same as an event stream of one event."""
    event = _answer(dialect, request_id, model, choices, prompt_tokens, created, stream=True)
    return b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"


def _answer(
    dialect: Dialect,
    request_id: str,
    model: str | None,
    choices: int,
    prompt_tokens: int,
    created: int,
    *,
    stream: bool,
) -> dict[str, Any]:
    if dialect is GENERATE:
        return {
            "text": "",
            "output_ids": [],
            "meta_info": {
                "id": request_id,
                "finish_reason": {"type": "abort", "message": MESSAGE},
                "prompt_tokens": prompt_tokens,
                "completion_tokens": 0,
                "cached_tokens": 0,
            },
        }
    if dialect is CHAT:
        kind = "chat.completion.chunk" if stream else "chat.completion"
        said: dict[str, Any] = {"delta" if stream else "message": {"role": "assistant", "content": ""}}
    else:
        kind = "text_completion"
        said = {"text": ""}
    answer: dict[str, Any] = {
        "id": request_id,
        "object": kind,
        "created": created,
        "model": model or "",
        "choices": [
            {"index": index, **said, "logprobs": None, "finish_reason": "abort"} for index in range(choices)
        ],
    }
    if not stream:
        answer["usage"] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 0,
            "total_tokens": prompt_tokens,
        }
    return answer
