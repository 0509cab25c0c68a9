"""Finds the conversation that an untagged request continues, from the hashes of its history.

In order, within one tenant and model:

1. a repeat that says so (``x-stainless-retry-count``): the same history as a known turn;
2. exact extension: the history of a known last turn, then its answer, then more. Of several conversations
   with that history (samples of one prompt) it is the one that gave this answer; if the client edited the
   answer, one that waits;
3. the same history as a turn that failed: a repeat. As a turn that is done, past the opening: sampled once
   more;
4. the known answer at its place, but another head: a system prompt that changes with every call;
5. compaction or rollback: the same system prompt, and an answer or tool call known of one conversation, or
   a line that starts as its last answer did (a summary put into a new message), or the opening of a single
   one that waits.

The same opening without any of these is a new sample of the prompt, never the old conversation.

Invariants: the index holds of each known conversation its last turn, its opening and a bounded number of
evidence keys, and nothing else; ``match`` changes nothing. Collisions of 64-bit hashes are accepted: they
misplace one step.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from heddle_core import Scan

from heddle_gateway.identity.conversation import Attempt, Claim, Conversation, History, Kind, Turn, TurnState

# Evidence kept of one conversation: about the last four steps.
MAX_EVIDENCE: Final = 8
# Evidence of a request that is looked up, newest first.
MAX_LOOKUPS: Final = 24
# Conversations looked at under one key. More share it only when it is no evidence at all ("OK.").
MAX_SHARED: Final = 64
_UNIT_SALT: Final = {"messages": 0, "bytes": 0x9E3779B97F4A7C15, "tokens": 0xC2B2AE3D27D4EB4F, "opaque": 0}
# Keeps block hashes apart from whole-prompt hashes.
_BLOCKS: Final = 0x27D4EB2F165667C5


def history_of(scan: Scan) -> History:
    """The history of a request in a few numbers."""
    unit = scan.unit
    length = scan.history_length
    if unit == "messages":
        return History(unit, length, scan.prefix_hash(length) or 0, scan.head, 0)
    # The last link covers all whole blocks; of a batch, everything.
    block = next(reversed(scan.chain()), 0)
    return History(unit, length, scan.prefix_hash(length) or block, scan.head, block)


class ConversationIndex:
    """Known conversations by what their next request will show."""

    def __init__(self) -> None:
        self._by_history: dict[int, list[Conversation]] = {}
        self._by_evidence: dict[int, list[Conversation]] = {}
        self._by_anchor: dict[int, list[Conversation]] = {}
        self._by_opening: dict[int, dict[Conversation, None]] = {}
        # Text dialects: which lengths of known prompts end in a block, by the hash of all blocks before it.
        self._lengths: dict[int, dict[int, int]] = {}

    # ---------------------------------------------------------------- keeping it

    def add(self, conversation: Conversation) -> None:
        """Takes in a conversation at its first turn."""
        if conversation.opening is not None:
            self._by_opening.setdefault(conversation.opening, {})[conversation] = None
        conversation.known = True
        self.turn_begun(conversation)

    def turn_begun(self, conversation: Conversation) -> None:
        """Its last turn is another one now. Call ``turn_left`` before."""
        history = conversation.turn.history
        if history.unit == "opaque":
            return
        self._by_history.setdefault(_key(conversation.scope, history), []).append(conversation)
        if history.unit != "messages":
            lengths = self._lengths.setdefault(_block_key(conversation.scope, history), {})
            lengths[history.length] = lengths.get(history.length, 0) + 1

    def turn_left(self, conversation: Conversation) -> None:
        """Its last turn is about to be replaced."""
        history = conversation.turn.history
        if history.unit == "opaque":
            return
        _take_out(self._by_history, _key(conversation.scope, history), conversation)
        if history.unit != "messages":
            key = _block_key(conversation.scope, history)
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
        if conversation.opening is not None:
            members = self._by_opening[conversation.opening]
            del members[conversation]
            if not members:
                del self._by_opening[conversation.opening]
        conversation.known = False

    def size(self) -> int:
        """Keys held, for tests and metrics."""
        tables = (self._by_history, self._by_evidence, self._by_anchor, self._by_opening, self._lengths)
        return sum(len(table) for table in tables)

    # ---------------------------------------------------------------- looking up

    def match(self, scan: Scan, scope: int, history: History, attempt: Attempt) -> tuple[str, Claim] | None:
        """(rule, claim), or None for a new conversation."""
        if history.unit == "opaque":
            return None
        same = self._by_history.get(_key(scope, history), ())
        if attempt.is_repeat and same:
            return "history-retry", _repeat(_to_repeat(same), history)
        if history.unit == "messages":
            found = self._chat(scan, scope, history, same, attempt)
        else:
            found = self._prompt(scan, scope, history, same, attempt)
        return found

    def _chat(
        self, scan: Scan, scope: int, history: History, same: Sequence[Conversation], attempt: Attempt
    ) -> tuple[str, Claim] | None:
        places = [place for place in scan.assistant_positions() if place]
        chain = scan.chain()
        hashes = scan.message_hashes()
        for place in reversed(places):
            candidates = self._by_history.get(scope ^ chain[place - 1], ())
            exact = [known for known in candidates if hashes[place] in known.turn.answers]
            if exact:
                return "history", _claim(Kind.NEXT, min(exact, key=_changed), history)
        if (again := _again(same, attempt)) is not None:
            return "history-retry", _repeat(again, history)
        shown = [hashes[place] for place in places[-MAX_LOOKUPS:]] + scan.call_ids()[-MAX_LOOKUPS:]
        # Whose history comes right before the last answer shown.
        before = self._by_history.get(scope ^ chain[places[-1] - 1], ()) if places else ()
        found = self._by_evidence_shown(scope, history, hashes, shown, before)
        if found is not None:
            return found
        if before:
            return "history-edited", _claim(Kind.NEXT, min(before, key=_edited_order), history)
        return self._by_summary(scan, scope, history, chain)

    def _prompt(
        self, scan: Scan, scope: int, history: History, same: Sequence[Conversation], attempt: Attempt
    ) -> tuple[str, Claim] | None:
        chain = scan.chain()
        salt = scope ^ _UNIT_SALT[history.unit]
        for blocks in range(len(chain), -1, -1):
            lengths = self._lengths.get(salt ^ _BLOCKS ^ (chain[blocks - 1] if blocks else 0))
            for length in sorted(lengths or (), reverse=True):
                if length >= history.length:
                    continue
                prefix = scan.prefix_hash(length)
                candidates = () if prefix is None else self._by_history.get(salt ^ prefix, ())
                exact = [known for known in candidates if _continues(scan, known.turn)]
                if exact:
                    return "history", _claim(Kind.NEXT, min(exact, key=_changed), history)
        if (again := _again(same, attempt)) is not None:
            return "history-retry", _repeat(again, history)
        return None

    def _by_evidence_shown(
        self,
        scope: int,
        history: History,
        hashes: list[int],
        shown: list[int],
        before: Sequence[Conversation],
    ) -> tuple[str, Claim] | None:
        holders = [holder for number in reversed(shown) if (holder := self._by_evidence.get(number ^ scope))]
        for holder in holders:
            for known in holder:
                at = known.turn.history
                if (
                    at.unit == "messages"
                    and at.length < history.length
                    and hashes[at.length] in known.turn.answers
                ):
                    return "history-drifted", _claim(Kind.NEXT, known, history)
        sole = _sole(
            [[known for known in holder if known.turn.history.head == history.head] for holder in holders]
        )
        if sole is None:
            return None
        if sole in before:
            return "history-edited", _claim(Kind.NEXT, sole, history)
        return "history-rewritten", _claim(Kind.REWRITTEN, sole, history)

    def _by_summary(
        self, scan: Scan, scope: int, history: History, chain: list[int]
    ) -> tuple[str, Claim] | None:
        if chain[-1] ^ scope in self._by_opening:
            # A sample of a known prompt, whatever a sibling's answer quotes of it.
            return None
        anchored: dict[Conversation, None] = {}
        for number in scan.anchors() if self._by_anchor else ():
            for known in self._by_anchor.get(number ^ scope, ()):
                if known.turn.history.head == history.head and _waits(known):
                    anchored[known] = None
        if anchored:
            return "history-summary", _claim(Kind.REWRITTEN, min(anchored, key=_changed), history)
        return self._same_opening(scope, history, chain)

    def _same_opening(self, scope: int, history: History, chain: list[int]) -> tuple[str, Claim] | None:
        # Openings are short: a system prompt and a task.
        for opening in reversed(chain[1:3] if len(chain) > 3 else chain[1:-1]):
            members = self._by_opening.get(opening ^ scope)
            if members:
                waiting = [known for known in islice(reversed(members), MAX_SHARED) if _waits(known)]
                if len(waiting) == 1:
                    return "history-opening", _claim(Kind.REWRITTEN, waiting[0], history)
                return None
        return None


def scoped_opening(scope: int, history: History) -> int | None:
    """The number of an opening within its scope; None where there is nothing to recognise it by."""
    return None if history.unit == "opaque" else _key(scope, history)


def _key(scope: int, history: History) -> int:
    return scope ^ _UNIT_SALT[history.unit] ^ history.hash


def _block_key(scope: int, history: History) -> int:
    return scope ^ _UNIT_SALT[history.unit] ^ _BLOCKS ^ history.block


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


def _claim(kind: Kind, conversation: Conversation, history: History) -> Claim:
    return Claim(kind, conversation, history)


def _repeat(conversation: Conversation, history: History) -> Claim:
    return Claim(Kind.REPEAT, conversation, history, conversation.turn)


def _changed(conversation: Conversation) -> float:
    return conversation.turn.changed_at


def _waits(conversation: Conversation) -> bool:
    return conversation.turn.state is TurnState.DONE and not conversation.in_flight


_EDITED: Final = {TurnState.DONE: 0, TurnState.BROKEN: 1, TurnState.RUNNING: 2}


def _edited_order(conversation: Conversation) -> tuple[int, float]:
    """Who may have given an answer that the client changed: one that waits, longest first. A broken turn
    comes next (a partial answer was kept), then one that runs (its last bytes are with the client, its end
    is not with us).
    """
    return _EDITED[conversation.turn.state], conversation.turn.changed_at


def _to_repeat(same: Sequence[Conversation]) -> Conversation:
    """Whose turn a marked repeat means: a failed one that is to be repeated so, the oldest; then one that runs (the
    client gave up before we saw it leave); then the one done last (its answer was lost on the way)."""

    def order(conversation: Conversation) -> tuple[int, float]:
        turn = conversation.turn
        if turn.state is TurnState.BROKEN:
            return (0 if turn.repeat_marked else 3), turn.changed_at
        if turn.state is TurnState.RUNNING:
            return 1, turn.changed_at
        return 2, -turn.changed_at

    return min(same, key=order)


def _again(same: Sequence[Conversation], attempt: Attempt) -> Conversation | None:
    """Whose turn the same history means without a word from the client; None for a new sample.

    A first attempt at an opening is not the repeat of one that its own SDK is going to mark as such.
    """
    broken = [
        known
        for known in same
        if known.turn.state is TurnState.BROKEN
        and not (attempt is Attempt.FIRST and known.turn.repeat_marked and not known.turn.step)
    ]
    if broken:
        return min(broken, key=lambda known: (known.turn.repeat_marked, known.turn.changed_at))
    later = [known for known in same if known.turn.step and _waits(known)]
    return max(later, key=_changed) if later else None


def _continues(scan: Scan, turn: Turn) -> bool:
    """Whether the prompt goes on with the turn's answer. Where the answer's tokens are not known, with
    anything.
    """
    if turn.state is TurnState.RUNNING:
        return False
    if not turn.spans:
        return turn.state is TurnState.DONE and turn.history.unit == "tokens"
    start = turn.history.length
    return any(scan.span_hash(start, length) == number for length, number in turn.spans)


def _sole(holders: list[list[Conversation]]) -> Conversation | None:
    """The conversation the evidence points at: the first that is alone in holding a piece, else the one
    that holds most of them, if it is one.
    """
    votes: dict[Conversation, int] = {}
    for holder in holders:
        if len(holder) == 1:
            return holder[0]
        for known in holder:
            votes[known] = votes.get(known, 0) + 1
    if not votes:
        return None
    most = max(votes.values())
    leaders = [known for known, count in votes.items() if count == most]
    waiting = [known for known in leaders if _waits(known)] or leaders
    return min(waiting, key=_changed)
