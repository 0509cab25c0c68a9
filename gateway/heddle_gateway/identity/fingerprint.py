"""Finds the conversation that an untagged request continues, from the hashes of its history.

The rules, in order, within one tenant and model. The first that fires decides; it names the source.

history-retry      the same history as a known turn, and the SDK says it tries again
(``x-stainless-retry-count``) history            the history of a known last turn, then its answer, then
more. Of several conversations with that history (samples of one prompt) it is the one that gave this answer
history-retry      the same history as a turn that failed history-drifted    a last answer in its place,
after another system prompt (some change with every call) history-rewritten  the same system prompt, and the
last answer or a tool call of one conversation: compacted history-summary    a line that starts as a last
answer did: compacted by the model's own summary history-retry      the same history as a turn that is done,
past the opening: sampled once more history-rewritten  an earlier answer of one conversation: rolled back,
or compacted further history-edited     a history that someone waits at, then an answer that nobody gave:
the client changed it history-opening    the opening of a single conversation that waits, then something
else: compacted without a trace history-new        none of these. A known opening alone is a new sample of
the prompt, never the old conversation

``match`` changes nothing.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from heddle_core import Scan

from heddle_gateway.identity.conversation import Attempt, Claim, Conversation, History, Kind, Turn, TurnState
from heddle_gateway.identity.conversation_index import MAX_SHARED, ConversationIndex

# Evidence of a request that is looked up, newest first.
MAX_LOOKUPS: Final = 24
# Openings are short: a system prompt and a task, or two.
OPENING_LENGTHS: Final = 3

Match = tuple[str, Claim]


def history_of(scan: Scan) -> History:
    """The history of a request in a few numbers."""
    unit = scan.unit
    length = scan.history_length
    if unit == "messages":
        return History(unit, length, scan.prefix_hash(length) or 0, scan.head, 0)
    # The last link covers all whole blocks; of a batch, everything.
    block = next(reversed(scan.chain()), 0)
    return History(unit, length, scan.prefix_hash(length) or block, scan.head, block)


def match(
    index: ConversationIndex, scan: Scan, scope: int, history: History, attempt: Attempt
) -> Match | None:
    """(rule, claim); None for a new conversation."""
    if history.unit == "opaque":
        return None
    same = index.at(scope, history)
    if attempt.is_repeat and same:
        return _repeat(_marked_repeat(same), history)
    if history.unit != "messages":
        return _prompt(index, scan, scope, history, same, attempt)
    return _chat(_Request(index, scan, scope, history), same, attempt)


class _Request:
    """What a chat request shows, and who shares it."""

    __slots__ = (
        "before",
        "chain",
        "hashes",
        "history",
        "index",
        "openings",
        "places",
        "scan",
        "scope",
        "shown",
    )

    def __init__(self, index: ConversationIndex, scan: Scan, scope: int, history: History) -> None:
        self.index = index
        self.scan = scan
        self.scope = scope
        self.history = history
        self.chain = scan.chain()
        self.hashes = scan.message_hashes()
        # Where answers stand, but for a first message of the assistant's.
        self.places = [place for place in scan.assistant_positions() if place]
        # Whose history comes right before the last answer.
        self.before: Sequence[Conversation] = ()
        if self.places:
            self.before = index.at_prefix(scope, history, self.chain[self.places[-1] - 1])
        # Openings that this history, being longer, may have begun with.
        self.openings = {scope ^ link for link in self.chain[: min(OPENING_LENGTHS, len(self.chain) - 1)]}
        self.shown: list[int] = []


def _chat(request: _Request, same: Sequence[Conversation], attempt: Attempt) -> Match | None:
    history = request.history
    if request.before:
        last = request.hashes[request.places[-1]]
        exact = [known for known in request.before if last in known.turn.answers]
        if exact:
            return "history", Claim(Kind.NEXT, min(exact, key=_changed), history)
    if (failed := _failed(same, attempt)) is not None:
        return _repeat(failed, history)
    return _by_evidence(request, same)


def _by_evidence(request: _Request, same: Sequence[Conversation]) -> Match | None:
    history = request.history
    request.shown = [request.hashes[place] for place in request.places[-MAX_LOOKUPS:]]
    request.shown += request.scan.call_ids()[-MAX_LOOKUPS:]
    holders = [request.index.with_evidence(request.scope, number) for number in reversed(request.shown)]
    placed = [known for holder in holders for known in holder if _in_place(known.turn, request)]
    if placed:
        return "history-drifted", Claim(Kind.NEXT, min(placed, key=_changed), history)
    sole = _sole(holders, request)
    if sole is not None and sole in request.before:
        return "history-edited", Claim(Kind.NEXT, sole, history)
    if sole is not None and not sole.turn.answers.isdisjoint(request.shown):
        return "history-rewritten", Claim(Kind.REWRITTEN, sole, history)
    if (summed_up := _summed_up(request)) is not None:
        return "history-summary", Claim(Kind.REWRITTEN, summed_up, history)
    later = [known for known in same if known.turn.step and _waits(known)]
    if later:
        return _repeat(max(later, key=_changed), history)
    if sole is not None:
        return "history-rewritten", Claim(Kind.REWRITTEN, sole, history)
    if request.before:
        return "history-edited", Claim(Kind.NEXT, min(request.before, key=_edited_order), history)
    if (single := _single_waiting(request)) is not None:
        return "history-opening", Claim(Kind.REWRITTEN, single, history)
    return None


def _in_place(turn: Turn, request: _Request) -> bool:
    """Whether the turn's answer stands where it belongs: after its own history, or after one of the same
    length with another system prompt.
    """
    at = turn.history
    if at.unit != "messages" or at.length >= request.history.length:
        return False
    if request.hashes[at.length] not in turn.answers:
        return False
    return at.head != request.history.head or request.chain[at.length - 1] == at.hash


def _sole(holders: list[Sequence[Conversation]], request: _Request) -> Conversation | None:
    """The conversation with the same system prompt that the evidence points at: the first that is alone in
    holding a piece; else, of those that hold most pieces, the one with this task whose last answer is shown
    and that waits.
    """
    votes: dict[Conversation, int] = {}
    for holder in holders:
        matching = [known for known in holder if known.turn.history.head == request.history.head]
        if len(matching) == 1:
            return matching[0]
        for known in matching:
            votes[known] = votes.get(known, 0) + 1
    if not votes:
        return None
    most = max(votes.values())

    def order(known: Conversation) -> tuple[bool, bool, bool, float]:
        turn = known.turn
        answer_shown = not turn.answers.isdisjoint(request.shown)
        return known.opening not in request.openings, not answer_shown, not _waits(known), turn.changed_at

    return min((known for known, count in votes.items() if count == most), key=order)


def _summed_up(request: _Request) -> Conversation | None:
    index, scope = request.index, request.scope
    if index.is_opening(request.chain[-1] ^ scope) or not index.has_anchors:
        # A sample of a known prompt, whatever a sibling's answer quotes of it.
        return None
    found = [
        known
        for number in request.scan.anchors()
        for known in index.with_anchor(scope, number)
        if known.turn.history.head == request.history.head and _waits(known)
    ]
    return min(
        found, key=lambda known: (known.opening not in request.openings, known.turn.changed_at), default=None
    )


def _single_waiting(request: _Request) -> Conversation | None:
    # A system prompt alone is the opening of nobody.
    for link in request.chain[1 : min(OPENING_LENGTHS, len(request.chain) - 1)]:
        members = request.index.with_opening(link ^ request.scope)
        waiting = [known for known in islice(members, MAX_SHARED) if _waits(known)]
        if len(waiting) == 1:
            return waiting[0]
    return None


def _prompt(
    index: ConversationIndex,
    scan: Scan,
    scope: int,
    history: History,
    same: Sequence[Conversation],
    attempt: Attempt,
) -> Match | None:
    chain = scan.chain()
    for blocks in range(len(chain), -1, -1):
        lengths = index.lengths_after(scope, history, chain[blocks - 1] if blocks else 0)
        for length in sorted(lengths, reverse=True):
            prefix = scan.prefix_hash(length) if length < history.length else None
            if prefix is None:
                continue
            candidates = index.at_prefix(scope, history, prefix)
            exact = [known for known in candidates if _continues(scan, known.turn)]
            if exact:
                return "history", Claim(Kind.NEXT, min(exact, key=_changed), history)
    if (failed := _failed(same, attempt)) is not None:
        return _repeat(failed, history)
    later = [known for known in same if known.turn.step and _waits(known)]
    return _repeat(max(later, key=_changed), history) if later else None


def _continues(scan: Scan, turn: Turn) -> bool:
    """Whether the prompt goes on with the turn's answer. Where its tokens are not known, with anything."""
    if not turn.spans:
        return turn.state is TurnState.DONE and turn.history.unit == "tokens"
    start = turn.history.length
    return any(scan.span_hash(start, length) == number for length, number in turn.spans)


