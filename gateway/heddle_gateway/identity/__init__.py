"""Which trajectory a request belongs to.

    book = TrajectoryBook()
    who = book.resolve(RequestFacts(path=..., headers=..., query=..., scan=..., tenant=tenant_of(headers),
                                    received_at=now))        # pure; may raise InvalidId (a ClientError, 400)
    book.step_started(who)                                   # the step exists now
    book.step_ended(who, outcome, answer_or_none, now)       # exactly once for each start
    book.forget(tenant, trajectory_id)                       # the trajectory is over
    book.restore(past, last_seen)                            # at start: what an earlier process counted

    book.said(facts)                                         # for book.place(...) in another process
    book.resume(who, scan, tenant, now)                      # a step that another process began

``split_path(path)`` takes identity prefixes (``/t/{id}/v1/...``) off a path; ``.rest`` is what it left.
"""

from heddle_core import Identity

from heddle_gateway.identity.book import TrajectoryBook
from heddle_gateway.identity.conventions import Conventions
from heddle_gateway.identity.facts import Known, RequestFacts, Said
from heddle_gateway.identity.ids import InvalidId
from heddle_gateway.identity.keys import tenant_of
from heddle_gateway.identity.urls import TaggedPath, split_path

__all__ = [
    "Conventions",
    "Identity",
    "InvalidId",
    "Known",
    "RequestFacts",
    "Said",
    "TaggedPath",
    "TrajectoryBook",
    "split_path",
    "tenant_of",
]
