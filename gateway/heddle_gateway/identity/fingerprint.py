"""Finds the conversation that an untagged request continues, from the hashes of its history.

The rules, in order, within one tenant and model. The first that fires decides; it names the source.

* history-retry: the same history as a turn that failed, and the SDK says it tries again
  (``x-stainless-retry-count``)
* history: the history of a known last turn, then its answer, then more. Of several conversations with that
  history (samples of one prompt) it is the one that gave this answer
* history-rewritten, history-edited: the history that a sibling has come to from where this one waits
* history-retry: the same history as a turn that runs or is done, and the SDK says it tries again; or as one
  that failed
* history-drifted: a last answer in its place, after another system prompt (some change with every call)
* history-retry: the same history as a turn that siblings who answer alike have left behind
* history-rewritten: the same system prompt, and the last answer or a tool call of one conversation: compacted
* history-summary: a line that starts as a last answer did: compacted by the model's own summary
* history-retry: the same history as a turn that is done, past the opening: sampled once more
* history-rewritten: an earlier answer of one conversation: rolled back, or compacted further
* history-edited: a history that someone waits at, then an answer that nobody gave: the client changed it
* history-opening: the opening of a single conversation that waits, then something else: compacted without a
  trace
* history-new: none of these. A known opening alone is a new sample of the prompt, never the old conversation

``match`` changes nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Final

from heddle_core import Scan

from heddle_gateway.identity.conversation import Attempt, Claim, Conversation, History, Kind, Turn, TurnState
from heddle_gateway.identity.conversation_index import MAX_SHARED, ConversationIndex, Standing

# Evidence of a request that is looked up, newest first.
MAX_LOOKUPS: Final = 24
# Openings are short: a system prompt and a task, or two.
OPENING_LENGTHS: Final = 3
# Of those that have come to one history, how many are asked where they came from.
MAX_AHEAD: Final = 4

# Half a second less a quarter of jitter before the first repeat (openai-python, _calculate_retry_timeout),
# less what the way to here may vary.
SDK_WAITS_S: Final = 0.3
_FOLLOWS: Final = frozenset(
    combinations((Attempt.UNMARKED, Attempt.FIRST, Attempt.REPEAT, Attempt.LAST_REPEAT), 2)
)

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


# Shared by all look-ups that find nobody: matching changes nothing.
_NOBODY: Final = Standing()


def match(
    index: ConversationIndex, scan: Scan, scope: int, history: History, attempt: Attempt, received_at: float
) -> Match | None:
    """(rule, claim); None for a new conversation. ``received_at``: monotonic seconds."""
    if history.unit == "opaque":
        return None
    repeat = _Repeat(attempt, received_at)
    same = index.at(scope, history) or _NOBODY
    if attempt.is_repeat and (failed := _marked_failure(same)) is not None:
        return _repeat(failed, history)
    if history.unit != "messages":
        return _prompt(index, scan, scope, history, same, repeat)
    before: Standing | None = None
    if (last := scan.last_answer()) is not None:
        # Nearly every request ends here: one that goes on where its conversation stands.
        before = index.at_prefix(scope, history, last[0])
        if (exact := index.after(scope, history, *last)) is not None:
            return "history", Claim(Kind.NEXT, exact, history)
    if same and (beside := _beside(index, same, history)) is not None:
        return beside
    if (repeated := _repeated(index, same, repeat)) is not None:
        return _repeat(repeated, history)
    if index.is_opening(scope, history):
        # A new sample, whatever a sibling's answer quotes of its prompt.
        return None
    return _by_evidence(_Request(index, scan, scope, history, before), same)


@dataclass(slots=True)
class _Repeat:
    """What the SDK says of repeats, and when."""

    attempt: Attempt
    received_at: float

    def may_mean(self, turn: Turn) -> bool:
        """Whether this attempt can follow one at ``turn`` that did not fail as far as we know: the SDK waits
        before it repeats, and counts.
        """
        waited = self.received_at - turn.changed_at >= SDK_WAITS_S
        return waited and (turn.attempt, self.attempt) in _FOLLOWS


class _Request:
    """What a chat request shows. ``before``: whose history comes right before its last answer."""

    def __init__(
        self,
        index: ConversationIndex,
        scan: Scan,
        scope: int,
        history: History,
        before: Standing | None,
    ) -> None:
        self.index = index
        self.scan = scan
        self.scope = scope
        self.history = history
        self.before = before
        self.chain = scan.chain()
        self.hashes = scan.message_hashes()
        self.shown = [self.hashes[place] for place in scan.assistant_positions()[-MAX_LOOKUPS:] if place]
        self.last = self.shown[-1] if self.shown else None
        self.shown += scan.call_ids()[-MAX_LOOKUPS:]
        # Openings that this history, being longer, may have begun with.
        self.openings = {scope ^ link for link in self.chain[: min(OPENING_LENGTHS, len(self.chain) - 1)]}


def _by_evidence(request: _Request, same: Standing) -> Match | None:
    history = request.history
    holders = [request.index.with_evidence(request.scope, number) for number in reversed(request.shown)]
    placed = [known for holder in holders for known in holder if _in_place(known.turn, request)]
    if any(_ends(known, request) for holder in holders for known in holder):
        # Siblings that answer alike: one that is behind must not take the place of one that stands here.
        placed = [known for known in placed if _ends(known, request)]
    if placed:
        return "history-drifted", Claim(Kind.NEXT, min(placed, key=_changed), history)
    if (passed := _passed(request)) is not None:
        return "history-retry", passed
    sole = _sole(holders, request)
    if sole is not None and request.before and request.before.done and _gave_another_too(sole, request):
        return "history-edited", Claim(Kind.NEXT, next(iter(request.before.done)), history)
    if sole is not None and request.before and sole in request.before.of(sole.turn.state):
        return "history-edited", Claim(Kind.NEXT, sole, history)
    if sole is not None and not sole.turn.shows.isdisjoint(request.shown):
        return "history-rewritten", Claim(Kind.REWRITTEN, sole, history)
    if (summed_up := _summed_up(request)) is not None:
        return "history-summary", Claim(Kind.REWRITTEN, summed_up, history)
    if (later := _sampled_before(same)) is not None:
        return _repeat(later, history)
    if sole is not None:
        return "history-rewritten", Claim(Kind.REWRITTEN, sole, history)
    if request.before:
        return "history-edited", Claim(Kind.NEXT, _edited(request.before), history)
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
    if request.hashes[at.length] not in turn.shows:
        return False
    return at.head != request.history.head or request.chain[at.length - 1] == at.hash


def _ends(known: Conversation, request: _Request) -> bool:
    """Whether it waits with the answer that the request shows last."""
    return request.last in known.turn.shows and _waits(known)


def _passed(request: _Request) -> Claim | None:
    """A turn with this very history that several siblings who answer alike have left behind. Where a repeat
    took the place of a sibling that was slower, that one finds its place taken; it may have any other's.
    """
    if request.last is None:
        return None
    holder = request.index.with_evidence(request.scope, request.last)
    if len(holder) < 2 or any(_ends(known, request) for known in holder):
        return None
    passed = [
        (not _waits(known), len(known.turns) - place, known.turn.changed_at, number, turn, known)
        for number, known in enumerate(holder)
        for place, turn in enumerate(known.turns)
        if turn.history == request.history
    ]
    if not passed:
        return None
    *_, turn, known = min(passed)
    return Claim(Kind.REPEAT, known, request.history, turn)


def _gave_another_too(known: Conversation, request: _Request) -> bool:
    """Whether it gave the answer shown last, to a repeat that was its sibling's, and went on with another:
    a sibling waits where the other belongs.
    """
    return any(request.last in turn.shows and len(turn.shows) > 1 for turn in known.turns[:-1])


def _sole(holders: Sequence[Collection[Conversation]], request: _Request) -> Conversation | None:
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
        answer_shown = not turn.shows.isdisjoint(request.shown)
        return known.opening not in request.openings, not answer_shown, not _waits(known), turn.changed_at

    return min((known for known, count in votes.items() if count == most), key=order)


def _summed_up(request: _Request) -> Conversation | None:
    index, scope = request.index, request.scope
    if not index.has_anchors:
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
    same: Standing,
    repeat: _Repeat,
) -> Match | None:
    chain = scan.chain()
    for blocks in range(len(chain), -1, -1):
        lengths = index.lengths_after(scope, history, chain[blocks - 1] if blocks else 0)
        for length in sorted(lengths, reverse=True):
            prefix = scan.prefix_hash(length) if length < history.length else None
            if prefix is None:
                continue
            found = _after_prompt(index, scan, scope, history, length, prefix)
            if found is not None:
                return "history", Claim(Kind.NEXT, found, history)
    if (repeated := _repeated(index, same, repeat)) is not None:
        return _repeat(repeated, history)
    later = _sampled_before(same)
    return None if later is None else _repeat(later, history)


def _after_prompt(
    index: ConversationIndex, scan: Scan, scope: int, history: History, length: int, prefix: int
) -> Conversation | None:
    """Who answered the first ``length`` units as the prompt goes on. Where the tokens of an answer are not
    known, one that waits there for its next prompt.
    """
    standing = index.at_prefix(scope, history, prefix)
    if standing is None:
        return None
    for answered in standing.lengths:
        answer = scan.span_hash(length, answered)
        found = None if answer is None else index.after(scope, history, prefix, answer)
        if found is not None:
            return found
    if history.unit == "tokens" and not standing.lengths:
        return next(iter(standing.done), None)
    return None


def _beside(index: ConversationIndex, same: Standing, history: History) -> Match | None:
    """One of ``same`` came to this history from where a sibling that answers alike still waits: it is that
    one's next step, whoever repeats it. As where the history shows the answer, it comes before any repeat;
    for once all siblings have come here, those that are too many can only be repeats, but one that is left
    behind stays so.
    """
    for ahead in islice(same.all(), MAX_AHEAD):
        if len(ahead.turns) < 2:
            continue
        before = ahead.turns[-2]
        for number in before.shows:
            holder = index.all_after(ahead.scope, before.history, before.history.hash, number)
            known = next((known for known in islice(holder, MAX_SHARED) if _waits(known)), None)
            if known is None:
                continue
            if known.segment < ahead.segment:
                return "history-rewritten", Claim(Kind.REWRITTEN, known, history)
            return "history-edited", Claim(Kind.NEXT, known, history)
    return None


def _repeat(conversation: Conversation, history: History) -> Match:
    return "history-retry", Claim(Kind.REPEAT, conversation, history, conversation.turn)


def _changed(conversation: Conversation) -> float:
    return conversation.turn.changed_at


def _waits(conversation: Conversation) -> bool:
    return conversation.turn.state is TurnState.DONE and not conversation.in_flight


def _edited(standing: Standing) -> Conversation:
    """Who may have given an answer that the client changed: one that waits, longest first. A broken turn
    comes next (a partial answer was kept), then one that runs (its last bytes are with the client, its end
    is not with us).
    """
    return next(iter(standing.done or standing.broken or standing.running))


def _marked_failure(same: Standing) -> Conversation | None:
    """Whose failed turn a marked repeat means: one that an SDK repeats, the oldest."""
    return next((known for known in islice(same.broken, MAX_SHARED) if known.turn.may_be_marked), None)


def _repeated(index: ConversationIndex, same: Standing, repeat: _Repeat) -> Conversation | None:
    if repeat.attempt.is_repeat and (unnoticed := _unnoticed(index, same, repeat)) is not None:
        return unnoticed
    return _failed(same, repeat.attempt)


def _unnoticed(index: ConversationIndex, same: Standing, repeat: _Repeat) -> Conversation | None:
    """Whose turn a marked repeat means where no failure is known: the one done longest that nobody goes on
    with (its answer was lost on the way), then one that runs (the client gave up before we saw it leave).

    At an opening there may be none: of samples of one prompt nobody can tell whose answer was lost, and the
    attempt that failed may never have come here (agents that were started before the gateway listened). Two
    agents in one trajectory are worse than a trajectory that nobody goes on with.
    """
    done = next(iter(same.done), None)
    running = next(iter(same.running), None)
    known = done if done is not None and (running is None or repeat.may_mean(done.turn)) else running
    if known is None or known.turn.step:
        return known
    return known if index.is_only_one(known) and repeat.may_mean(known.turn) else None


def _failed(same: Standing, attempt: Attempt) -> Conversation | None:
    """Whose failed turn the same history repeats without a mark: one that no SDK will repeat comes first.

    A first attempt at an opening is not the repeat of one that its own SDK is going to mark: it is a new
    sample.
    """
    marked: Conversation | None = None
    for known in islice(same.broken, MAX_SHARED):
        if not known.turn.will_be_marked:
            return known
        if marked is None and (known.turn.step or attempt is not Attempt.FIRST):
            marked = known
    return marked


def _sampled_before(same: Standing) -> Conversation | None:
    """Who has done this very step, past its opening, and waits; the latest."""
    latest = islice(reversed(same.done), MAX_SHARED)
    return next((known for known in latest if known.turn.step and _waits(known)), None)
