"""Who is prefilled next: SGLang's PrefillAdder (managers/schedule_policy.py) and the waiting queue it reads.

One ``PrefillPass`` is one attempt to form a prefill batch. It reserves KV as it admits, so it cannot
promise what the pool does not have. What running requests may still ask for is reserved too, scaled by the
new-token ratio.
"""

import sys
from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from heddle_shim.emulator.generation import Generation, State
from heddle_shim.emulator.kv_pool import KvPool
from heddle_shim.emulator.tokens import ID_BYTES

CLIP_MAX_NEW_TOKENS: Final = 4096
"""Admission reserves at most so many output tokens a request (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)."""


INITIAL_NEW_TOKEN_RATIO: Final = 0.7
MIN_NEW_TOKEN_RATIO: Final = 0.7 * 0.14
NEW_TOKEN_RATIO_DECAY: Final = (INITIAL_NEW_TOKEN_RATIO - MIN_NEW_TOKEN_RATIO) / 600
"""Per decode step (SGLANG_INIT_NEW_TOKEN_RATIO, _MIN_..._FACTOR, _DECAY_STEPS)."""


class NewTokenRatio:
    """The share of their remaining allowance that running requests are believed to use.

    It falls while decode goes well and rises to what a retraction has shown to be needed.
    """

    def __init__(self) -> None:
        self.value = INITIAL_NEW_TOKEN_RATIO

    def reset(self) -> None:
        """The engine is idle."""
        self.value = INITIAL_NEW_TOKEN_RATIO

    def decay(self, steps: int) -> None:
        """So many decode steps went well."""
        self.value = max(MIN_NEW_TOKEN_RATIO, self.value - steps * NEW_TOKEN_RATIO_DECAY)

    def learn(self, running: Iterable[Generation], margin: int) -> None:
        """A retraction left these; ``margin`` is the steps each has room for."""
        kept = list(running)
        decoded = sum(generation.made + margin for generation in kept)
        allowed = sum(generation.max_new_tokens for generation in kept)
        self.value = min(1.0, decoded / (allowed + 1))


class Admission(Enum):
    """What came of one candidate."""

    ADDED = auto()
    NO_TOKEN = auto()
    """The KV pool lacks room. Ends the pass: nobody overtakes, nobody is preempted."""
    NO_BUDGET = auto()
    """The chunk is full."""


@dataclass(frozen=True, slots=True)
class PrefillPart:
    """Tokens ``start`` to ``end`` of one sequence, prefilled in this batch."""

    generation: Generation
    start: int
    end: int

    @property
    def last(self) -> bool:
        """Whether the sequence samples its next token at the end of this part."""
        return self.end == self.generation.target


class WaitingQueue:
    """Sorted by (rank, entry): priority first, then first come. One total order, as entries are numbered."""

    def __init__(self, *, by_priority: bool, low_first: bool, default_priority: int | None) -> None:
        self._by_priority = by_priority
        self._sign = 1 if low_first else -1
        # SGLang gives a request without a priority the lowest there is.
        worst = sys.maxsize if low_first else -sys.maxsize - 1
        self._default = worst if default_priority is None else default_priority
        self._entries = 0
        self._queue: list[Generation] = []

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._queue)

    def enter(self, generation: Generation, now: float) -> None:
        """Queues it behind its equals."""
        self._entries += 1
        priority = self._default if generation.priority is None else generation.priority
        generation.rank = self._sign * priority if self._by_priority else 0
        generation.order = self._entries
        generation.queued_at = now
        generation.move(State.WAITING)
        insort(self._queue, generation, key=_queue_key)

    def remove(self, generation: Generation) -> None:
        self._queue.remove(generation)

    def worst(self) -> Generation:
        """The one that would be served last."""
        return self._queue[-1]

    def drain(self) -> list[Generation]:
        """Takes all out, in order."""
        taken, self._queue = self._queue, []
        return taken


def _queue_key(generation: Generation) -> tuple[int, int]:
    return generation.rank, generation.order


def reserved_output(generation: Generation) -> int:
    """Output tokens admission sets aside for it, before the ratio."""
    return min(generation.still_allowed, CLIP_MAX_NEW_TOKENS)


class PrefillPass:
    """Forms one prefill batch of at most ``chunk`` new tokens."""

    def __init__(self, pool: KvPool, running: Iterable[Generation], ratio: float, chunk: int) -> None:
        self._pool = pool
        self._ratio = ratio
        self._chunk = chunk
        self._reserved = sum(reserved_output(gen) for gen in running) * ratio
        self.parts: list[PrefillPart] = []

    @property
    def _room(self) -> float:
        return self._pool.obtainable - self._reserved

    def resume(self, generation: Generation) -> Admission:
        """Goes on with the sequence whose prompt was cut by the last pass; it comes before all others."""
        end = self._chunk_end(generation.computed, generation.target)
        if generation.hold is None or not self._pool.grow(generation.hold, end):
            return Admission.NO_TOKEN
        self._take(generation, generation.computed, end)
        return Admission.ADDED

    def add(self, generation: Generation) -> Admission:
        """Admits a waiting sequence, whole or as much of it as the chunk holds."""
        target = generation.prompt_tokens + generation.made
        # At least one token is computed, or there would be nothing to sample from.
        hold = self._pool.open(generation.sequence(target)[:-ID_BYTES])
        new = target - hold.shared
        end = self._chunk_end(hold.shared, target)
        if new + reserved_output(generation) > self._room:
            self._pool.close(hold)
            return Admission.NO_TOKEN
        if end <= hold.shared:
            self._pool.close(hold)
            return Admission.NO_BUDGET
        if not self._pool.grow(hold, end):
            self._pool.close(hold)
            return Admission.NO_TOKEN
        generation.hold = hold
        generation.computed = hold.shared
        generation.target = target
        self._take(generation, hold.shared, end)
        return Admission.ADDED

    def victims_for(
        self, generation: Generation, running: Iterable[Generation], threshold: int
    ) -> list[Generation]:
        """Running sequences to preempt for this one (preempt_to_schedule): lowest priority first, newest
        first.

        Each must be worse by strictly more than ``threshold``. Empty if that does not make room.
        """
        target = generation.prompt_tokens + generation.made
        shared, _ = self._pool.tree.match(generation.sequence(target)[:-ID_BYTES])
        lacking = target - shared + reserved_output(generation) - self._room
        victims: list[Generation] = []
        for candidate in sorted(running, key=_queue_key, reverse=True):
            if candidate.rank - generation.rank <= threshold:
                break
            victims.append(candidate)
            # What was set aside for it counts, the KV it gives back does not (running_request_credit).
            lacking -= reserved_output(candidate) * self._ratio
            if lacking <= 0:
                return victims
        return []

    def forget(self, generation: Generation) -> None:
        """A running sequence was preempted: nothing is set aside for it any more."""
        self._reserved -= reserved_output(generation) * self._ratio

    def _chunk_end(self, start: int, target: int) -> int:
        """Where this batch's part of a sequence ends: its target, or the last whole page the chunk holds."""
        if target - start <= self._chunk:
            return target
        return start + self._chunk // self._pool.page_size * self._pool.page_size

    def _take(self, generation: Generation, start: int, end: int) -> None:
        self._chunk -= end - start
        if end == generation.target:
            self._reserved += reserved_output(generation)
        self.parts.append(PrefillPart(generation, start, end))
