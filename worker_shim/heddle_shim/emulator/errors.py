"""Errors of the HTTP surface, in the shapes SGLang gives them.

/v1 routes: flat ``{"object": "error", ...}`` (serving_base.create_error_response), nested in a stream.
/v1/responses: nested (serving_responses.create_error_response). /v1/messages: Anthropic's
(anthropic/serving.py), where a server error says nothing of its cause.
/generate: ``{"error": {"message": ...}}`` (http_server._create_error_response).
"""

import json
from http import HTTPStatus
from typing import Any, Final

ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""anthropic/serving.py: ERROR_TYPE_MAP."""


class ApiError(Exception):
    """A request that is answered with an error. The message is what the client reads."""

    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param

    def flat(self) -> dict[str, Any]:
        """Body of an error on a /v1 route."""
        phrase = "BadRequestError" if self.status == 400 else HTTPStatus(self.status).phrase.replace(" ", "")
        return {
            "object": "error",
            "message": self.message,
            "type": phrase,
            "param": None,
            "code": self.status,
        }

    def nested(self) -> dict[str, Any]:
        """Body of an error of /generate, and of an error inside a /v1 stream."""
        return {"error": self.flat()}

    def native(self) -> dict[str, Any]:
        """Body of an error of /generate."""
        return {"error": {"message": self.message}}

    def responses(self) -> dict[str, Any]:
        """Body of an error of /v1/responses."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}

    def anthropic(self, *, in_stream: bool = False) -> dict[str, Any]:
        """Body of an error of /v1/messages; the data of an error event, which keeps the cause."""
        message = self.message if self.status < 500 or in_stream else "Internal server error"
        kind = ANTHROPIC_TYPES.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def event(self) -> bytes:
        """The error as an event of a stream."""
        return b"data: " + json.dumps(self.nested()).encode() + b"\n\n"
