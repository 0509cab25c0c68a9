"""An engine's KV that leaves for another worker, or arrives from one, without harm to what runs.

KV that leaves is locked while it is read; KV that arrives has its room set aside first. Both take from what
running requests could have evicted, so both are refused where those would come short. What has left stays
behind as any prefix that nobody uses, as old as its last step, until its room is needed: so it is in SGLang.
"""

from typing import Final

from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.kv_pool import KvHold
from heddle_shim.emulator.tokens import count


class KvMoves:
    """Moves of one engine. ``now`` is simulated seconds, as for the engine; counts are tokens."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine

    def hold(self, now: float, tokens: bytes) -> KvHold | None:
        """Locks the longest known prefix; None where running requests need what that would lock."""
        engine = self._engine
        engine.advance(now)
        hold = engine.pool.open(tokens, used=False)
        if engine.pool.obtainable < engine.kv_needed():
            engine.pool.close(hold)
            return None
        engine.disturb()
        return hold

    def let_go(self, now: float, hold: KvHold) -> None:
        """Ends a hold."""
        self._engine.advance(now)
        self._engine.pool.close(hold)
        self._engine.disturb()

    def promise(self, now: float, tokens: int) -> bool:
        """Sets room aside, evicting prefixes that nobody uses; False, and nothing done, without room."""
        engine = self._engine
        engine.advance(now)
        pool = engine.pool
        if tokens > pool.obtainable - engine.kv_needed() or not pool.ensure_free(tokens):
            return False
        pool.promised += tokens
        engine.disturb()
        return True

    def adopt(self, now: float, promised: int, tokens: bytes, present: int = 0) -> int:
        """Ends a promise; ``tokens`` are a known prefix from now on. The first ``present`` of them are held
        already, the others must fit the promise. Returns how many were not known before.
        """
        engine = self._engine
        if count(tokens) > promised + present:
            raise ValueError(f"{count(tokens) - present} tokens arrived for a promise of {promised}")
        engine.advance(now)
        engine.pool.promised -= promised
        known, _ = engine.pool.tree.insert(tokens)
        engine.disturb()
        return count(tokens) - known
