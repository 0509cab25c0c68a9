"""The scheduler of one worker: SGLang's continuous batching as a state machine in simulated time.

It never waits and never looks at a clock: ``advance(now)`` carries out everything due by ``now``, each
event at its own time, so a late caller changes nothing. Between two boundaries (end of a prefill batch; a
request finishing, arriving or leaving; the pool running dry) the batch is constant and decode is computed
in closed form.

Rules kept from SGLang 0.5.23 (managers/scheduler.py, schedule_policy.py, schedule_batch.py): prefill first,
decode waits for it; long prompts in chunks; lack of KV ends admission and preempts nobody; preemption only
when every slot is taken, and strictly above the threshold; preempted and retracted requests lose the KV of
what they decoded, keep their output, and queue again behind their equals; a finished or aborted request's
KV, decoded tokens included, enters the prefix tree.
"""

import sys
from enum import Enum, auto
from typing import Final

from heddle_shim.emulator.admission import (
    Admission,
    NewTokenRatio,
    PrefillPart,
    PrefillPass,
    WaitingQueue,
)
from heddle_shim.emulator.decode_batch import RETRACT_DECODE_STEPS, DecodeBatch
from heddle_shim.emulator.decode_segment import DecodeSegment
from heddle_shim.emulator.engine_config import EngineConfig, PauseMode
from heddle_shim.emulator.generation import Ending, Generation, State
from heddle_shim.emulator.kv_pool import KvPool
from heddle_shim.emulator.timing import StepCosts
from heddle_shim.emulator.totals import Totals

BLOCKED_ADMISSION_STEPS: Final = 64
"""While requests wait for KV, admission is tried again after so many steps; SGLang tries at every one."""


class Phase(Enum):
    """What the modelled GPU does. Every step and batch ends in ``IDLE``, where the scheduler decides."""

    IDLE = auto()
    PREFILL = auto()
    DECODE = auto()


PHASE_MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.IDLE: frozenset({Phase.PREFILL, Phase.DECODE}),
    Phase.PREFILL: frozenset({Phase.IDLE}),
    Phase.DECODE: frozenset({Phase.IDLE}),
}


