"""Which request is which step of which trajectory: what requests say of themselves, and the native book that
remembers the rest.

The rules and all that is remembered are in ``router_rs/crates/identity``; what headers, paths, keys and body
fields mean is in ``conventions.py``.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from heddle_contracts.steps import Outcome
from heddle_core import Answer, Identity, IdentityBook, Scan

from heddle_gateway.identity.conventions import Conventions, OwnFields, Tag, own_fields
from heddle_gateway.identity.facts import Known, RequestFacts, Said
from heddle_gateway.identity.urls import split_path

RETRY_COUNT: Final = "x-stainless-retry-count"


class Member(Protocol):
    """A trajectory that was announced as part of a batch."""

    @property
    def group_id(self) -> str | None: ...
    @property
    def sample(self) -> int | None: ...


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
        self._limits = (capacity, idle_ttl_s, new_id)
        self._book = self._new_book()
        self._conventions = Conventions(session_headers)
        self.announced: Callable[[str], Member | None] = lambda trajectory_id: None
        """Finds a trajectory that was announced and has not come."""

    def __len__(self) -> int:
        return len(self._book)

    def begin_anew(self) -> None:
        """Forgets everything: another process remembers from now on."""
        self._book = self._new_book()

    def _new_book(self) -> IdentityBook:
        capacity, idle_ttl_s, new_id = self._limits
        return IdentityBook(capacity=capacity, idle_ttl_s=idle_ttl_s, new_id=new_id)

    def memory(self, tenant: str, trajectory_id: str) -> str | None:
        """What is remembered of a trajectory's history, for `restore` in another process of this release."""
        return self._book.memory(tenant, trajectory_id)

    def restore(self, past: Past, last_seen: float, memory: str | None = None) -> None:
        """Takes up a trajectory of an earlier process: under its id, its steps and segments are counted on.

        Without a memory only a request that names it will find it. Samples of its group are counted on as
        well. Call it before the first request, the one seen longest ago first.
        """
        self._book.restore(
            past.tenant,
            past.trajectory_id,
            model=past.model or "",
            group_id=past.group_id,
            sample=past.sample,
            parent_id=past.parent_id,
            steps=past.steps,
            segments=past.segments,
            last_seen=last_seen,
            memory=memory,
        )

    def resolve(self, facts: RequestFacts) -> Identity:
        """Changes nothing. Raises InvalidId (a ClientError, 400) on an id of ours that cannot be kept."""
        tag, own = self._read(facts)
        if tag is None and own is None:
            # Nearly every request: it says nothing of itself.
            retry_count = facts.headers.get(RETRY_COUNT)
            return self._book.resolve(facts.scan, facts.tenant, retry_count, facts.received_at)
        return self.place(facts.scan, facts.tenant, facts.received_at, _said(facts, tag, own))

    def said(self, facts: RequestFacts) -> Said:
        """What a request says of itself, for `place` in another process. Raises InvalidId."""
        return _said(facts, *self._read(facts))

    def place(self, scan: Scan, tenant: str, received_at: float, said: Said) -> Identity:
        """As `resolve`, of a request that another process has read."""
        if said.trajectory_id is not None and said.group_id is None:
            member = self.announced(said.trajectory_id)
            if member is not None:
                sample = member.sample if said.sample is None else said.sample
                said = said._replace(group_id=member.group_id, sample=sample)
        return self._book.resolve(scan, tenant, said.retry_count, received_at, *said[1:])

    def resume(self, who: Known, scan: Scan, tenant: str, now: float) -> Identity:
        """A step that another process began: it runs on here under its number, and has started."""
        return self._book.resume(
            scan,
            tenant,
            None,
            now,
            who.source,
            who.trajectory_id,
            who.group_id,
            who.sample,
            who.parent_id,
            who.final,
            who.step,
            who.segment,
        )

    def _read(self, facts: RequestFacts) -> tuple[Tag | None, OwnFields | None]:
        return self._conventions.tag_of(facts, split_path(facts.path)), own_fields(facts.headers)

    def step_started(self, identity: Identity) -> None:
        """What ``resolve`` decided is so from now on. Call it before another request is resolved.

        Raises ValueError on a second call.
        """
        self._book.step_started(identity)

    def client_left(self, identity: Identity, answer: Answer | None, now: float) -> None:
        """The client hung up, and the engine is still being told. A repeat that comes meanwhile, marked or
        not, is a repeat. ``step_ended`` follows.
        """
        self._book.client_left(identity, answer, now)

    def step_ended(self, identity: Identity, outcome: Outcome, answer: Answer | None, now: float) -> None:
        """Raises ValueError if the step never started or has ended before."""
        self._book.step_ended(identity, outcome, answer, now)

    def forget(self, tenant: str, trajectory_id: str) -> None:
        """It is over: a later request under this id, or with its history, begins a new one. Unknown ids are
        fine.
        """
        self._book.forget(tenant, trajectory_id)

    def keys_held(self) -> int:
        """Keys of the index: what bounds its memory."""
        return self._book.keys_held()


def _said(facts: RequestFacts, tag: Tag | None, own: OwnFields | None) -> Said:
    own = own or OwnFields()
    retry_count = facts.headers.get(RETRY_COUNT)
    if tag is None:
        return Said(retry_count, None, None, own.group_id, own.sample, own.parent_id, own.final)
    return Said(
        retry_count,
        tag.source,
        tag.trajectory_id,
        own.group_id or tag.group_id,
        own.sample,
        own.parent_id or tag.parent_id,
        own.final or tag.final,
    )
