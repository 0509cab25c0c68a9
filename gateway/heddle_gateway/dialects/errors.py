"""Errors as clients expect them: OpenAI's nested ``{"error": {message, type, param, code}}``, and Anthropic's
``{"type": "error", "error": {type, message}}``.

SGLang's own HTTP errors are flat (``{"object": "error", "message", ...}``, serving_base.py), vLLM's nested,
FastAPI's ``{"detail": ...}``, a proxy's HTML. openai-node shows a flat one as "no body", and agents look for
known texts in the message (litellm's context-window check), so the message survives word for word.

Invariants: what is nested already passes as the same bytes; 429 and 503 always say when to come back, within
the 120 s that the OpenAI SDKs honour.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

# openai-python ignores a longer Retry-After and gives up at once (_base_client.py).
MAX_RETRY_AFTER_S: Final = 120
DEFAULT_RETRY_AFTER_S: Final = 1
# An error page longer than this says nothing more.
MAX_MESSAGE_CHARS: Final = 16_384

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}

# What FastAPI and Starlette say of a path that they do not have. Servers' own 404s (a model) say more.
_NO_ROUTE: Final = {"detail": "Not Found"}
NO_SUCH_ROUTE: Final = ": the worker has no such route; it has to speak the dialect that it is asked in"

# Anthropic's documented types; anthropic-python makes exceptions of the status, Claude Code reads the type.
_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

Headers = list[tuple[bytes, bytes]]


class Shape(StrEnum):
    """How a family's clients expect errors. The Responses API differs from OpenAI's others in its streams."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    RESPONSES = "responses"


def shape_for(path: str) -> Shape:
    """Of a request that reaches no dialect. ``path``: without identity prefixes."""
    return Shape.ANTHROPIC if path.startswith("/v1/messages") else Shape.OPENAI


@dataclass(frozen=True, slots=True)
class ApiError:
    """An error of ours for the caller. ``retry_after_s`` applies to 429 and 503.

    ``retryable`` False adds ``x-should-retry: false``, which the OpenAI SDKs obey.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    retryable: bool = True

    @property
    def type(self) -> str:
        return error_type(self.status)

    def body(self, shape: Shape = Shape.OPENAI) -> bytes:
        return error_body(shape, self.status, self.message, self.param, self.code)

    def headers(self) -> Headers:
        headers: Headers = [(b"content-type", b"application/json")]
        if self.status in (429, 503):
            headers.append((b"retry-after", retry_after(self.retry_after_s)))
        if not self.retryable:
            headers.append((b"x-should-retry", b"false"))
        return headers


def error_body(shape: Shape, status: int, message: str, param: Any = None, code: Any = None) -> bytes:
    """An error of this status."""
    if shape is Shape.ANTHROPIC:
        return anthropic(message, anthropic_type(status))
    return nested(message, error_type(status), param, code)


def anthropic_type(status: int) -> str:
    """Anthropic's ``type`` for an HTTP status."""
    return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def anthropic(message: str, kind: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


def error_type(status: int) -> str:
    """OpenAI's ``type`` for an HTTP status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "internal_server_error")


def retry_after(seconds: float | None) -> bytes:
    """Whole seconds, at least one, at most what clients honour."""
    wanted = DEFAULT_RETRY_AFTER_S if seconds is None else round(seconds + 0.499)
    return b"%d" % min(MAX_RETRY_AFTER_S, max(1, wanted))


def nested(message: str, kind: str, param: Any, code: Any) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def message_of(body: bytes) -> str:
    """The human text of a worker's error body, in whichever of the known shapes it is; empty when there is
    none.
    """
    found = _loads(body)
    if isinstance(found, dict):
        inner = found.get("error")
        for place in (inner, found):
            if isinstance(place, dict) and isinstance(place.get("message"), str):
                return str(place["message"])
        if isinstance(inner, str):
            return inner
        detail = found.get("detail")
        if detail is not None:
            return detail if isinstance(detail, str) else json.dumps(detail)
    return body.decode("utf-8", "replace")[:MAX_MESSAGE_CHARS]


def wrapped(status: int, body: bytes, shape: Shape = Shape.OPENAI) -> bytes:
    """A worker's error body in the shape of its family; the same bytes when it has that shape."""
    found = _loads(body)
    if isinstance(found, dict):
        inner = found.get("error")
        is_nested = isinstance(inner, dict) and "message" in inner
        if is_nested and (shape is not Shape.ANTHROPIC or found.get("type") == "error"):
            return body
        if shape is not Shape.ANTHROPIC and isinstance(found.get("message"), str):
            kind = found.get("type")
            return nested(
                found["message"],
                kind if isinstance(kind, str) else error_type(status),
                found.get("param"),
                found.get("code"),
            )
    message = message_of(body) or f"the worker answered {status}"
    return error_body(shape, status, message + NO_SUCH_ROUTE if found == _NO_ROUTE else message)


def _loads(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # no JSON, or nested as no error is
        return None
