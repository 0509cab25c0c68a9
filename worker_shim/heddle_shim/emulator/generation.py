"""One sequence being generated, and the states it goes through."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from heddle_shim.emulator.kv_pool import KvHold
from heddle_shim.emulator.tokens import ID_BYTES, count


class State(StrEnum):
    """Where a sequence stands in the scheduler."""

    NEW = "new"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    FINISHED = "finished"


MOVES: Final[dict[State, frozenset[State]]] = {
    State.NEW: frozenset({State.WAITING, State.FINISHED}),
    State.WAITING: frozenset({State.PREFILLING, State.FINISHED}),
    State.PREFILLING: frozenset({State.RUNNING, State.WAITING, State.FINISHED}),
    State.RUNNING: frozenset({State.WAITING, State.FINISHED}),
    State.FINISHED: frozenset(),
}
"""Legal moves. Back to waiting is preemption, retraction or a pause that retracts."""


class Ending(StrEnum):
    """Why a sequence finished. ``PLANNED`` is the answer's own end: stop, length or tool calls."""

    PLANNED = "planned"
    ABORTED = "aborted"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Generation:
    """A sequence. ``output`` is the whole answer the model will give; ``made`` says how much of it exists
    by now.

    Times are simulated seconds. ``max_new_tokens`` is what the request asked for, which admission reserves
    by; the answer may be shorter.
    """

    rid: str
    prompt: bytes
    output: bytes
    max_new_tokens: int
    priority: int | None = None
    state: State = State.NEW
    made: int = 0
    """Output tokens sampled."""
    computed: int = 0
    """Tokens of prompt + output whose KV exists."""
    target: int = 0
    """While prefilling: tokens whose KV must exist before the next one is sampled."""
    hold: KvHold | None = None
    order: int = 0
    """Grows with each entry into the waiting queue."""
    rank: int = 0
    """Sort key of the priority, lower first."""
    abort_wanted: bool = False
    ending: Ending | None = None
    message: str = ""
    """Why it was refused or aborted."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix tree at the first admission."""
    retractions: int = 0
    created_at: float = 0.0
    queued_at: float = 0.0
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    prompt_tokens: int = field(init=False)
    limit: int = field(init=False)
    """Tokens of the whole answer."""

    def __post_init__(self) -> None:
        self.prompt_tokens = count(self.prompt)
        self.limit = count(self.output)

    def move(self, to: State) -> None:
        """Changes the state; an illegal move is a fault of the scheduler."""
        if to not in MOVES[self.state]:
            raise AssertionError(f"illegal move of a sequence: {self.state} to {to}")
        self.state = to

    @property
    def complete(self) -> bool:
        return self.made >= self.limit

    @property
    def still_allowed(self) -> int:
        """Output tokens that the request may still ask KV for."""
        return max(0, self.max_new_tokens - self.made)

    @property
    def kv(self) -> KvHold:
        """Its KV; only sequences in a batch have some."""
        if self.hold is None:
            raise AssertionError("a sequence in a batch holds no KV")
        return self.hold

    @property
    def held(self) -> int:
        """KV tokens it holds, in whole pages."""
        return self.kv.shared + self.kv.private

    def sequence(self, length: int) -> bytes:
        """The first ``length`` tokens of prompt + output."""
        if length <= self.prompt_tokens:
            return self.prompt[: length * ID_BYTES]
        return self.prompt + self.output[: (length - self.prompt_tokens) * ID_BYTES]