class Engine:
    """One worker. Methods take ``now`` in simulated seconds, which never goes back."""

    def __init__(self, config: EngineConfig, costs: StepCosts) -> None:
        self.config: Final = config
        self.costs: Final = costs
        self.pool: Final = KvPool(config.max_total_num_tokens, config.page_size)
        self.waiting: Final = WaitingQueue(
            by_priority=config.enable_priority_scheduling,
            low_first=config.schedule_low_priority_values_first,
            default_priority=config.default_priority_value,
        )
        self.running: Final = DecodeBatch(self.pool)
        self.totals: Final = Totals()
        self.phase = Phase.IDLE
        self.paused = False
        self.now = 0.0
        self._parts: list[PrefillPart] = []
        self._prefill_ends = 0.0
        self._chunked: Generation | None = None
        self._segment = DecodeSegment(0.0, 1.0, 0.0, 0)
        self._segment_steps = 0
        """Steps after which the segment ends; below the segment's own when something has happened."""
        self._steps_seen = 0
        self._ratio = NewTokenRatio()
        self._retract_all = False
        self._finished: list[Generation] = []

    # ------------------------------------------------------------------------------------------ events

    def submit(self, now: float, generations: list[Generation]) -> None:
        """Requests that arrived together. Each ends up in ``take_finished`` exactly once."""
        self.advance(now)
        for generation in generations:
            generation.created_at = self.now
            self.totals.requests += 1
            if generation.abort_wanted:
                self._end(generation, self.now, Ending.ABORTED)
                continue
            room = self.pool.total - generation.prompt_tokens
            generation.max_new_tokens = min(generation.max_new_tokens, room)
            if generation.limit > room:
                generation.message = (
                    f"The request needs more KV than the {self.pool.total} tokens of this worker."
                )
                self._end(generation, self.now, Ending.REFUSED)
                continue
            self.waiting.enter(generation, self.now)
            if (bound := self.config.max_queued_requests) is not None and len(self.waiting) > bound:
                self._refuse_worst(newcomer=generation)
        self._disturb()

    def abort(self, now: float, generation: Generation) -> None:
        """Ends it at once while it waits, at the end of the current step while it is in a batch."""
        self.advance(now)
        if generation.state is State.WAITING:
            self.waiting.remove(generation)
            generation.message = "Abort in waiting queue"
            self._end(generation, self.now, Ending.ABORTED)
        elif generation.state in (State.PREFILLING, State.RUNNING):
            generation.abort_wanted = True
            self._disturb()

    def pause(self, now: float, mode: PauseMode) -> None:
        """Stops after the current step. New requests wait until ``resume``."""
        self.advance(now)
        self.paused = True
        if mode is PauseMode.ABORT:
            for generation in self.live():
                self.abort(now, generation)
        elif mode is PauseMode.RETRACT:
            self._retract_all = True
        self._disturb()

    def resume(self, now: float) -> None:
        self.advance(now)
        self.paused = False
        self._disturb()

    def flush_cache(self, now: float) -> bool:
        """Empties the prefix tree; False, and nothing done, unless the worker is idle."""
        self.advance(now)
        if self.live():
            return False
        self.pool.tree.reset()
        return True

    # ------------------------------------------------------------------------------------------ time

    def advance(self, now: float) -> None:
        """Carries out all that is due by ``now``."""
        while (due := self.next_event_time()) is not None and due <= now:
            self._reach_boundary(due)
        self.now = max(self.now, now)
        self._steps_seen = self._steps_by(self.now) if self.phase is Phase.DECODE else 0

    def next_event_time(self) -> float | None:
        """When the batch changes next, if nothing else happens; None while nothing runs."""
        if self.phase is Phase.PREFILL:
            return self._prefill_ends
        if self.phase is Phase.DECODE:
            return self._segment.time_after(self._segment_steps)
        return None

    def next_token_time(self) -> float | None:
        """When the next token of a running request is complete; None while none is being decoded."""
        if self.phase is not Phase.DECODE:
            return self.next_event_time()
        return self._segment.time_after(min(self._steps_seen + 1, self._segment_steps))

    # ------------------------------------------------------------------------------------------ looking in

    def take_finished(self) -> list[Generation]:
        """Sequences that ended since the last call."""
        taken, self._finished = self._finished, []
        return taken

    def made(self, generation: Generation) -> int:
        """Its output tokens so far, those of the segment in progress included."""
        if generation.state is State.RUNNING and self.phase is Phase.DECODE:
            return generation.made + self._steps_seen
        return generation.made

    def live(self) -> list[Generation]:
        """Every sequence that has not ended."""
        prefilling = [part.generation for part in self._parts]
        if self._chunked is not None and self._chunked not in prefilling:
            prefilling.append(self._chunked)
        return [*self.waiting, *prefilling, *self.running]

    def running_count(self) -> int:
        """Requests that hold a slot."""
        return len(self.live()) - len(self.waiting)

    def used_tokens(self) -> int:
        """KV tokens that requests in flight need."""
        decoding = len(self.running) * self._steps_seen if self.phase is Phase.DECODE else 0
        return min(self.pool.total, self.pool.used + decoding)

    @property
    def new_token_ratio(self) -> float:
        """Share of the output still allowed to running requests that admission sets KV aside for."""
        return self._ratio.value

    def throughput(self) -> float:
        """Output tokens per simulated second right now."""
        if self.phase is not Phase.DECODE:
            return 0.0
        step = self._segment.first_step + self._segment.growth * self._steps_seen
        return len(self.running) / step

    def audit(self) -> list[str]:
        """Broken invariants, empty when all is well."""
        faults = self.pool.audit()
        live = self.live()
        if len(set(map(id, live))) != len(live):
            faults.append("a sequence is in two places")
        if self.running_count() > self.config.max_running_requests:
            faults.append("more sequences than slots")
        if any(gen.state is not State.RUNNING or gen.complete for gen in self.running):
            faults.append("a sequence in the decode batch is not running")
        if any(gen.state is not State.WAITING or gen.hold is not None for gen in self.waiting):
            faults.append("a queued sequence holds KV or is not waiting")
        private = sum(gen.hold.private for gen in live if gen.hold is not None)
        if private != self.pool.private:
            faults.append(f"requests hold {private} private tokens, the pool counts {self.pool.private}")
        return faults

    # ------------------------------------------------------------------------------------------ boundaries

    def _disturb(self) -> None:
        """Something changed at ``self.now``: look at it when the step in progress ends, or at once when
        idle.
        """
        if self.phase is Phase.IDLE:
            self._settle(self.now)
            self._schedule(self.now)
        elif self.phase is Phase.DECODE:
            steps = self._segment.steps_by(self.now)
            if self._segment.time_after(steps) < self.now:
                steps += 1
            self._segment_steps = min(self._segment_steps, steps)
        self.advance(self.now)

    def _enter(self, phase: Phase) -> None:
        if phase not in PHASE_MOVES[self.phase]:
            raise AssertionError(f"illegal move of the engine: {self.phase} to {phase}")
        self.phase = phase

    def _reach_boundary(self, at: float) -> None:
        self.now = at
        if self.phase is Phase.PREFILL:
            self._close_prefill(at)
        else:
            self._close_segment(at)
        self._enter(Phase.IDLE)
        self._steps_seen = 0
        self._settle(at)
        self._schedule(at)

    def _settle(self, at: float) -> None:
        """Between two steps: ends what was aborted and takes back what a pause retracts."""
        for generation in [gen for gen in self.running if gen.abort_wanted]:
            self.running.leave(generation)
            self._end(generation, at, Ending.ABORTED)
        if self._chunked is not None and self._chunked.abort_wanted:
            chunked, self._chunked = self._chunked, None
            self._end(chunked, at, Ending.ABORTED)
        if self._retract_all:
            self._retract_all = False
            retracted = self.running.clear()
            if self._chunked is not None:
                retracted.append(self._chunked)
                self._chunked = None
            for generation in retracted:
                self._requeue(generation, at)

    def _schedule(self, at: float) -> None:
        """One pass of the scheduler's loop: a prefill batch if anybody can be admitted, else decode."""
        if self.paused:
            return
        if self._start_prefill(at):
            return
        if self.running:
            self._start_segment(at)
        if not self.running and not self.waiting:
            self._ratio.reset()

    # ------------------------------------------------------------------------------------------ prefill

    def _start_prefill(self, at: float) -> bool:
        adder = PrefillPass(self.pool, self.running, self._ratio.value, self.config.chunked_prefill_size)
        if self._chunked is not None and adder.resume(self._chunked) is not Admission.ADDED:
            # Nothing can be evicted for the rest of a prompt: give its KV back and queue it again.
            self._requeue(self._chunked, at)
            self._chunked = None
            return False
        for generation in list(self.waiting):
            if len(self.running) + len(
                adder.parts
            ) >= self.config.max_running_requests and not self._preempt_for(generation, adder, at):
                break
            if adder.add(generation) is not Admission.ADDED:
                break
            self.waiting.remove(generation)
            self._admit(generation, at)
        if not adder.parts:
            return False
        self._chunked = None
        self._parts = adder.parts
        self._enter(Phase.PREFILL)
        busy = self.costs.prefill([(part.end - part.start, part.start) for part in self._parts])
        self.totals.prefilled(sum(part.end - part.start for part in self._parts), busy)
        self._prefill_ends = at + busy
        return True

    def _admit(self, generation: Generation, at: float) -> None:
        generation.move(State.PREFILLING)
        if generation.admitted_at is None:
            generation.admitted_at = at
            generation.cached_tokens = generation.computed
            self.totals.prompt_tokens += generation.prompt_tokens
            self.totals.cached_tokens += generation.cached_tokens

    def _close_prefill(self, at: float) -> None:
        parts, self._parts = self._parts, []
        for part in parts:
            generation = part.generation
            generation.computed = part.end
            self.pool.publish(generation.kv, generation.sequence(part.end))
            if not part.last:
                self._chunked = generation
                continue
            if not generation.complete:
                generation.made += 1
                self.totals.output_tokens += 1
                if generation.first_token_at is None:
                    generation.first_token_at = at
            if generation.complete:
                self._end(generation, at, Ending.PLANNED)
            elif generation.abort_wanted:
                self._end(generation, at, Ending.ABORTED)
            else:
                self.running.join(generation)

    def _preempt_for(self, generation: Generation, adder: PrefillPass, at: float) -> bool:
        config = self.config
        if not config.enable_priority_scheduling or config.disable_priority_preemption:
            return False
        victims = adder.victims_for(generation, self.running, config.priority_scheduling_preemption_threshold)
        for victim in victims:
            self.running.leave(victim)
            adder.forget(victim)
            self.totals.preemptions += 1
            self._requeue(victim, at)
        return bool(victims)

    # ------------------------------------------------------------------------------------------ decode

    def _start_segment(self, at: float) -> None:
        if self.running.kv_for(1) > self.pool.obtainable:
            self._retract(at)
        limit = BLOCKED_ADMISSION_STEPS if self.waiting else sys.maxsize
        steps = self.running.steps_that_fit(limit)
        batch = len(self.running)
        first = self.costs.decode_step(batch, self.running.context())
        self._segment = DecodeSegment(at, first, batch * self.costs.decode_context, steps)
        self._segment_steps = steps
        self._steps_seen = 0
        self._enter(Phase.DECODE)

    def _steps_by(self, now: float) -> int:
        return min(self._segment_steps, self._segment.steps_by(now))

    def _close_segment(self, at: float) -> None:
        steps = self._segment_steps
        if steps == 0:
            return
        self.running.advance(steps)
        self.totals.decoded(steps, len(self.running), self._segment.duration(steps))
        self._ratio.decay(steps)
        for generation in [gen for gen in self.running if gen.complete]:
            self.running.leave(generation)
            self._end(generation, at, Ending.PLANNED)

    def _retract(self, at: float) -> None:
        """The pool is dry: sends requests back until the rest can decode a while (retract_decode).

        One is always left, and fits: ``submit`` refuses what alone would not.
        """
        self.running.order_for_retraction(self.config.retraction_policy)
        while len(self.running) > 1:
            self._requeue(self.running.last(), at)
            if self.running.kv_for(RETRACT_DECODE_STEPS) <= self.pool.obtainable:
                break
        self._ratio.learn(self.running, RETRACT_DECODE_STEPS)

    # ------------------------------------------------------------------------------------------ leaving

    def _requeue(self, generation: Generation, at: float) -> None:
        """Back to the queue without the KV it decoded (release_req, reset_for_retract)."""
        self.pool.close(generation.kv)
        generation.hold = None
        generation.computed = 0
        generation.retractions += 1
        self.totals.retractions += 1
        self.waiting.enter(generation, at)

    def _refuse_worst(self, newcomer: Generation) -> None:
        """The queue is over its bound: the worst leaves (_abort_on_queued_limit)."""
        worst = self.waiting.worst()
        self.waiting.remove(worst)
        worst.message = (
            "The request queue is full."
            if worst is newcomer
            else "The request is aborted by a higher priority request."
        )
        self._end(worst, self.now, Ending.REFUSED)

    def _end(self, generation: Generation, at: float, ending: Ending) -> None:
        if generation.hold is not None:
            self.pool.close(generation.hold, keep=generation.sequence(generation.computed))
            generation.hold = None
        if ending is not Ending.PLANNED:
            self.totals.aborted += 1
        generation.ending = ending
        generation.finished_at = at
        generation.move(State.FINISHED)
        self._finished.append(generation)
