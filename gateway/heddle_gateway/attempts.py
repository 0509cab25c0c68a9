"""One try of a step on one worker: its bytes go out, the answer comes back.

Invariants: an attempt that failed is given up (AttemptFailed) only while nothing of an answer has reached
the client, so that another worker may take the step; whoever may still be at work on it is told to stop; a
step is ended before the client has the last byte, since its next request may come at once and must find it
done.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from heddle_contracts.steps import Outcome

from heddle_gateway.asgi.client_exchange import ClientExchange, Headers
from heddle_gateway.asgi.interrupts import Interrupted, Reason
from heddle_gateway.dialects.dialect import Dialect
from heddle_gateway.dialects.errors import ApiError, message_of, wrapped
from heddle_gateway.dialects.events import EventCutter
from heddle_gateway.dialects.stream_errors import error_event
from heddle_gateway.dialects.wire import Answer, StreamTap, read_answer
from heddle_gateway.live.decisions import Dispatch, FailureKind
from heddle_gateway.peers.desk import Desks
from heddle_gateway.running_step import (
    Attempt,
    AttemptFailed,
    Run,
    body_for,
    headers_for,
    new_rid,
    outcome_of,
)
from heddle_gateway.stored_answers import StoredAnswers
from heddle_gateway.upstream.errors import (
    OutOfFiles,
    UpstreamError,
    WorkerLost,
    WorkerOverCommitted,
    WorkerSilent,
    WorkerUnreachable,
)
from heddle_gateway.upstream.forward import Exchange, Upstream
from heddle_gateway.upstream.headers import limit_lines, retry_after_of, worker_line

log = logging.getLogger(__name__)

# An error body is a message, not an answer.
MAX_ERROR_BODY: Final = 1024 * 1024
# What is longer is cut off, so that it is no JSON.
MAX_DOCUMENT: Final = 1024 * 1024 * 1024
JSON: Final = b"content-type: application/json\r\n"
# Of a worker's fault these do not go on: the body is written anew.
OF_THE_BODY: Final = (b"content-type", b"content-encoding")
# "Not here, not now": SGLang's full queue, or pushed out of it by a request of higher priority. Another
# worker may.
BUSY_STATUSES: Final = frozenset({429, 503})
# The same as an event of a stream that began at once (SGLang: tokenizer_manager, scheduler).
BUSY_WORDS: Final = (
    b"The request queue is full",
    b"aborted by a higher priority request",
    b'"overloaded_error"',
)
# Of a stream's beginning, which repeats the request's tools and instructions, so much is held back.
MAX_OPENING: Final = 4 * 1024 * 1024
# A proxy in front of a worker that is gone.
GONE_STATUSES: Final = frozenset({502})


class Attempts:
    """``end``: closes a step's account and tells everybody who counts, once."""

    def __init__(
        self,
        *,
        desks: Desks,
        upstream: Upstream,
        stored: StoredAnswers,
        end: Callable[[Run, Outcome, int | None], None],
    ) -> None:
        self._desks = desks
        self._upstream = upstream
        self._stored = stored
        self._end = end
        self._aborts: set[asyncio.Task[bool]] = set()

    async def close(self) -> None:
        """Waits for the aborts under way; each is bounded."""
        if self._aborts:
            await asyncio.wait(self._aborts)

    async def make(self, run: Run, dispatch: Dispatch) -> None:
        """Until the client has its answer, and the step its ending. Raises AttemptFailed, Interrupted."""
        desk = self._desks.now
        worker = desk.worker(dispatch.worker, dispatch.generation)
        if worker is None or run.interrupts.is_worker_gone:
            raise AttemptFailed("unreachable", "the worker has left the fleet")
        call = run.call
        stores = call.dialect.stores_answers
        rid = self._stored.new_id(worker.base_url) if stores else new_rid()
        attempt = run.attempt = Attempt(dispatch, worker, rid)
        desk.sent(run)
        run.tap = run.answer = None
        run.account.dispatched(worker.name, dispatch.level, time.monotonic())
        whole = not call.scan.stream
        try:
            with run.interrupts:
                exchange = await self._upstream.open(
                    worker,
                    call.dialect.upstream_path,
                    headers_for(call, attempt),
                    body_for(call, attempt),
                    whole=whole,
                )
            try:
                # What the worker says of its answer counts: engines take "stream": 1 for true, and some
                # know no streams.
                if exchange.status >= 300:
                    await self._pass_fault_on(run, exchange)
                elif exchange.whole:
                    await self._pass_answer_on(run, exchange, exchange.body())
                elif exchange.is_document:
                    with run.interrupts:
                        body = await exchange.read_rest(MAX_DOCUMENT)
                    await self._pass_answer_on(run, exchange, body)
                else:
                    await self._pass_stream_on(run, exchange)
            finally:
                exchange.close()
        except UpstreamError as error:
            await self._lose_worker(run, error)
        except Interrupted as interrupted:
            if interrupted.reason is not Reason.WORKER_GONE:
                raise
            await self._lose_worker(run, WorkerLost("the worker is gone", answer_began=False))

    def give_up(self, run: Run, dispatch: Dispatch, failure: AttemptFailed) -> None:
        """The core is told, and decides anew."""
        if run.attempt is not None:
            # Another process may decide now, with its own numbers of workers.
            dispatch = run.attempt.dispatch
        log.info("attempt %d of step %d failed: %s", run.account.attempts, run.ticket.step, failure.message)
        run.last_failure, run.retry_after_s = failure.message, failure.retry_after_s
        run.limits = failure.limits
        if not failure.is_ours:
            self._note_failure(run, failure.kind)
        if failure.may_still_run:
            self.abort_aside(run)
        run.attempt = None
        run.interrupts.forget_worker()
        self._desks.now.attempt_failed(run, dispatch, failure.kind)

    async def abort(self, run: Run) -> None:
        """Tells the worker to stop, and waits for its word."""
        attempt = run.attempt
        if attempt is not None and attempt.worker.features.abort:
            await self._upstream.abort(attempt.worker, attempt.rid)

    def abort_aside(self, run: Run) -> None:
        """Tells a worker that may still be at work, without waiting for it."""
        attempt = run.attempt
        if attempt is not None and attempt.worker.features.abort:
            task = asyncio.create_task(self._upstream.abort(attempt.worker, attempt.rid))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    # ---------------------------------------------------------------- answers

    async def _pass_answer_on(self, run: Run, exchange: Exchange, body: bytes) -> None:
        try:
            run.answer = read_answer(body, run.call.dialect.name)
        except ValueError as error:
            lines = exchange.lines().lower()
            if b"text/event-stream" in lines:
                # All its events came in one read.
                exchange.unread(body)
                await self._pass_stream_on(run, exchange)
                return
            if b"content-encoding:" not in lines and not _is_json(body):
                # Empty, a proxy's page, or cut off where only the end of the connection tells: no answer.
                raise AttemptFailed(
                    "worker_error", f"it answered {exchange.status} with what is no JSON: {error}"
                ) from error
            log.warning("an answer of worker %s cannot be read: %s", run.account.worker, error)
        now = time.monotonic()
        run.account.answering(now)
        if now > self._desks.now.sure_until:
            with run.interrupts:
                await self._desks.sure()
        self._note_stored(run)
        # Comments may have begun a stream: then there is no way back to a document.
        fits = run.client.status is None
        self._end(run, outcome_of(run.answer) if fits else Outcome.WORKER_ERROR, exchange.status)
        if self._desks.elsewhere is not None:
            await self._desks.elsewhere.taken(run)
        lines = self._lines_of(run, exchange)
        if fits:
            await run.client.whole(exchange.status, lines, body)
        else:
            fault = ApiError(502, "The worker answered with no stream of events.", code="no_stream")
            await refuse_with(run.client, run.call.dialect, fault, run)

    async def _pass_stream_on(self, run: Run, exchange: Exchange) -> None:
        call, client = run.call, run.client
        hide_usage = call.scan.stream and call.dialect.asks_usage and call.scan.include_usage is not True
        tap = run.tap = StreamTap(call.dialect.name, hide_usage=hide_usage)
        # A broken event must not swallow the error event that may have to follow it.
        cutter = EventCutter()
        opening = bytearray()
        with run.interrupts:
            while data := await exchange.read():
                out = cutter.feed(tap.feed(data))
                if call.dialect.opens_early and not run.account.answer_began and not run.account.ended:
                    opening += out
                    if tap.silent and len(opening) < MAX_OPENING:
                        # Nothing is said yet: as long as the client has none of it, another worker may.
                        continue
                    out = bytes(opening)
                    opening.clear()
                    _raise_if_busy(tap, out)
                if out and not run.account.answer_began and not run.account.ended:
                    await self._begin_stream(run, exchange)
                if tap.done and not run.account.ended:
                    # A client leaves at the end it was told of, and may be back at once.
                    if time.monotonic() > self._desks.now.sure_until:
                        await self._desks.sure()
                    self._end_stream(run, tap)
                    if self._desks.elsewhere is not None:
                        await self._desks.elsewhere.taken(run)
                if out:
                    await client.part(out)
            held = bytes(opening) + cutter.rest() + tap.finish()
            if not run.account.ended:
                if held and not run.account.answer_began and _is_whole(tap.answer(), call.scan.choices):
                    # A single event, without the blank line behind it.
                    await self._begin_stream(run, exchange)
                if time.monotonic() > self._desks.now.sure_until:
                    await self._desks.sure()
                self._end_stream(run, tap)
                if self._desks.elsewhere is not None:
                    await self._desks.elsewhere.taken(run)
        await client.end(held)

    async def _begin_stream(self, run: Run, exchange: Exchange) -> None:
        run.account.answering(time.monotonic())
        self._desks.now.first_byte(run)
        lines = self._lines_of(run, exchange)
        if run.pings is not None:
            run.pings.stop()
        if run.client.status is None:
            await run.client.begin(exchange.status, lines)

    def _end_stream(self, run: Run, tap: StreamTap) -> None:
        answer = run.answer = tap.answer()
        if not _is_whole(answer, run.call.scan.choices):
            # A proxy in between can close a broken stream cleanly; half an answer is not an answer.
            raise WorkerLost("the stream ended without an end", answer_began=True)
        self._note_stored(run)
        self._end(run, outcome_of(answer), run.client.status)

    async def _pass_fault_on(self, run: Run, exchange: Exchange) -> None:
        """A worker's status over 299. Raises AttemptFailed where another worker may do better."""
        # A redirect is not followed (it could lead anywhere) and is of no use to the client.
        status = exchange.status if exchange.status >= 400 else 502
        if exchange.whole:
            body = exchange.body()
        else:
            with run.interrupts:
                body = await exchange.read_rest(MAX_ERROR_BODY)
        if status in BUSY_STATUSES:
            raise AttemptFailed(
                "overloaded",
                message_of(body),
                retry_after_s=retry_after_of(exchange.headers),
                limits=limit_lines(exchange.headers),
            )
        if exchange.status in GONE_STATUSES:
            raise AttemptFailed("unreachable", message_of(body))
        if status >= 500:
            self._note_failure(run, "worker_error")
        outcome = Outcome.CLIENT_ERROR if status < 500 else Outcome.WORKER_ERROR
        self._end(run, outcome, run.client.status or status)
        lines = JSON + self._lines_of(run, exchange, without=OF_THE_BODY)
        dialect = run.call.dialect
        await refuse(run.client, dialect, status, lines, wrapped(status, body, dialect.errors), run)

    def _lines_of(self, run: Run, exchange: Exchange, without: Sequence[bytes] = ()) -> bytes:
        """The worker's own headers that cross, and which worker it was. It is alive, by the way."""
        attempt = run.attempt
        assert attempt is not None
        self._desks.now.answered(run)
        return exchange.lines(without) + worker_line(attempt.worker.name)

    def _note_stored(self, run: Run) -> None:
        """An answer that can be asked for again is where its id says, or is remembered."""
        answer, attempt = run.answer, run.attempt
        if run.call.dialect.stores_answers and answer is not None and attempt is not None:
            self._stored.note(answer.response_id, attempt.rid, attempt.worker.base_url)

    # ---------------------------------------------------------------- what goes wrong

    async def _lose_worker(self, run: Run, error: UpstreamError) -> None:
        """Raises AttemptFailed until the client has seen something; then ends its stream with an error."""
        if run.account.ended:
            await run.client.end()  # lost behind [DONE]: the answer is whole
            return
        silent = isinstance(error, WorkerSilent)
        if not run.account.answer_began and not silent:
            if isinstance(error, WorkerOverCommitted | OutOfFiles):
                raise AttemptFailed("overloaded", str(error), is_ours=True) from error
            sent = not isinstance(error, WorkerUnreachable)
            raise AttemptFailed("unreachable", str(error), may_still_run=sent) from error
        self._note_failure(run, "unreachable")
        self.abort_aside(run)
        if run.tap is not None:
            run.answer = run.tap.answer()
        outcome = Outcome.TIMED_OUT if silent else Outcome.WORKER_LOST
        where = "in mid-answer" if run.account.answer_began else "before it answered"
        fault = ApiError(504, f"The worker was lost {where}: {error}", code=outcome.value)
        self._end(run, outcome, run.client.status or fault.status)
        await refuse_with(run.client, run.call.dialect, fault, run)

    def _note_failure(self, run: Run, kind: FailureKind) -> None:
        self._desks.now.failed(run, kind)


