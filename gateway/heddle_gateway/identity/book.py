"""All that identity remembers: which request is which step of which trajectory.

Invariants: ``resolve`` decides and changes nothing, ``step_started`` makes it so, ``step_ended`` is called
once for each start; no I/O and no clock, time is an argument; memory is bounded by ``capacity``
conversations and ``idle_ttl_s``, and a conversation with a step in flight is never dropped.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Protocol

from heddle_contracts.steps import Outcome
from heddle_core import Scan

from heddle_gateway.identity.conventions import Conventions, OwnFields, Tag, own_fields
from heddle_gateway.identity.conversation import (
    RECENT_TURNS,
    Attempt,
    Claim,
    Conversation,
    History,
    Kind,
    Turn,
    TurnState,
)
from heddle_gateway.identity.conversation_index import (
    MAX_ANSWERS,
    MAX_EVIDENCE,
    ConversationIndex,
    scoped_opening,
)
from heddle_gateway.identity.facts import Identity, RequestFacts
from heddle_gateway.identity.fingerprint import history_of, match
from heddle_gateway.identity.urls import split_path

RETRY_COUNT: Final = "x-stainless-retry-count"
OWN_GROUP: Final = "auto-"
"""Begins the names of groups that nobody named; the opening follows, in 16 hex digits."""


class Said(Protocol):
    """What identity needs of an answer (heddle_core.Answer)."""

    @property
    def answer_hashes(self) -> list[int]: ...
    @property
    def text_spans(self) -> list[tuple[int, int]]: ...
    @property
    def token_spans(self) -> list[tuple[int, int]]: ...
    @property
    def call_ids(self) -> list[int]: ...
    @property
    def anchors(self) -> list[int]: ...


class Past(Protocol):
    """A trajectory as the history has it (heddle_contracts.admin.TrajectorySummary)."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def group_id(self) -> str | None: ...
    @property
    def sample(self) -> int | None: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def segments(self) -> int: ...


def time_ordered_id() -> str:
    """An id for an untagged trajectory: milliseconds of the Unix epoch, then 48 random bits, in hex.

    Ids that begin with the time lie side by side in the history's indexes; random ones touch a page of each
    index for every step (4 times as many page writes, counted over 48,000 steps).
    """
    return f"auto-{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


