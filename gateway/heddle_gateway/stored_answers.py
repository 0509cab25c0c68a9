"""Where an answer of the Responses API is kept: on the worker that gave it, and nowhere else.

A request that goes on from one (``previous_response_id``) has to go there. The id says which worker that is:
``resp_``, eight hex digits of a hash of the worker's URL, 24 random ones. So nothing has to be remembered, by
this process or by the next one. An engine that gives its own ids (no SGLang) has them remembered here, the
latest of them, and by this process alone.
"""

import re
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Protocol

from heddle_gateway.asgi.request_body import ClientError
from heddle_gateway.dialects.wire import Scan

FIELD: Final = "previous_response_id"
CAPACITY: Final = 100_000
_OWN: Final = re.compile(r"resp_([0-9a-f]{8})[0-9a-f]{24}")
_ASKED: Final = re.compile(r"/v1/responses/([^/]+)")


class KnownWorker(Protocol):
    """A worker of the fleet, whatever its state (fleet.worker.WorkerView)."""

    @property
    def worker_id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...


class Workers(Protocol):
    """The fleet's list (fleet.registry.Fleet)."""

    def list(self) -> Sequence[KnownWorker]: ...


class StoredAnswers:
    """``capacity``: ids of foreign engines that are remembered."""

    def __init__(self, workers: Workers, capacity: int = CAPACITY) -> None:
        self._workers = workers
        self._capacity = capacity
        self._remembered: OrderedDict[str, str] = OrderedDict()

    def new_id(self, base_url: str) -> str:
        """For an answer of this worker. Who knows an id may read the answer: it cannot be guessed."""
        return f"resp_{_mark(base_url)}{secrets.token_hex(12)}"

    def note(self, response_id: str | None, asked: str, base_url: str) -> None:
        """An answer came from this worker under ``response_id``; ``asked`` is the id that it was given."""
        if response_id is None or response_id == asked:
            return
        self._remembered[response_id] = base_url
        if len(self._remembered) > self._capacity:
            self._remembered.popitem(last=False)

    def holder(self, response_id: str) -> KnownWorker | None:
        """The worker that keeps it, if that is still in the fleet; a server that came back is the later of
        two with one URL.
        """
        workers = self._workers.list()
        url = self._remembered.get(response_id)
        own = _OWN.fullmatch(response_id)
        for worker in reversed(workers):
            if worker.url == url or (url is None and own is not None and _mark(worker.url) == own[1]):
                return worker
        # Of a single worker it is the one, or nobody's.
        return workers[0] if len(workers) == 1 and url is None and own is None else None

    def is_known_here(self, path: str) -> bool:
        """Whether a path asks for an answer whose holder this process alone remembers."""
        asked = _ASKED.match(path)
        return asked is not None and asked[1] in self._remembered

    def check(self, scan: Scan) -> None:
        """Raises ClientError for what no worker of this fleet can do."""
        if scan.background and not scan.stream:
            raise ClientError(
                400,
                "background: a step holds its place until its answer is whole, so there are no background "
                "responses here; leave the field out, or stream the answer",
                param="background",
                code="unsupported_parameter",
            )
        response_id = scan.previous_response_id
        if response_id is not None and self.holder(response_id) is None:
            raise ClientError(
                400,
                f"{FIELD}: no worker of this fleet has the response {response_id[:100]!r}: the one that gave "
                "it has left, or it never was here; send the whole conversation in `input` instead",
                param=FIELD,
                code="previous_response_not_found",
            )

    def only_worker_for(self, scan: Scan) -> int | None:
        """The worker that keeps what this request goes on from; None: any can serve it, or it is not known
        here which.
        """
        response_id = scan.previous_response_id
        holder = self.holder(response_id) if response_id is not None else None
        return None if holder is None else holder.worker_id


@lru_cache(maxsize=4096)
def _mark(base_url: str) -> str:
    return blake2b(base_url.encode(), digest_size=4).hexdigest()
