"""An error as the last event of a stream, in each family's form. No mark of a good end follows: clients take
that for success.
"""

import json
import time
from typing import Protocol

from heddle_gateway.dialects.errors import Shape, message_of


class Seen(Protocol):
    """What of an answer has gone to the client (heddle_core.Answer)."""

    @property
    def response_id(self) -> str | None: ...
    @property
    def sequence(self) -> int | None: ...


def error_event(shape: Shape, error: bytes, seen: Seen | None, response_id: str, model: str | None) -> bytes:
    """``error``: its body as an answer of its own. ``response_id``: of a response that has not begun."""
    if shape is Shape.ANTHROPIC:
        return b"event: error\ndata: " + error + b"\n\n"
    if shape is Shape.OPENAI:
        return b"data: " + error + b"\n\n"
    # Codex and the SDKs end a stream at one of three events and take anything else for a cut line.
    began = seen.response_id if seen is not None else None
    number = seen.sequence if seen is not None else None
    failed = failed_response(began or response_id, model, message_of(error))
    event = {
        "type": "response.failed",
        "sequence_number": 0 if number is None else number + 1,
        "response": failed,
    }
    return b"event: response.failed\ndata: " + json.dumps(event).encode() + b"\n\n"


def failed_response(response_id: str, model: str | None, message: str) -> dict[str, object]:
    """A Response of status "failed", with every field that the SDKs require."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "failed",
        "error": {"code": "server_error", "message": message},
        "incomplete_details": None,
        "instructions": None,
        "metadata": None,
        "model": model or "",
        "output": [],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }
