"""Commands from the shim, as they travel with SGLang's own requests to every rank of an engine.

They are pickled by SGLang's broadcast, so their names and fields are the same in all ranks of one engine.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SetPriority:
    """New priorities by request id; an id that is not known yet is remembered for a while."""

    ticket: int
    priorities: dict[str, int]


@dataclass(frozen=True, slots=True)
class Warm:
    """Load a prefix's pages from the page store into the engine's host memory."""

    ticket: int
    tokens: list[int]
    extra_key: str | None
    cache_salt: str | None


Command = SetPriority | Warm
