"""Decode of one engine: segments of an unchanging batch, and who goes back when the pool runs dry."""

import sys
from collections.abc import Callable
from typing import Final

from heddle_shim.emulator.admission import NewTokenRatio
from heddle_shim.emulator.decode_batch import RETRACT_DECODE_STEPS, DecodeBatch
from heddle_shim.emulator.decode_segment import DecodeSegment
from heddle_shim.emulator.engine_config import EngineConfig
from heddle_shim.emulator.generation import Generation
from heddle_shim.emulator.kv_pool import KvPool
from heddle_shim.emulator.timing import StepCosts
from heddle_shim.emulator.totals import Totals

BLOCKED_ADMISSION_STEPS: Final = 64
"""While requests wait for KV, admission is tried again after so many steps; SGLang tries at every one."""


class Decoding:
    """The decode batch and the segment it is in. ``start`` and ``close`` alternate.

    Invariant: while a segment runs, the pool can give its members the KV of all steps up to ``end``.
    """

    def __init__(
        self, config: EngineConfig, costs: StepCosts, pool: KvPool, ratio: NewTokenRatio, totals: Totals
    ) -> None:
        self._config = config
        self._costs = costs
        self._pool = pool
        self._ratio = ratio
        self._totals = totals
        self.batch: Final = DecodeBatch(pool)
        self._segment = DecodeSegment(0.0, 1.0, 0.0, 0)
        self._steps = 0
        """Steps after which the segment ends; below the segment's own when something has happened."""
        self.seen = 0
        """Steps of the running segment that are complete; 0 while none runs."""

    def make_room(self, requeue: Callable[[Generation], None]) -> None:
        """Hands members to ``requeue``, which frees their KV, until the rest can decode a while
        (retract_decode).

        Only KV that is leaving or arriving can take the room of the last one: it then waits for the end of
        that. Alone it fits: ``submit`` refuses what would not.
        """
        if self.batch.kv_for(1) <= self._pool.obtainable:
            return
        self.batch.order_for_retraction(self._config.retraction_policy)
        while len(self.batch) > 1:
            requeue(self.batch.last())
            if self.batch.kv_for(RETRACT_DECODE_STEPS) <= self._pool.obtainable:
                break
        self._ratio.learn(self.batch, RETRACT_DECODE_STEPS)
        if self.batch.kv_for(1) > self._pool.obtainable:
            requeue(self.batch.last())

    def start(self, at: float, *, blocked: bool) -> None:
        """A segment from now on; there is room for a step. ``blocked``: requests wait for admission."""
        steps = self.batch.steps_that_fit(BLOCKED_ADMISSION_STEPS if blocked else sys.maxsize)
        members = len(self.batch)
        first = self._costs.decode_step(members, self.batch.context())
        self._segment = DecodeSegment(at, first, members * self._costs.decode_context, steps)
        self._steps = steps
        self.seen = 0

    def close(self) -> list[Generation]:
        """Ends the segment; returns the members whose answer is complete, no longer in the batch."""
        steps, self.seen = self._steps, 0
        if steps == 0:
            return []
        self.batch.advance(steps)
        self._totals.decoded(steps, len(self.batch), self._segment.duration(steps))
        self._ratio.decay(steps)
        complete = [generation for generation in self.batch if generation.complete]
        for generation in complete:
            self.batch.leave(generation)
        return complete

    def look(self, now: float) -> None:
        """Brings ``seen`` to ``now``."""
        self.seen = min(self._steps, self._segment.steps_by(now))

    def cut(self, now: float) -> None:
        """The segment ends with the step in progress."""
        steps = self._segment.steps_by(now)
        if self._segment.time_after(steps) < now:
            steps += 1
        self._steps = min(self._steps, steps)

    @property
    def end(self) -> float:
        """When the segment ends."""
        return self._segment.time_after(self._steps)

    @property
    def next_token(self) -> float:
        """When the next step is complete."""
        return self._segment.time_after(min(self.seen + 1, self._steps))

    @property
    def tokens_per_second(self) -> float:
        """Of the whole batch, at the step in progress."""
        return len(self.batch) / (self._segment.first_step + self._segment.growth * self.seen)

    def kv_for_this_step(self) -> int:
        """KV tokens that the members need to end the step in progress, beyond what they hold."""
        return self.batch.kv_for(self.seen + 1) if self.batch else 0
