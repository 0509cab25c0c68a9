"""Errors of the HTTP surface, in the shapes SGLang gives them.

/v1 routes: flat ``{"object": "error", ...}`` (serving_base.create_error_response), nested in a stream.
/generate: ``{"error": {"message": ...}}`` (http_server._create_error_response).
"""

import json
from http import HTTPStatus
from typing import Any


class ApiError(Exception):
    """A request that is answered with an error. The message is what the client reads."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status

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

    def event(self) -> bytes:
        """The error as an event of a stream."""
        return b"data: " + json.dumps(self.nested()).encode() + b"\n\n"
