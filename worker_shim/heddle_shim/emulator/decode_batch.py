"""The sequences being decoded together: what KV they need, and who goes back when the pool runs dry."""

from collections.abc import Iterator
from typing import Final, Literal

from heddle_shim.emulator.generation import Generation, State
from heddle_shim.emulator.kv_pool import KvPool

RETRACT_DECODE_STEPS: Final = 20
"""Steps a retraction makes room for (SGLANG_RETRACT_DECODE_STEPS)."""


class DecodeBatch:
    """Members are in state ``RUNNING`` and hold the KV of all their tokens but the last sampled one: with
    pages of one token exactly as many tokens as are computed.
    """

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self._members: list[Generation] = []

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._members)

    def join(self, generation: Generation) -> None:
        generation.move(State.RUNNING)
        self._members.append(generation)

    def leave(self, generation: Generation) -> None:
        self._members.remove(generation)

    def clear(self) -> list[Generation]:
        """Takes all out."""
        taken, self._members = self._members, []
        return taken

    def context(self) -> int:
        """KV tokens that one decode step reads."""
        return sum(generation.computed for generation in self._members)

    def kv_for(self, steps: int) -> int:
        """KV tokens the members still need for so many steps."""
        if self._pool.page_size == 1:
            return steps * len(self._members)
        pages = self._pool.pages
        return sum(max(0, pages(one.computed + steps) - one.held) for one in self._members)

    def steps_that_fit(self, limit: int) -> int:
        """Steps until the first member finishes, ``limit`` or the end of the KV; one step is known to fit."""
        steps = min(limit, min(one.limit - one.made for one in self._members))
        if self.kv_for(steps) <= self._pool.obtainable:
            return steps
        low, high = 1, steps
        while low < high:
            middle = (low + high + 1) // 2
            if self.kv_for(middle) <= self._pool.obtainable:
                low = middle
            else:
                high = middle - 1
        return low

    def advance(self, steps: int) -> None:
        """Every member samples ``steps`` tokens."""
        if self._pool.page_size == 1:
            # Each takes as many tokens, so room is made once; this runs for every member of every segment.
            if not self._pool.grow_each([one.kv for one in self._members], steps):
                raise AssertionError("a decode segment outran the KV pool")
            for generation in self._members:
                generation.made += steps
                generation.computed += steps
            return
        for generation in self._members:
            generation.made += steps
            generation.computed += steps
            if not self._pool.grow(generation.kv, generation.computed):
                raise AssertionError("a decode segment outran the KV pool")

    def order_for_retraction(self, policy: Literal["length", "priority"]) -> None:
        """Puts whoever goes back first at the end (_get_decode_retraction_order)."""
        if policy == "priority":
            self._members.sort(key=lambda one: (one.rank, -one.made, one.prompt_tokens))
        else:
            self._members.sort(key=lambda one: (-one.made, one.prompt_tokens))

    def last(self) -> Generation:
        """Takes out the one at the end."""
        return self._members.pop()
