"""Known conversations, filed by what their next request will show.

Invariants: of each known conversation the index holds its last turn, its opening and a bounded number of
evidence keys, and nothing else; what was put in is taken out again by ``remove``. Keys are 64-bit hashes
mixed with the scope (tenant and model): a collision is accepted, it misplaces one step.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from heddle_gateway.identity.conversation import Conversation, History

# Evidence kept of one conversation: about the last four steps.
MAX_EVIDENCE: Final = 8
# Conversations kept under one piece of evidence. More share it only when it is none at all ("OK.").
MAX_SHARED: Final = 64
_UNIT_SALT: Final = {"messages": 0, "bytes": 0x9E3779B97F4A7C15, "tokens": 0xC2B2AE3D27D4EB4F, "opaque": 0}
# Keeps block hashes apart from whole-prompt hashes.
_BLOCKS: Final = 0x27D4EB2F165667C5


class ConversationIndex:
    """Look-ups take what a request shows, and its scope."""

    def __init__(self) -> None:
        self._by_history: dict[int, list[Conversation]] = {}
        self._by_evidence: dict[int, list[Conversation]] = {}
        self._by_anchor: dict[int, list[Conversation]] = {}
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
        self._by_history.setdefault(_key(scope, history), []).append(conversation)
        if history.unit != "messages":
            lengths = self._lengths.setdefault(_block_key(scope, history, history.block), {})
            lengths[history.length] = lengths.get(history.length, 0) + 1

    def turn_left(self, conversation: Conversation) -> None:
        """Its last turn is about to be replaced."""
        history, scope = conversation.turn.history, conversation.scope
        if history.unit == "opaque":
            return
        _take_out(self._by_history, _key(scope, history), conversation)
        if history.unit != "messages":
            key = _block_key(scope, history, history.block)
            lengths = self._lengths[key]
            lengths[history.length] -= 1
            if not lengths[history.length]:
                del lengths[history.length]
            if not lengths:
                del self._lengths[key]

    def answered(self, conversation: Conversation, evidence: Iterable[int], anchors: Sequence[int]) -> None:
        """Its last turn got an answer that shows these hashes."""
        for number in evidence:
            key = number ^ conversation.scope
            if key not in conversation.evidence and _put_in(self._by_evidence, key, conversation):
                conversation.evidence.append(key)
        while len(conversation.evidence) > MAX_EVIDENCE:
            _take_out(self._by_evidence, conversation.evidence.pop(0), conversation)
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
        tables = (self._by_history, self._by_evidence, self._by_anchor, self._by_opening, self._lengths)
        return sum(len(table) for table in tables)

    # ---------------------------------------------------------------- looking up

    def at(self, scope: int, history: History) -> Sequence[Conversation]:
        """Whose last turn has this very history."""
        return self._by_history.get(_key(scope, history), ())

    def at_prefix(self, scope: int, history: History, prefix: int) -> Sequence[Conversation]:
        """Whose last turn has as its history the prefix of ``history`` with this hash."""
        return self._by_history.get(scope ^ _UNIT_SALT[history.unit] ^ prefix, ())

    def lengths_after(self, scope: int, history: History, blocks: int) -> Mapping[int, int]:
        """Lengths of known prompts that begin with these whole blocks (their hash) and end in the next."""
        return self._lengths.get(_block_key(scope, history, blocks), {})

    def with_evidence(self, scope: int, number: int) -> Sequence[Conversation]:
        """Who is known by this message or call id."""
        return self._by_evidence.get(number ^ scope, ())

    @property
    def has_anchors(self) -> bool:
        return bool(self._by_anchor)

    def with_anchor(self, scope: int, number: int) -> Sequence[Conversation]:
        """Whose last answer has a line that starts so."""
        return self._by_anchor.get(number ^ scope, ())

    def is_opening(self, opening: int) -> bool:
        """Whether anybody began with this opening."""
        return opening in self._by_opening

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


def _put_in(table: dict[int, list[Conversation]], key: int, conversation: Conversation) -> bool:
    holder = table.setdefault(key, [])
    if len(holder) >= MAX_SHARED:
        return False
    holder.append(conversation)
    return True


def _take_out(table: dict[int, list[Conversation]], key: int, conversation: Conversation) -> None:
    holder = table[key]
    holder.remove(conversation)
    if not holder:
        del table[key]
