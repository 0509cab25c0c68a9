"""What serve_step holds of one step while it runs, and what it needs of the fleet."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final, Protocol

from heddle_contracts.steps import Outcome

from heddle_gateway.accounting.open_step import OpenStep
from heddle_gateway.asgi.client_exchange import ClientExchange
from heddle_gateway.asgi.interrupts import Interrupts
from heddle_gateway.asgi.pings import Pings
from heddle_gateway.dialects.aborted_answer import aborted_answer, aborted_stream
from heddle_gateway.dialects.dialect import Dialect
from heddle_gateway.dialects.errors import ApiError
from heddle_gateway.dialects.wire import Answer, Scan, StreamTap, splice
from heddle_gateway.identity import Identity
from heddle_gateway.live.decisions import Dispatch, FailureKind, Reject
from heddle_gateway.live.directory import LiveTrajectory
from heddle_gateway.live.ticket import Ticket
from heddle_gateway.peers.desk import Who
from heddle_gateway.upstream.headers import override_lines

# Body fields that speak to this gateway; a strict engine would answer 400 to them.
OWN_FIELDS: Final = ("program_id", "docker_ids")
# The core's numbers are higher first; vLLM serves lower ones first, SGLang does when told to.
PRIORITY_SIGN: Final = {"higher": 1, "lower": -1}
REJECTIONS: Final = {
    "no_worker": "No worker can take this step now",
    "attempts_exhausted": "Every worker that was tried failed",
}


class Features(Protocol):
    """What a worker can do (fleet.features.Features). ``priority``: "higher", "lower" or "none"."""

    @property
    def abort(self) -> bool: ...
    @property
    def rid(self) -> bool: ...
    @property
    def priority(self) -> str: ...


class Endpoint(Protocol):
    """A worker as the byte path sees it (fleet.events.WorkerEndpoint)."""

    @property
    def name(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    @property
    def api_key(self) -> str | None: ...
    @property
    def features(self) -> Features: ...


class Fleet(Protocol):
    """Looks workers up and hears how they do (fleet.registry.Fleet)."""

    def worker(self, worker_id: int, generation: int) -> Endpoint | None: ...
    def note_success(self, worker_id: int, generation: int) -> None: ...
    def note_failure(self, worker_id: int, generation: int, kind: FailureKind) -> None: ...


class AttemptFailed(Exception):
    """Nothing of an answer has reached the client, and another worker may do better.

    ``is_ours``: the worker has no part in it. ``may_still_run``: the worker had the request and may be at
    work on it. ``retry_after_s``: when to come back, by its own word; 0 without one. ``limits``: its header
    lines about limits.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        is_ours: bool = False,
        may_still_run: bool = False,
        retry_after_s: float = 0.0,
        limits: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.limits = limits
        self.kind: FailureKind = kind
        self.message = message
        self.is_ours = is_ours
        self.may_still_run = may_still_run
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Call:
    """A request that was understood. ``headers``: the ready lines for the worker. ``claim`` and ``live``: of
    this process' book and directory, None while another process decides.
    """

    dialect: Dialect
    body: bytes
    scan: Scan
    who: Who
    tenant: str
    headers: bytes
    claim: Identity | None
    live: LiveTrajectory | None


@dataclass(slots=True)
class Attempt:
    """One try of a step on one worker. ``rid``: of fixed length, never used twice."""

    dispatch: Dispatch
    worker: Endpoint
    rid: str


@dataclass(slots=True)
class Run:
    """A step on its way, and everything its ending needs."""

    call: Call
    client: ClientExchange
    interrupts: Interrupts
    account: OpenStep
    ticket: Ticket
    pings: Pings | None = None
    attempt: Attempt | None = None
    tap: StreamTap | None = None
    answer: Answer | None = None
    last_failure: str = ""
    retry_after_s: float = 0.0
    left: bool = False
    """Its client is gone, and the engine is being told."""
    limits: bytes = b""


_process = f"{Random().getrandbits(64):016x}"
_numbers = count(1)


def new_rid() -> str:
    """32 hex digits: the process by a random number, then the attempt's. They need to be new, not secret."""
    return f"{_process}{next(_numbers):016x}"


def identity_lines(who: Who) -> bytes:
    """What every answer to a step says of it, as header lines. Ids and sources hold no control characters
    (identity.ids).
    """
    return b"x-heddle-trajectory-id: %b\r\nx-heddle-trajectory-source: %b\r\nx-heddle-step: %d\r\n" % (
        who.trajectory_id.encode("latin-1", "replace"),
        who.source.encode("latin-1", "replace"),
        who.step,
    )


