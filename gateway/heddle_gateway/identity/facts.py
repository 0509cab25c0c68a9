"""What identity is told of a request. What it answers is ``heddle_core.Identity``."""

from collections.abc import Mapping
from dataclasses import dataclass

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