def _raise_if_busy(tap: StreamTap, out: bytes) -> None:
    """Raises AttemptFailed for a refusal that came as the first event."""
    error = tap.answer().error
    if error is not None and any(word in out for word in BUSY_WORDS):
        raise AttemptFailed("overloaded", error)


def _is_whole(answer: Answer, choices: int) -> bool:
    """Whether a stream said that it is over, one way or another: all of it, or each choice that was begun or
    asked for.
    """
    if answer.done or answer.error is not None:
        return True
    return len(answer.finish_reasons) >= max(choices, len(answer.answer_hashes))


def _is_json(body: bytes) -> bool:
    """Whether a JSON reader takes it, though the scan does not: it may nest deeper."""
    try:
        json.loads(body, parse_int=str)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


async def refuse(
    client: ClientExchange, dialect: Dialect, status: int, lines: bytes, error: bytes, run: Run | None = None
) -> None:
    """An error as an answer of its own, or as the last event of a stream that has begun."""
    if client.status is None:
        await client.whole(status, lines, error)
        return
    seen = run.answer if run is not None else None
    rid = run.attempt.rid if run is not None and run.attempt is not None else f"resp_{new_rid()}"
    model = run.call.scan.model if run is not None else None
    await client.end(error_event(dialect.errors, error, seen, rid, model))


async def refuse_with(
    client: ClientExchange, dialect: Dialect, fault: ApiError, run: Run | None = None
) -> None:
    """An error of ours. What the last worker said of its limits goes with it."""
    lines = _lines(fault.headers()) + (run.limits if run is not None else b"")
    await refuse(client, dialect, fault.status, lines, fault.body(dialect.errors), run)


def _lines(headers: Headers) -> bytes:
    return b"".join(b"%b: %b\r\n" % pair for pair in headers)
