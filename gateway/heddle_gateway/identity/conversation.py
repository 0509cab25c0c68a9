"""A trajectory as identity sees it: its turns, and what its next request will show of them.

Invariants: a turn's state moves as MOVES says; ``conversation.turn`` is the turn begun last; all that is
kept of a conversation is bounded, whatever its length.
"""

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from heddle_core import HistoryUnit


class TurnState(StrEnum):
    """Where the attempt at a turn stands. (A StrEnum hashes in C; it is looked up often.)"""

    RUNNING = "running"
    DONE = "done"
    BROKEN = "broken"


MOVES: Final = {
    TurnState.RUNNING: frozenset({TurnState.DONE, TurnState.BROKEN}),
    # A client may repeat a turn whose answer it lost, or that failed.
    TurnState.DONE: frozenset({TurnState.RUNNING}),
    TurnState.BROKEN: frozenset({TurnState.RUNNING}),
}

RECENT_TURNS: Final = 4
"""Turns of a conversation that a repeat is looked for among: agents with one id make parallel calls."""


@dataclass(slots=True)
class History:
    """A request's history in a few numbers, never changed (and not frozen: see facts.py). ``length`` in
    ``unit``; ``head``: Scan.head; ``block``: hash of the whole blocks of a prompt, 0 in chat.
    """

    unit: HistoryUnit
    length: int
    hash: int
    head: int
    block: int


class Attempt(Enum):
    """What ``x-stainless-retry-count`` says of a request. The SDKs of OpenAI and Anthropic always send it;
    they repeat what failed before its first byte, twice, and never a stream that broke off.
    """

    UNMARKED = "unmarked"
    FIRST = "first"
    REPEAT = "repeat"
    LAST_REPEAT = "last repeat"

    @property
    def is_repeat(self) -> bool:
        return self in (Attempt.REPEAT, Attempt.LAST_REPEAT)

    @classmethod
    def of(cls, count: str | None) -> "Attempt":
        if count is None or not (count.isascii() and count.isdigit()):
            return cls.UNMARKED
        # Of many digits the first few say enough, and Python refuses to read thousands of them.
        return (cls.FIRST, cls.REPEAT, cls.LAST_REPEAT)[min(int(count[:9]), SDK_REPEATS)]


SDK_REPEATS: Final = 2
"""How often the SDKs repeat by default."""


@dataclass(slots=True, eq=False)
class Turn:
    """One step, told by its history. ``shows``: hashes of its answers and of their call ids, which a later
    request may show. ``changed_at``: when it began or ended last, monotonic seconds. ``attempt``: the one
    that began or failed last; ``begun``: its answer had begun. ``filed``, ``lengths``: the index's own.
    """

    history: History
    step: int
    state: TurnState = TurnState.RUNNING
    in_flight: int = 0
    changed_at: float = 0.0
    shows: frozenset[int] = frozenset()
    attempt: Attempt = Attempt.UNMARKED
    begun: bool = False
    filed: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    @property
    def may_be_marked(self) -> bool:
        """Broken in a way that SDKs repeat by themselves, and say so."""
        return self.state is TurnState.BROKEN and not self.begun

    @property
    def will_be_marked(self) -> bool:
        """The same, by an SDK that marks its calls and has not repeated this one as often as it does."""
        return self.may_be_marked and self.attempt in (Attempt.FIRST, Attempt.REPEAT)

    def move(self, state: TurnState) -> None:
        """Raises ValueError on a move that MOVES does not list."""
        if state is self.state:
            return
        if state not in MOVES[self.state]:
            raise ValueError(f"a turn that is {self.state.value} cannot become {state.value}")
        self.state = state


@dataclass(slots=True, eq=False)
class Conversation:
    """One trajectory. ``scope`` and ``opening``: the tenant and model, and its first history, as numbers;
    no opening: nothing to recognise it by.

    ``known``: the index holds it. ``evidence``, ``anchors``: the index's keys for it, so that they can be
    taken out.
    """

    tenant: str
    trajectory_id: str
    scope: int
    opening: int | None
    group_id: str | None
    sample: int | None
    parent_id: str | None
    turns: list[Turn] = field(default_factory=list)
    steps: int = 0
    segment: int = 0
    last_seen: float = 0.0
    in_flight: int = 0
    known: bool = False
    evidence: list[int] = field(default_factory=list)
    anchors: tuple[int, ...] = ()

    @property
    def turn(self) -> Turn:
        return self.turns[-1]


class Kind(Enum):
    """What a request is to its conversation."""

    NEW = "new"
    """The first of a new conversation."""
    NEXT = "next"
    """The next step: its history extends the last one's, or stands beside it."""
    REWRITTEN = "rewritten"
    """The next step, on a history that was compacted or rolled back: a new segment."""
    REPEAT = "repeat"
    """A step that is known already."""


@dataclass(slots=True, eq=False)
class Claim:
    """What ``resolve`` decided and ``step_started`` makes true. ``turn``: the one repeated; then the one
    begun. ``received_at``: monotonic seconds. ``left``: its client hung up, and its end is still to be told.
    """

    kind: Kind
    conversation: Conversation
    history: History
    turn: Turn | None = None
    received_at: float = 0.0
    attempt: Attempt = Attempt.UNMARKED
    started: bool = False
    ended: bool = False
    left: bool = False
