"""Which tokens a finished request had: a shim is told to move the KV of a request by its id."""

from collections import OrderedDict
from typing import Final

from heddle_shim.emulator.generation import Generation

MAX_TOKENS: Final = 2_000_000
"""Tokens remembered at most, 4 bytes each; the least recently finished go first."""
POOLS: Final = 4
"""As many pools of tokens are remembered: each step of a trajectory repeats its history."""


class Histories:
    """Prompt and answer by request id, bounded by their tokens."""

    def __init__(self, pool_tokens: int) -> None:
        self._limit = min(MAX_TOKENS, POOLS * pool_tokens)
        self._held = 0
        self._by_rid: OrderedDict[str, Generation] = OrderedDict()

    def note(self, generation: Generation) -> None:
        """Takes a sequence that has ended."""
        if not generation.computed:
            return
        self._forget(generation.rid)
        self._by_rid[generation.rid] = generation
        self._held += generation.computed
        while self._held > self._limit:
            self._forget(next(iter(self._by_rid)))

    def tokens(self, rid: str) -> bytes | None:
        """The tokens whose KV existed when the request ended; None if it is not remembered."""
        generation = self._by_rid.get(rid)
        return None if generation is None else generation.sequence(generation.computed)

    def _forget(self, rid: str) -> None:
        gone = self._by_rid.pop(rid, None)
        if gone is not None:
            self._held -= gone.computed
