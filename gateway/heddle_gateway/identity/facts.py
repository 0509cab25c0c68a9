"""What identity is told of a request. What it answers is ``heddle_core.Identity``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from heddle_contracts.steps import StepIdentity
from heddle_core import Scan


@dataclass(slots=True)
class RequestFacts:
    """One request. ``path``: as the client called it, with its prefix, percent-decoded. ``headers``:
    lower-case names, Latin-1 values. ``received_at``: monotonic seconds.

    Nobody changes it once it is made. It is not frozen because one is made for every request, and a frozen
    dataclass costs three times as much: each of its fields is set through ``object.__setattr__``.
    """

    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    scan: Scan
    tenant: str
    received_at: float
    body: bytes = b""
    """What ``scan`` read; only who serves the request needs it."""


class Said(NamedTuple):
    """What a request says of itself. ``retry_count``: the value of ``x-stainless-retry-count``; ``source``:
    the convention by which it named its trajectory.
    """

    retry_count: str | None
    source: str | None
    trajectory_id: str | None
    group_id: str | None
    sample: int | None
    parent_id: str | None
    final: bool


class Known(StepIdentity, Protocol):
    """A step that was recognised (heddle_core.Identity, or what another process says of one)."""

    @property
    def final(self) -> bool: ...
