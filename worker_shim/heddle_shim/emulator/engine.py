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

import math
from enum import Enum, auto
from typing import Final

from heddle_shim.emulator.admission import (
    Admission,
    NewTokenRatio,
    PrefillPart,
    PrefillPass,
    WaitingQueue,
    reserved_output,
)
from heddle_shim.emulator.decode_batch import DecodeBatch
from heddle_shim.emulator.decoding import Decoding
from heddle_shim.emulator.engine_config import EngineConfig, PauseMode
from heddle_shim.emulator.generation import Ending, Generation, State
from heddle_shim.emulator.kv_pool import KvPool
from heddle_shim.emulator.timing import StepCosts
from heddle_shim.emulator.totals import Totals


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
        self.totals: Final = Totals()
        self.phase = Phase.IDLE
        self.paused = False
        self.now = 0.0
        self._parts: list[PrefillPart] = []
        self._prefill_ends = 0.0
        self._chunked: Generation | None = None
        self._ratio = NewTokenRatio()
        self._decoding = Decoding(config, costs, self.pool, self._ratio, self.totals)
        self._retract_all = False
        self._aborts_wanted = False
        """A running sequence, or one that will be when its prefill ends, is to be aborted."""
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
        self.disturb()

    def abort(self, now: float, generation: Generation) -> None:
        """Ends it at once while it waits, at the end of the current step while it is in a batch."""
        self.advance(now)
        if generation.state is State.WAITING:
            self.waiting.remove(generation)
            generation.message = "Abort in waiting queue"
            self._end(generation, self.now, Ending.ABORTED)
        elif generation.state in (State.PREFILLING, State.RUNNING):
            generation.abort_wanted = self._aborts_wanted = True
            self.disturb()

    def pause(self, now: float, mode: PauseMode) -> None:
        """Stops after the current step. New requests wait until ``resume``."""
        self.advance(now)
        self.paused = True
        if mode is PauseMode.ABORT:
            for generation in self.live():
                self.abort(now, generation)
        elif mode is PauseMode.RETRACT:
            self._retract_all = True
        self.disturb()

    def resume(self, now: float) -> None:
        self.advance(now)
        self.paused = False
        self.disturb()

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
        if self.phase is Phase.DECODE:
            self._decoding.look(self.now)

    def next_event_time(self) -> float | None:
        """When the batch changes next, if nothing else happens; None while nothing runs."""
        if self.phase is Phase.PREFILL:
            return self._prefill_ends
        if self.phase is Phase.DECODE:
            return self._decoding.end
        return None

    def next_token_time(self) -> float | None:
        """When the next token of a running request is complete; None while none is being decoded."""
        if self.phase is not Phase.DECODE:
            return self.next_event_time()
        return self._decoding.next_token

    # ------------------------------------------------------------------------------------------ looking in

    def take_finished(self) -> list[Generation]:
        """Sequences that ended since the last call."""
        taken, self._finished = self._finished, []
        return taken

    def made(self, generation: Generation) -> int:
        """Its output tokens so far, those of the segment in progress included."""
        return generation.made + (self._decoding.seen if generation.state is State.RUNNING else 0)

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
        return min(self.pool.total, self.pool.used + len(self.running) * self._decoding.seen)

    @property
    def running(self) -> DecodeBatch:
        """Sequences being decoded."""
        return self._decoding.batch

    @property
    def new_token_ratio(self) -> float:
        """Share of the output still allowed to running requests that admission sets KV aside for."""
        return self._ratio.value

    def kv_needed(self) -> int:
        """KV tokens that requests in flight may still ask for; nobody else may take the last of these."""
        started = [*self.running, *(part.generation for part in self._parts)]
        if self._chunked is not None and self._chunked not in started:
            started.append(self._chunked)
        if not started:
            return 0
        pages = self.pool.page_size * len(started)
        prefill: int = sum(max(0, generation.target - generation.computed) for generation in started)
        believed = sum(map(reserved_output, started)) * self._ratio.value
        # Whatever the estimate, the one that may go on longest can.
        longest = max(generation.still_allowed for generation in started)
        step = self._decoding.kv_for_this_step()
        growth: int = math.ceil(max(believed, longest))
        return max(step, growth + prefill + pages)

    def throughput(self) -> float:
        """Output tokens per simulated second right now."""
        return self._decoding.tokens_per_second if self.phase is Phase.DECODE else 0.0

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

    def disturb(self) -> None:
        """Something changed at ``self.now``: look at it when the step in progress ends, or at once when
        idle.
        """
        if self.phase is Phase.IDLE:
            self._settle(self.now)
            self._schedule(self.now)
        elif self.phase is Phase.DECODE:
            self._decoding.cut(self.now)
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
            for generation in self._decoding.close():
                self._end(generation, at, Ending.PLANNED)
        self._enter(Phase.IDLE)
        self._settle(at)
        self._schedule(at)

    def _settle(self, at: float) -> None:
        """Between two steps: ends what was aborted and takes back what a pause retracts."""
        if self._aborts_wanted:
            self._aborts_wanted = False
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
            self._decoding.make_room(lambda generation: self._requeue(generation, at))
        if self.running:
            self._decoding.start(at, blocked=bool(self.waiting))
            self._enter(Phase.DECODE)
        if not self.running and not self.waiting:
            self._ratio.reset()

    # ------------------------------------------------------------------------------------------ prefill

    def _start_prefill(self, at: float) -> bool:
        if not self.waiting and self._chunked is None:
            return False
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
