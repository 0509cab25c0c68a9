"""What an agent needs of a client: a history that grows, and the next answer to it.

Two fill it: `sdk_conversation` is an agent as people write one, `lean_conversation` costs as little as it
can.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

Message = Mapping[str, Any]

TOOLS: Final[list[dict[str, Any]]] = [
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


class AgentGaveUp(Exception):
    """A step got no answer, and trying again did not help. The message says what happened."""


@dataclass(slots=True)
class Said:
    """An answer. ``message`` goes into the history as it is.

    ``engine_s``: simulated seconds from its arrival at an emulated worker to its last token; None where the
    worker does not say.
    """

    message: dict[str, Any]
    finish_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    engine_s: float | None = None
    call_ids: list[str] = field(default_factory=list)


class Conversation(Protocol):
    """One agent's messages, sent whole with every step."""

    def append(self, message: Message) -> None:
        """The history goes on with this message."""
        ...

    async def answer(self, tokens: int) -> Said:
        """Asks for the next answer, of at most ``tokens``; it is not appended by itself.

        Raises:
            AgentGaveUp: there is none.
        """
        ...
