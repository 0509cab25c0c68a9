"""What identity is told of a request, and what it answers.

Nobody changes these objects once they are made. They are not frozen dataclasses because one of each is made
for every request, and a frozen one costs three times as much: each of its fields is set through
``object.__setattr__``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from heddle_core import Scan

from heddle_gateway.identity.conversation import Claim


@dataclass(slots=True)
class RequestFacts:
    """One request. ``path``: as the client called it, with its prefix, percent-decoded. ``headers``:
    lower-case names, Latin-1 values. ``received_at``: monotonic seconds.
    """

    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    scan: Scan
    tenant: str
    received_at: float


@dataclass(slots=True)
class Identity:
    """Which step of which trajectory a request is.

    ``source``: the rule that fired (a convention's name, or "history-..." from the fingerprint). ``step``:
    from 0. ``segment``: grows by one each time the history was rewritten. ``retry_of_step``: the client
    repeats a step that is known, under its number. ``request_hash``: of the whole history. ``rest``: the
    path without an identity prefix. ``claim`` belongs to the book.
    """

    trajectory_id: str
    source: str
    group_id: str | None
    sample: int | None
    parent_id: str | None
    final: bool
    step: int
    segment: int
    retry_of_step: bool
    is_new: bool
    request_hash: int
    rest: str
    claim: Claim = field(repr=False, compare=False)
