"""Runs one engine on the event loop: one timer per worker, one wake-up per request, or per due token for
streams.

Invariant: after every call the timer stands at the engine's next event, or at the next token if somebody
streams.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from heddle_shim.emulator.clock import Clock, Timer
from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.engine_config import PauseMode
from heddle_shim.emulator.generation import Generation, State

STREAM_FLUSH_S: Final = 0.004
"""Real seconds between two writes to a stream at the least: tokens that fall due sooner share a write."""


class DuplicateRequestError(ValueError):
    """A request id that is still in flight was used again."""


class Submission:
    """Sequences of one HTTP request, for the endpoint that waits for them."""

    __slots__ = ("_changed", "_driver", "_seen", "generations", "gone", "unfinished")

    def __init__(self, driver: "EngineDriver", generations: Sequence[Generation]) -> None:
        self._driver = driver
        self._changed = asyncio.Event()
        self._seen = 0
        self.generations = generations
        self.unfinished = len(generations)
        self.gone = False
        """The client left; nobody wants the answer."""

    def made(self) -> list[int]:
        """Output tokens so far, by sequence."""
        return [self._driver.engine.made(generation) for generation in self.generations]

    async def changed(self) -> None:
        """Waits for more tokens (of a stream), the end of all sequences, or ``leave``."""
        if not self.unfinished or self.gone:
            return
        await self._changed.wait()
        self._changed.clear()

    async def ended(self) -> None:
        """Waits for the end of all sequences, or ``leave``."""
        while self.unfinished and not self.gone:
            await self.changed()

    def leave(self) -> None:
        self.gone = True
        self._changed.set()

    def wake_if_grown(self) -> None:
        total = sum(self.made())
        if total > self._seen:
            self._seen = total
            self._changed.set()

    def one_finished(self) -> None:
        self.unfinished -= 1
        self._changed.set()


class EngineDriver:
    """Carries the engine along the clock. All calls come from one event loop."""

    def __init__(self, engine: Engine, clock: Clock, on_finished: Callable[[Generation], None]) -> None:
        self.engine: Final = engine
        self.clock: Final = clock
        self._on_finished = on_finished
        self._by_rid: dict[str, tuple[Generation, Submission]] = {}
        self._streams: set[Submission] = set()
        self._timer: Timer | None = None
        self._armed_for = 0.0

    def submit(self, generations: Sequence[Generation], *, stream: bool) -> Submission:
        """Hands sequences to the engine together.

        Raises:
            DuplicateRequestError: one of their ids is in flight; none is submitted then.
        """
        rids = {generation.rid for generation in generations}
        if len(rids) < len(generations) or not rids.isdisjoint(self._by_rid):
            twice = next((rid for rid in rids if rid in self._by_rid), generations[0].rid)
            raise DuplicateRequestError(f"Duplicate request ID detected: {twice}")
        submission = Submission(self, generations)
        for generation in generations:
            self._by_rid[generation.rid] = (generation, submission)
        if stream:
            self._streams.add(submission)
        self.engine.submit(self.clock.now(), list(generations))
        self._settle()
        return submission

    def abort(self, prefix: str) -> int:
        """Aborts every request whose id starts with ``prefix``, as SGLang does; returns how many."""
        hit = [generation for rid, (generation, _) in self._by_rid.items() if rid.startswith(prefix)]
        self._abort(hit)
        return len(hit)

    def abandon(self, submission: Submission) -> None:
        """Its client has left: aborts what still runs."""
        self._abort(submission.generations)

    def pause(self, mode: PauseMode) -> None:
        self.engine.pause(self.clock.now(), mode)
        self._settle()

    def resume(self) -> None:
        self.engine.resume(self.clock.now())
        self._settle()

    def flush_cache(self) -> bool:
        """Empties the prefix cache; False, and nothing done, while requests are in flight."""
        return self.engine.flush_cache(self.clock.now())

    def catch_up(self) -> None:
        """Brings the engine to the present, before somebody looks in."""
        self.engine.advance(self.clock.now())
        self._settle()

    def in_flight(self) -> int:
        """Sequences that have not ended."""
        return len(self._by_rid)

    def close(self) -> None:
        """Stops the timer; what is in flight never ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort(self, generations: Sequence[Generation]) -> None:
        now = self.clock.now()
        for generation in generations:
            if generation.state is not State.FINISHED:
                self.engine.abort(now, generation)
        self._settle()

    def _settle(self) -> None:
        for generation in self.engine.take_finished():
            _, submission = self._by_rid.pop(generation.rid)
            self._on_finished(generation)
            submission.one_finished()
            if not submission.unfinished:
                self._streams.discard(submission)
        for submission in self._streams:
            submission.wake_if_grown()
        self._arm()

    def _arm(self) -> None:
        due = self.engine.next_event_time()
        if due is not None and self._streams and (token := self.engine.next_token_time()) is not None:
            due = min(due, max(token, self.clock.now() + self.clock.simulated(STREAM_FLUSH_S)))
        if self._timer is not None:
            if due == self._armed_for:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._armed_for = due
            self._timer = self.clock.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.catch_up()