class TrajectoryBook:
    """``capacity``: conversations kept. ``idle_ttl_s``: seconds without a request after which one is dropped.
    ``session_headers``: an operator's own headers that name a trajectory. ``new_id``: makes ids for
    untagged ones.
    """

    def __init__(
        self,
        *,
        capacity: int = 200_000,
        idle_ttl_s: float = 6 * 3600.0,
        session_headers: Sequence[str] = (),
        new_id: Callable[[], str] = time_ordered_id,
    ) -> None:
        self._capacity = capacity
        self._idle_ttl_s = idle_ttl_s
        self._conventions = Conventions(session_headers)
        self._new_id = new_id
        self._index = ConversationIndex()
        # In the order last seen.
        self._kept: OrderedDict[tuple[str, str], Conversation] = OrderedDict()
        # Samples ever begun of an opening; bounded like the conversations.
        self._samples: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def restore(self, past: Past, last_seen: float) -> None:
        """Takes up a trajectory of an earlier process: under its id, its steps and segments are counted on.

        Histories are not kept, so only a request that names it will find it. Samples of its group are
        counted on as well. Call it before the first request, the one seen longest ago first.
        """
        key = (past.tenant, past.trajectory_id)
        opening = _opening_of(past.group_id)
        if opening is not None and past.sample is not None:
            self._samples[opening] = max(self._samples.get(opening, 0), past.sample + 1)
        if key in self._kept or len(self._kept) >= self._capacity:
            return
        self._kept[key] = Conversation(
            past.tenant,
            past.trajectory_id,
            _scope(past.tenant, past.model or ""),
            opening=None,
            group_id=past.group_id,
            sample=past.sample,
            parent_id=past.parent_id,
            steps=past.steps,
            segment=past.segments - 1,
            last_seen=last_seen,
        )

    # ---------------------------------------------------------------- one request

    def resolve(self, facts: RequestFacts) -> Identity:
        """Raises InvalidId (a ClientError, 400) on an id of ours that cannot be kept."""
        path = split_path(facts.path)
        tag = self._conventions.tag_of(facts, path)
        own = own_fields(facts.headers)
        scan = facts.scan
        scope = _scope(facts.tenant, scan.model or "")
        history = history_of(scan)
        attempt = Attempt.of(facts.headers.get(RETRY_COUNT))
        known = None if tag is None else self._kept.get((facts.tenant, tag.trajectory_id))
        if known is not None and tag is not None:
            source, claim = tag.source, _place(known, scan, history, attempt)
        elif tag is not None:
            source, claim = tag.source, self._new(facts.tenant, tag.trajectory_id, scope, history)
        elif (found := match(self._index, scan, scope, history, attempt, facts.received_at)) is not None:
            source, claim = found
        else:
            source = "anonymous" if history.unit == "opaque" else "history-new"
            claim = self._new(facts.tenant, self._new_id(), scope, history)
        claim.received_at = facts.received_at
        claim.attempt = attempt
        return _identity(claim, source, tag, own, path.rest)

    def _new(self, tenant: str, trajectory_id: str, scope: int, history: History) -> Claim:
        opening = scoped_opening(scope, history)
        conversation = Conversation(
            tenant,
            trajectory_id,
            scope,
            opening,
            group_id=None if opening is None else f"{OWN_GROUP}{opening:016x}",
            sample=None if opening is None else self._samples.get(opening, 0),
            parent_id=None,
        )
        return Claim(Kind.NEW, conversation, history)

    def step_started(self, identity: Identity) -> None:
        """What ``resolve`` decided is so from now on. Call it before another request is resolved.

        Raises ValueError on a second call.
        """
        claim = identity.claim
        if claim.started:
            raise ValueError(f"step {identity.step} of {identity.trajectory_id} has started before")
        claim.started = True
        now = claim.received_at
        conversation = self._keep(claim.conversation, now)
        claim.conversation = conversation
        conversation.group_id = identity.group_id
        conversation.sample = identity.sample
        conversation.parent_id = identity.parent_id
        conversation.segment = identity.segment
        if claim.turn is None:
            claim.turn = self._begin_turn(conversation, claim.history)
        turn = claim.turn
        self._move(conversation, turn, TurnState.RUNNING, now)
        turn.attempt = claim.attempt
        turn.in_flight += 1
        conversation.in_flight += 1

    def _keep(self, conversation: Conversation, now: float) -> Conversation:
        """Files the conversation as the one seen last, and drops what is too old or too many."""
        key = (conversation.tenant, conversation.trajectory_id)
        kept = self._kept.setdefault(key, conversation)
        kept.last_seen = now
        self._kept.move_to_end(key)
        # Two at a time keep up with one added; the rest of a backlog waits for later calls.
        for _ in range(2):
            oldest = next(iter(self._kept.values()))
            if len(self._kept) <= self._capacity and now - oldest.last_seen <= self._idle_ttl_s:
                break
            if oldest.in_flight or oldest is kept:
                self._kept.move_to_end((oldest.tenant, oldest.trajectory_id))
            else:
                self._drop(oldest)
        return kept

    def _begin_turn(self, conversation: Conversation, history: History) -> Turn:
        turn = Turn(history, conversation.steps)
        conversation.steps += 1
        if conversation.known:
            self._index.turn_left(conversation)
        conversation.turns.append(turn)
        del conversation.turns[:-RECENT_TURNS]
        if conversation.known:
            self._index.turn_begun(conversation)
            return turn
        self._index.add(conversation)
        if conversation.opening is not None and turn.step == 0:
            self._samples[conversation.opening] = self._samples.get(conversation.opening, 0) + 1
            self._samples.move_to_end(conversation.opening)
            if len(self._samples) > self._capacity:
                self._samples.popitem(last=False)
        return turn

    def client_left(self, identity: Identity, answer: Said | None, now: float) -> None:
        """The client hung up, and the engine is still being told. A repeat that comes meanwhile, marked or
        not, is a repeat. ``step_ended`` follows.
        """
        self.step_ended(identity, Outcome.ABORTED, answer, now)
        identity.claim.left = True

    def step_ended(self, identity: Identity, outcome: Outcome, answer: Said | None, now: float) -> None:
        """Raises ValueError if the step never started or has ended before."""
        claim = identity.claim
        turn, conversation = claim.turn, claim.conversation
        if claim.left:
            claim.left = False
            return
        if not claim.started or claim.ended or turn is None:
            raise ValueError(f"step {identity.step} of {identity.trajectory_id} is not running")
        claim.ended = True
        turn.in_flight -= 1
        conversation.in_flight -= 1
        conversation.last_seen = now
        if (conversation.tenant, conversation.trajectory_id) in self._kept:
            self._kept.move_to_end((conversation.tenant, conversation.trajectory_id))
        if answer is not None and (outcome is Outcome.DONE or not turn.filed):
            # Of a broken answer the client may keep what it has.
            self._learn(conversation, turn, answer)
        if outcome is Outcome.DONE:
            self._move(conversation, turn, TurnState.DONE, now)
        elif turn.state is TurnState.RUNNING and not turn.in_flight:
            self._move(conversation, turn, TurnState.BROKEN, now)
            turn.attempt = claim.attempt
            turn.begun = answer is not None and bool(answer.answer_hashes)

    def _move(self, conversation: Conversation, turn: Turn, state: TurnState, now: float) -> None:
        before = turn.state
        turn.move(state)
        turn.changed_at = now
        if conversation.known and turn is conversation.turn and state is not before:
            self._index.turn_moved(conversation, before)

    def _learn(self, conversation: Conversation, turn: Turn, answer: Said) -> None:
        """Attempts at one turn may answer differently, and the client may go on with either: all are kept."""
        if not conversation.known:
            return
        latest = turn is conversation.turn
        unit = turn.history.unit
        if unit != "messages":
            spans = answer.token_spans if unit == "tokens" else answer.text_spans
            if latest:
                self._index.answered(conversation, (span for span in spans if span[0]))
            return
        hashes = answer.answer_hashes
        shows = (*hashes, *answer.call_ids)[:MAX_ANSWERS]
        turn.shows |= frozenset(shows)
        self._index.showed(conversation, shows[:MAX_EVIDENCE])
        if latest:
            self._index.answered(conversation, ((0, number) for number in hashes))
            self._index.anchored(conversation, answer.anchors)

    # ---------------------------------------------------------------- the end of a trajectory

    def forget(self, tenant: str, trajectory_id: str) -> None:
        """It is over: a later request under this id, or with its history, begins a new one. Unknown ids are
        fine.
        """
        conversation = self._kept.get((tenant, trajectory_id))
        if conversation is not None:
            self._drop(conversation)

    def _drop(self, conversation: Conversation) -> None:
        del self._kept[conversation.tenant, conversation.trajectory_id]
        if conversation.known:
            self._index.remove(conversation)

    def keys_held(self) -> int:
        """Keys of the index: what bounds its memory."""
        return self._index.size()