def _repeat(conversation: Conversation, history: History) -> Match:
    return "history-retry", Claim(Kind.REPEAT, conversation, history, conversation.turn)


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


def _marked_repeat(same: Sequence[Conversation]) -> Conversation:
    """Whose turn a marked repeat means: a failed one that an SDK repeats, the oldest; then one that runs
    (the client gave up before we saw it leave); then the one done last (its answer was lost on the way).
    """

    def order(conversation: Conversation) -> tuple[int, float]:
        turn = conversation.turn
        if turn.may_be_marked:
            return 0, turn.changed_at
        if turn.state is TurnState.RUNNING:
            return 1, turn.changed_at
        if turn.state is TurnState.DONE:
            return 2, -turn.changed_at
        return 3, turn.changed_at

    return min(same, key=order)


def _failed(same: Sequence[Conversation], attempt: Attempt) -> Conversation | None:
    """Whose failed turn the same history repeats without a mark: one that no SDK will repeat comes first.

    A first attempt at an opening is not the repeat of one that its own SDK is going to mark: it is a new
    sample.
    """
    failed = [
        known
        for known in same
        if known.turn.state is TurnState.BROKEN
        and not (attempt is Attempt.FIRST and known.turn.will_be_marked and not known.turn.step)
    ]
    return min(failed, key=lambda known: (known.turn.will_be_marked, known.turn.changed_at), default=None)