class RunningSteps:
    """The live steps of this process, by ticket."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        """The one that came first first."""
        return iter(list(self._runs.values()))

    def add(self, run: Run) -> None:
        self._runs[run.ticket.step] = run

    def remove(self, run: Run) -> None:
        del self._runs[run.ticket.step]

    def attempts_of(self, rid: str) -> list[Attempt]:
        """Running attempts under this id: the one minted for the worker, or the caller's own."""
        return [
            run.attempt
            for run in self._runs.values()
            if run.attempt is not None and (rid == run.attempt.rid or _was_sent_as(run.call, rid))
        ]

    def end_waiting(self, rid: str | None) -> int:
        """Aborts the steps that wait here (of the caller's ``rid``; all for None), and those that run where
        the engine cannot be told: their connections are closed. Returns how many.
        """
        waiting = [
            run
            for run in self._runs.values()
            if (run.attempt is None or not run.attempt.worker.features.abort)
            and (
                rid is None
                or (run.attempt is not None and rid == run.attempt.rid)
                or _was_sent_as(run.call, rid)
            )
        ]
        for run in waiting:
            run.interrupts.stop()
        return len(waiting)


def _was_sent_as(call: Call, rid: str) -> bool:
    """Whether the client gave its request this id. Aborts are rare: bodies are read when one comes."""
    if rid.encode() not in call.body:
        return False
    try:
        body = json.loads(call.body, parse_int=str)
    except (ValueError, RecursionError):
        return False  # read by the scan all the same: it nests deeper than Python likes
    return isinstance(body, dict) and body.get(call.dialect.rid_member) == rid


def priority_for(attempt: Attempt) -> int | None:
    """The number that the worker's engine understands; None where it would refuse one."""
    sense = attempt.worker.features.priority
    return None if sense == "none" else PRIORITY_SIGN[sense] * attempt.dispatch.priority


def headers_for(call: Call, attempt: Attempt) -> bytes:
    """The header lines of this attempt. Whoever knows request ids is SGLang, and reads these."""
    if call.dialect.named_in_body or not attempt.worker.features.rid:
        return call.headers
    return call.headers + override_lines(attempt.rid, priority_for(attempt))


def body_for(call: Call, attempt: Attempt) -> bytes:
    """The body of this attempt: rid and priority where the engine knows them, usage asked for, else
    untouched.
    """
    features, named = attempt.worker.features, call.dialect.named_in_body
    priority = priority_for(attempt)
    fields = call.scan.fields
    drop: list[str] = [name for name in OWN_FIELDS if name in fields] if fields else []
    if named and priority is None:
        drop.append("priority")
    if named and not features.rid:
        drop.append("rid")
    if not named and not drop:
        return call.body
    return splice(
        call.body,
        call.scan,
        rid=attempt.rid if named and features.rid else None,
        priority=priority if named else None,
        ask_usage=call.scan.stream and call.dialect.asks_usage,
        drop=drop,
    )


def aborted_body(run: Run) -> bytes:
    """The answer to a step that was aborted here, or the last of it."""
    scan = run.call.scan
    write = aborted_stream if scan.stream or run.client.status is not None else aborted_answer
    return write(
        run.call.dialect,
        request_id=f"aborted-{run.ticket.step}",
        model=scan.model,
        choices=scan.choices,
        prompt_tokens=scan.prompt_tokens,
        created=int(time.time()),
    )


def outcome_of(answer: Answer | None) -> Outcome:
    """Of a whole answer. It may still say that the engine broke it off; that is never a normal stop."""
    if answer is None or answer.error is not None:
        return Outcome.WORKER_ERROR
    return Outcome.ABORTED if "abort" in answer.finish_reasons else Outcome.DONE


def rejection(reject: Reject, last_failure: str, retry_after_s: float) -> ApiError:
    """What the caller is told of a step that the core refuses; the workers' own words help."""
    message = REJECTIONS.get(reject.reason, "This step cannot run now")
    if last_failure:
        message = f"{message}; the last one said: {last_failure}"
    retry_after_s = max(retry_after_s, reject.retry_after_ms / 1000)
    return ApiError(reject.status, message, code=reject.reason, retry_after_s=retry_after_s)
