"""The answer to a step that an operator aborted before any worker had it, or the last of an answer whose
engine cannot be told to stop.

SGLang answers an aborted request with a normal answer whose finish reason is "abort"; partial-rollout loops
(slime's among them) count on that and would send a step again that ended with an error status. Its Responses
API says "failed" instead, and Messages has no such word: there a whole answer is one that was cut at once
("max_tokens", which no client takes for the model's own end), and a stream ends with an error.
"""

import json
from typing import Any, Final

from heddle_gateway.dialects.dialect import CHAT, GENERATE, MESSAGES, RESPONSES, TOKENS, Dialect
from heddle_gateway.dialects.errors import anthropic
from heddle_gateway.dialects.stream_errors import failed_response

MESSAGE: Final = "Aborted by an operator."
# A request may ask for any number of answers, and no worker has seen this one to refuse it: above what
# samplers ask for (OpenAI takes 128), below what would hold the event loop.
MAX_CHOICES: Final = 1024


def aborted_answer(
    dialect: Dialect, *, request_id: str, model: str | None, choices: int, prompt_tokens: int, created: int
) -> bytes:
    """A whole answer without output, of ``choices`` at most `MAX_CHOICES`. ``created``: Unix seconds."""
    return json.dumps(
        _answer(dialect, request_id, model, choices, prompt_tokens, created, stream=False)
    ).encode()


def aborted_stream(
    dialect: Dialect, *, request_id: str, model: str | None, choices: int, prompt_tokens: int, created: int
) -> bytes:
    """The same as an event stream of one event."""
    if dialect is MESSAGES:
        return b"event: error\ndata: " + anthropic(MESSAGE, "api_error") + b"\n\n"
    if dialect is RESPONSES:
        response = failed_response(request_id, model, MESSAGE)
        failed = {"type": "response.failed", "sequence_number": 0, "response": response}
        return b"event: response.failed\ndata: " + json.dumps(failed).encode() + b"\n\n"
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
    choices = min(choices, MAX_CHOICES)
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
    if dialect is TOKENS:
        cut: dict[str, Any] = {"logprobs": None, "finish_reason": "abort", "token_ids": []}
        return {"request_id": request_id, "choices": [{"index": index, **cut} for index in range(choices)]}
    if dialect is RESPONSES:
        return failed_response(request_id, model, MESSAGE)
    if dialect is MESSAGES:
        return {
            "id": request_id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": model or "",
            "stop_reason": "max_tokens",
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
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