def _place(known: Conversation, scan: Scan, history: History, attempt: Attempt) -> Claim:
    """What a request is to the trajectory it names."""
    same = [turn for turn in known.turns if turn.history == history]
    for turn in reversed(same):
        if attempt.is_repeat or turn.state is TurnState.BROKEN:
            return Claim(Kind.REPEAT, known, history, turn)
    if same or history.unit == "opaque":
        # The same request once more, on purpose: parallel calls, or another sample.
        return Claim(Kind.NEXT, known, history)
    beside = True
    for turn in known.turns:
        before = turn.history
        if before.unit != history.unit:
            continue
        if before.length < history.length and scan.prefix_hash(before.length) == before.hash:
            return Claim(Kind.NEXT, known, history)
        beside &= before.head != history.head
    # Another system prompt: a side call of the same agent (a title, a check), not a new history.
    return Claim(Kind.NEXT if beside else Kind.REWRITTEN, known, history)


def _identity(claim: Claim, source: str, tag: Tag | None, own: OwnFields, rest: str) -> Identity:
    known = claim.conversation
    turn = claim.turn
    group = own.group_id or (tag.group_id if tag else None)
    sample = known.sample if group is None or group == known.group_id else None
    # By position: naming thirteen arguments costs as much as all the rest of this.
    return Identity(
        known.trajectory_id,
        source,
        group or known.group_id,
        sample if own.sample is None else own.sample,
        own.parent_id or (tag.parent_id if tag else None) or known.parent_id,
        own.final or (tag is not None and tag.final),
        known.steps if turn is None else turn.step,
        known.segment + (claim.kind is Kind.REWRITTEN),
        claim.kind is Kind.REPEAT,
        claim.kind is Kind.NEW,
        claim.history.hash,
        rest,
        claim,
    )


def _opening_of(group_id: str | None) -> int | None:
    """The opening that a group of our own is named by."""
    digits = group_id.removeprefix(OWN_GROUP) if group_id is not None else ""
    if digits == group_id or len(digits) != 16:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def _scope(tenant: str, model: str) -> int:
    digest = blake2b(f"{tenant}\0{model}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest())
