"""Known conversations, filed by what their next request will show.

Invariants: of each known conversation the index holds its last turn, its opening and a bounded number of
evidence keys, and nothing else; what was put in is taken out again by ``remove``. Keys are 64-bit hashes
mixed with the scope (tenant and model): a collision is accepted, it misplaces one step.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from heddle_gateway.identity.conversation import Conversation, History, TurnState

# Evidence kept of one conversation: about the last four steps.
MAX_EVIDENCE: Final = 8
# Answers kept of one turn: its choices, and those of repeats.
MAX_ANSWERS: Final = 32
# Conversations kept under one piece of evidence. More share it only when it is none at all ("OK.").
MAX_SHARED: Final = 64
_UNIT_SALT: Final = {"messages": 0, "bytes": 0x9E3779B97F4A7C15, "tokens": 0xC2B2AE3D27D4EB4F, "opaque": 0}
# Keeps block hashes apart from whole-prompt hashes.
_BLOCKS: Final = 0x27D4EB2F165667C5


class Standing:
    """The conversations whose last turn has one history, by how that turn stands. In each the one that has
    stood so longest comes first.

    Thousands may share a history (a load test sends one prompt for ever), so nothing here is searched
    through. ``lengths``: of their answers, with how many have it; text dialects.
    """

    __slots__ = ("broken", "done", "lengths", "running")

    def __init__(self) -> None:
        self.running: dict[Conversation, None] = {}
        self.done: dict[Conversation, None] = {}
        self.broken: dict[Conversation, None] = {}
        self.lengths: dict[int, int] = {}

    def of(self, state: TurnState) -> dict[Conversation, None]:
        if state is TurnState.RUNNING:
            return self.running
        return self.done if state is TurnState.DONE else self.broken

    def all(self) -> Iterator[Conversation]:
        """Running, done and broken ones."""
        return chain(self.running, self.done, self.broken)

    def __bool__(self) -> bool:
        return bool(self.running or self.done or self.broken)


class ConversationIndex:
    """Look-ups take what a request shows, and its scope."""

    def __init__(self) -> None:
        self._by_history: dict[int, Standing] = {}
        self._by_answer: dict[int, dict[Conversation, None]] = {}
        self._by_evidence: dict[int, dict[Conversation, None]] = {}
        self._by_anchor: dict[int, dict[Conversation, None]] = {}
        self._by_opening: dict[int, dict[Conversation, None]] = {}
        # Text dialects: which lengths of known prompts end in a block, by the hash of all blocks before it.
        self._lengths: dict[int, dict[int, int]] = {}

    # ---------------------------------------------------------------- keeping it

    def add(self, conversation: Conversation) -> None:
        """Takes in a conversation with its turn."""
        if conversation.opening is not None:
            self._by_opening.setdefault(conversation.opening, {})[conversation] = None
        conversation.known = True
        self.turn_begun(conversation)

    def turn_begun(self, conversation: Conversation) -> None:
        """Its last turn is another one now. Call ``turn_left`` before."""
        history, scope = conversation.turn.history, conversation.scope
        if history.unit == "opaque":
            return
        key = _key(scope, history)
        standing = self._by_history.get(key)
        if standing is None:
            standing = self._by_history[key] = Standing()
        standing.of(conversation.turn.state)[conversation] = None
        if history.unit != "messages":
            _count(self._lengths.setdefault(_block_key(scope, history, history.block), {}), history.length)

    def turn_moved(self, conversation: Conversation, before: TurnState) -> None:
        """Its last turn stood at ``before`` until now."""
        history = conversation.turn.history
        if history.unit != "opaque":
            standing = self._by_history[_key(conversation.scope, history)]
            del standing.of(before)[conversation]
            standing.of(conversation.turn.state)[conversation] = None

    def turn_left(self, conversation: Conversation) -> None:
        """Its last turn is about to be replaced."""
        turn, scope = conversation.turn, conversation.scope
        history = turn.history
        if history.unit == "opaque":
            return
        key = _key(scope, history)
        standing = self._by_history[key]
        del standing.of(turn.state)[conversation]
        for length in turn.lengths:
            _discount(standing.lengths, length)
        if not standing:
            del self._by_history[key]
        for filed in turn.filed:
            _take_out(self._by_answer, filed, conversation)
        turn.filed, turn.lengths = [], []
        if history.unit != "messages":
            block = _block_key(scope, history, history.block)
            _discount(self._lengths[block], history.length)
            if not self._lengths[block]:
                del self._lengths[block]

    def answered(self, conversation: Conversation, answers: Iterable[tuple[int, int]]) -> None:
        """Its last turn has these answers too: (length, hash); the length counts in the text dialects."""
        turn = conversation.turn
        if turn.history.unit == "opaque":
            return
        key = _key(conversation.scope, turn.history)
        for length, number in answers:
            if len(turn.filed) >= MAX_ANSWERS or key ^ number in turn.filed:
                continue
            turn.filed.append(key ^ number)
            self._by_answer.setdefault(key ^ number, {})[conversation] = None
            if turn.history.unit != "messages":
                turn.lengths.append(length)
                _count(self._by_history[key].lengths, length)

    def showed(self, conversation: Conversation, evidence: Iterable[int]) -> None:
        """It is known by these messages and call ids too."""
        for number in evidence:
            key = number ^ conversation.scope
            if key not in conversation.evidence and _put_in(self._by_evidence, key, conversation):
                conversation.evidence.append(key)
        while len(conversation.evidence) > MAX_EVIDENCE:
            _take_out(self._by_evidence, conversation.evidence.pop(0), conversation)

    def anchored(self, conversation: Conversation, anchors: Iterable[int]) -> None:
        """Its last answer has lines that start so; those of earlier answers no longer count."""
        for key in conversation.anchors:
            _take_out(self._by_anchor, key, conversation)
        keys = (number ^ conversation.scope for number in dict.fromkeys(anchors))
        conversation.anchors = tuple(key for key in keys if _put_in(self._by_anchor, key, conversation))

    def remove(self, conversation: Conversation) -> None:
        """Forgets all of it."""
        self.turn_left(conversation)
        for key in conversation.evidence:
            _take_out(self._by_evidence, key, conversation)
        for key in conversation.anchors:
            _take_out(self._by_anchor, key, conversation)
        conversation.evidence, conversation.anchors = [], ()
        if conversation.opening is not None:
            members = self._by_opening[conversation.opening]
            del members[conversation]
            if not members:
                del self._by_opening[conversation.opening]
        conversation.known = False

    def size(self) -> int:
        """Keys held."""
        tables = (self._by_history, self._by_answer, self._by_evidence, self._by_anchor, self._by_opening)
        return sum(len(table) for table in tables) + len(self._lengths)

    # ---------------------------------------------------------------- looking up

    def at(self, scope: int, history: History) -> Standing | None:
        """Whose last turn has this very history."""
        return self._by_history.get(_key(scope, history))

    def at_prefix(self, scope: int, history: History, prefix: int) -> Standing | None:
        """Whose last turn has as its history the prefix of ``history`` with this hash."""
        return self._by_history.get(scope ^ _UNIT_SALT[history.unit] ^ prefix)

    def after(self, scope: int, history: History, prefix: int, answer: int) -> Conversation | None:
        """Whose last turn has that history and this answer; of several, the one that has waited longest."""
        holder = self.all_after(scope, history, prefix, answer)
        return next(iter(holder)) if holder else None

    def all_after(self, scope: int, history: History, prefix: int, answer: int) -> Collection[Conversation]:
        """All of them, the one that has waited longest first."""
        return self._by_answer.get(scope ^ _UNIT_SALT[history.unit] ^ prefix ^ answer, ())

    def lengths_after(self, scope: int, history: History, blocks: int) -> Mapping[int, int]:
        """Lengths of known prompts that begin with these whole blocks (their hash) and end in the next."""
        return self._lengths.get(_block_key(scope, history, blocks), {})

    def with_evidence(self, scope: int, number: int) -> Collection[Conversation]:
        """Who is known by this message or call id."""
        return self._by_evidence.get(number ^ scope, ())

    @property
    def has_anchors(self) -> bool:
        return bool(self._by_anchor)

    def with_anchor(self, scope: int, number: int) -> Collection[Conversation]:
        """Whose last answer has a line that starts so."""
        return self._by_anchor.get(number ^ scope, ())

    def is_opening(self, scope: int, history: History) -> bool:
        """Whether anybody began with this very history."""
        return _key(scope, history) in self._by_opening

    def is_only_one(self, conversation: Conversation) -> bool:
        """Whether nobody else began with its opening."""
        return conversation.opening is not None and len(self._by_opening[conversation.opening]) == 1

    def with_opening(self, opening: int) -> Iterable[Conversation]:
        """Who began with this opening (scoped_opening), the latest first."""
        return reversed(self._by_opening.get(opening, {}))


def scoped_opening(scope: int, history: History) -> int | None:
    """The number of an opening within its scope; None where there is nothing to recognise it by."""
    return None if history.unit == "opaque" else _key(scope, history)


def _key(scope: int, history: History) -> int:
    return scope ^ _UNIT_SALT[history.unit] ^ history.hash


def _block_key(scope: int, history: History, blocks: int) -> int:
    return scope ^ _UNIT_SALT[history.unit] ^ _BLOCKS ^ blocks


def _count(lengths: dict[int, int], length: int) -> None:
    lengths[length] = lengths.get(length, 0) + 1


def _discount(lengths: dict[int, int], length: int) -> None:
    lengths[length] -= 1
    if not lengths[length]:
        del lengths[length]


def _put_in(table: dict[int, dict[Conversation, None]], key: int, conversation: Conversation) -> bool:
    holder = table.setdefault(key, {})
    if len(holder) >= MAX_SHARED or conversation in holder:
        return False
    holder[conversation] = None
    return True


def _take_out(table: dict[int, dict[Conversation, None]], key: int, conversation: Conversation) -> None:
    holder = table[key]
    del holder[conversation]
    if not holder:
        del table[key]
