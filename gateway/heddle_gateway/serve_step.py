"""The story of one request on the data path.

    understand   body, scan, trajectory: what is asked, and by whom           (errors here: no step exists
    yet) arrive       the core is told; it dispatches at once, later, or rejects attempt      bytes to the
    worker, bytes back; as often as nothing of an answer has reached the client end          exactly once,
    whatever happened: core, identity, history, metrics

Invariants: a request that was understood becomes one step with one ending; a body is never re-serialised;
the client's hang-up interrupts any wait, and the step ends only after the engine was told to stop; nothing
decides here where or when a step runs.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from heddle_contracts.steps import Outcome

from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.accounting.open_step import OpenStep
from heddle_gateway.asgi.interrupts import Interrupted, Interrupts, Reason, Receive
from heddle_gateway.asgi.pings import EVENT_STREAM, Pings
from heddle_gateway.asgi.reply import Headers, Reply, Send
from heddle_gateway.asgi.request_body import ClientError, ClientLeft, read_body
from heddle_gateway.dialects.dialect import Dialect
from heddle_gateway.dialects.errors import ApiError, message_of, stream_error_event, wrapped
from heddle_gateway.dialects.events import end_of_last_event
from heddle_gateway.dialects.wire import Answer, StreamTap, read_answer, scan_body
from heddle_gateway.identity import RequestFacts, TrajectoryBook
from heddle_gateway.identity.keys import tenant_of
from heddle_gateway.live.decisions import Dispatch, FailureKind, Reject
from heddle_gateway.live.driver import Driver
from heddle_gateway.running_step import (
    Attempt,
    AttemptFailed,
    Call,
    Fleet,
    Run,
    RunningSteps,
    aborted_body,
    body_for,
    identity_headers,
    outcome_of,
    rejection,
)
from heddle_gateway.upstream.errors import (
    UpstreamError,
    WorkerLost,
    WorkerOverCommitted,
    WorkerSilent,
    WorkerUnreachable,
)
from heddle_gateway.upstream.forward import Exchange, Upstream
from heddle_gateway.upstream.headers import answer_headers, forward_block, retry_after_of

log = logging.getLogger(__name__)

# An error body is a message, not an answer.
MAX_ERROR_BODY: Final = 1024 * 1024
JSON: Final = (b"content-type", b"application/json")
# "Not here, not now": SGLang's full queue, or pushed out of it by a request of higher priority. Another
# worker may.
BUSY_STATUSES: Final = frozenset({429, 503})
# A proxy in front of a worker that is gone.
GONE_STATUSES: Final = frozenset({502})


class StepServer:
    """The data path. ``sinks`` take every ended step and must neither block nor raise."""

    def __init__(
        self,
        *,
        book: TrajectoryBook,
        driver: Driver,
        fleet: Fleet,
        upstream: Upstream,
        sinks: Sequence[Callable[[EndedStep], None]],
        on_refused: Callable[[int], None],
        max_body_bytes: int,
        ping_period_s: float = 0.0,
    ) -> None:
        self._book = book
        self._driver = driver
        self._fleet = fleet
        self._upstream = upstream
        self._sinks = tuple(sinks)
        self._on_refused = on_refused
        self._max_body_bytes = max_body_bytes
        self._ping_period_s = ping_period_s
        self._aborts: set[asyncio.Task[bool]] = set()
        self.running = RunningSteps()

    async def close(self) -> None:
        """Waits for the aborts under way; each is bounded."""
        if self._aborts:
            await asyncio.wait(self._aborts)

    # ---------------------------------------------------------------- the story

    async def serve(
        self, dialect: Dialect, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """The raw ASGI endpoint of one dialect."""
        reply = Reply(send)
        reply.headers.append((b"x-request-id", scope["heddle.request_id"]))
        try:
            call = await self._understand(dialect, scope, receive)
            await self._run(call, reply, Interrupts(receive, scope.get("heddle.hang_ups")))
        except ClientLeft:
            return
        except ClientError as error:
            self._on_refused(error.status)
            fault = ApiError(error.status, error.message, param=error.param)
            await _refuse(reply, fault.status, fault.headers(), fault.body())
        except Exception:
            # A defect of ours: the server logs it, the caller gets the request id to name it by.
            if not reply.ended:
                fault = ApiError(
                    500, "The gateway failed; its log has the request id.", code="gateway_defect"
                )
                await _refuse(reply, fault.status, fault.headers(), fault.body())
            raise

    async def _run(self, call: Call, reply: Reply, interrupts: Interrupts) -> None:
        run = self._arrive(call, reply, interrupts)
        try:
            await self._follow_decisions(run)
        except Interrupted as interrupted:
            if interrupted.reason is Reason.STOPPED:
                await self._answer_aborted(run)
            else:
                await self._stop_for_client(run)
        finally:
            run.interrupts.close()
            if not run.account.ended:
                # A shutdown or a defect of ours: the step ends all the same.
                self._abort_aside(run)
                self._end(run, Outcome.ABORTED, reply.status)

    async def _understand(self, dialect: Dialect, scope: MutableMapping[str, Any], receive: Receive) -> Call:
        """Raises ClientError, ClientLeft."""
        arrived_at = time.monotonic()
        headers: dict[str, str] = scope["heddle.headers"]
        body = await read_body(receive, headers, self._max_body_bytes)
        try:
            scan = scan_body(body, dialect.name)
        except ValueError as error:
            raise ClientError(400, f"The body cannot be read: {error}") from error
        tenant = tenant_of(headers)
        query = scope["query_string"]
        who = self._book.resolve(
            RequestFacts(
                path=scope["heddle.client_path"],
                headers=headers,
                query=dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)) if query else {},
                scan=scan,
                tenant=tenant,
                received_at=arrived_at,
            )
        )
        live = self._driver.directory.open(who, tenant=tenant, model=scan.model)
        lines = forward_block(scope["headers"], scope["heddle.request_id"])
        return Call(dialect, body, scan, who, tenant, lines, live)

    def _arrive(self, call: Call, reply: Reply, interrupts: Interrupts) -> Run:
        now = time.monotonic()
        live = call.live
        account = OpenStep(
            call.who,
            tenant=call.tenant,
            model=call.scan.model,
            dialect=call.dialect.name,
            estimated_prompt_tokens=call.scan.prompt_tokens,
            arrived_at=now,
            gap_before_s=None if live.last_ended is None else now - live.last_ended,
        )
        reply.headers += identity_headers(call.who)
        self._book.step_started(call.who)
        ticket = self._driver.arrive(
            live, prompt_tokens=call.scan.prompt_tokens, scan=call.scan, on_withdraw=interrupts.worker_gone
        )
        run = Run(call, reply, interrupts, account, ticket)
        self.running.add(run)
        if self._ping_period_s and call.scan.stream:
            run.pings = Pings(reply, self._ping_period_s)
        return run

    async def _follow_decisions(self, run: Run) -> None:
        """Until the client has its answer. Raises Interrupted when it left."""
        while True:
            try:
                with run.interrupts:
                    decision = run.ticket.decision or await run.ticket.decided()
            except Interrupted as interrupted:
                if interrupted.reason is not Reason.WORKER_GONE:
                    raise
                # Dispatched and withdrawn before this task came to run.
                decision = await run.ticket.decided()
            if isinstance(decision, Reject):
                fault = rejection(decision, run.last_failure, run.retry_after_s)
                self._end(run, Outcome.REJECTED, run.reply.status or fault.status)
                await _refuse(run.reply, fault.status, fault.headers(), fault.body())
                return
            try:
                await self._attempt(run, decision)
                return
            except AttemptFailed as failure:
                self._give_attempt_up(run, decision, failure)

    async def _attempt(self, run: Run, dispatch: Dispatch) -> None:
        """One try on one worker. Raises AttemptFailed while nothing of an answer has reached the client."""
        worker = self._fleet.worker(dispatch.worker, dispatch.generation)
        if worker is None or run.interrupts.is_worker_gone:
            raise AttemptFailed("unreachable", "the worker has left the fleet")
        call = run.call
        attempt = run.attempt = Attempt(dispatch, worker, os.urandom(16).hex())
        run.tap = run.answer = None
        run.account.dispatched(worker.name, dispatch.level, time.monotonic())
        whole = not call.scan.stream
        try:
            with run.interrupts:
                exchange = await self._upstream.open(
                    worker, call.dialect.upstream_path, call.headers, body_for(call, attempt), whole=whole
                )
            try:
                if exchange.status >= 300:
                    await self._pass_fault_on(run, exchange, whole)
                elif whole:
                    await self._pass_answer_on(run, exchange)
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

    # ---------------------------------------------------------------- answers

    async def _pass_answer_on(self, run: Run, exchange: Exchange) -> None:
        body = exchange.body()
        try:
            run.answer = read_answer(body, run.call.dialect.name)
        except ValueError as error:
            log.warning("worker %s answered 200 with what is no JSON: %s", run.account.worker, error)
        run.account.answering(time.monotonic())
        # Ended before the client has it: its next request may come at once and must find this step done.
        self._end(run, outcome_of(run.answer), exchange.status)
        await run.reply.whole(exchange.status, self._answer_headers(run, exchange), body)

    async def _pass_stream_on(self, run: Run, exchange: Exchange) -> None:
        call, reply = run.call, run.reply
        hide_usage = call.dialect.asks_usage and call.scan.include_usage is not True
        tap = run.tap = StreamTap(call.dialect.name, hide_usage=hide_usage)
        held = b""
        with run.interrupts:
            while data := await exchange.read():
                out = held + tap.feed(data)
                # A broken event must not swallow the error event that may have to follow it.
                end = end_of_last_event(out)
                out, held = out[:end], out[end:]
                if out and not run.account.answer_began and not run.account.ended:
                    await self._begin_stream(run, exchange)
                if b"[DONE]" in out and not run.account.ended and tap.answer().done:
                    # As above: a client leaves at [DONE], and may be back at once.
                    self._end_stream(run, tap)
                if out:
                    await reply.part(out)
            held += tap.finish()
            if not run.account.ended:
                if held and not run.account.answer_began and _is_whole(tap.answer()):
                    # A single event, without the blank line behind it.
                    await self._begin_stream(run, exchange)
                self._end_stream(run, tap)
        await reply.end(held)

    async def _begin_stream(self, run: Run, exchange: Exchange) -> None:
        run.account.answering(time.monotonic())
        self._driver.first_byte(run.ticket)
        headers = self._answer_headers(run, exchange)
        if run.pings is not None:
            run.pings.stop()
        if run.reply.status is None:
            await run.reply.begin(exchange.status, headers)

    def _end_stream(self, run: Run, tap: StreamTap) -> None:
        answer = run.answer = tap.answer()
        if not _is_whole(answer):
            # A proxy in between can close a broken stream cleanly; half an answer is not an answer.
            raise WorkerLost("the stream ended without an end", answer_began=True)
        self._end(run, outcome_of(answer), run.reply.status)

    async def _pass_fault_on(self, run: Run, exchange: Exchange, whole: bool) -> None:
        """A worker's status over 299. Raises AttemptFailed where another worker may do better."""
        # A redirect is not followed (it could lead anywhere) and is of no use to the client.
        status = exchange.status if exchange.status >= 400 else 502
        if whole:
            body = exchange.body()
        else:
            with run.interrupts:
                body = await exchange.read_rest(MAX_ERROR_BODY)
        if status in BUSY_STATUSES:
            raise AttemptFailed(
                "overloaded", message_of(body), retry_after_s=retry_after_of(exchange.headers)
            )
        if exchange.status in GONE_STATUSES:
            raise AttemptFailed("unreachable", message_of(body))
        if status >= 500:
            self._note_failure(run, "worker_error")
        outcome = Outcome.CLIENT_ERROR if status < 500 else Outcome.WORKER_ERROR
        self._end(run, outcome, run.reply.status or status)
        headers = [
            pair
            for pair in self._answer_headers(run, exchange)
            if pair[0] not in (b"content-type", b"content-encoding")
        ]
        await _refuse(run.reply, status, [JSON, *headers], wrapped(status, body))

    # ---------------------------------------------------------------- what goes wrong

    async def _lose_worker(self, run: Run, error: UpstreamError) -> None:
        """Raises AttemptFailed until the client has seen something; then ends its stream with an error."""
        if run.account.ended:
            await run.reply.end()  # lost behind [DONE]: the answer is whole
            return
        silent = isinstance(error, WorkerSilent)
        if not run.account.answer_began and not silent:
            if isinstance(error, WorkerOverCommitted):
                raise AttemptFailed("overloaded", str(error)) from error
            sent = not isinstance(error, WorkerUnreachable)
            raise AttemptFailed("unreachable", str(error), may_still_run=sent) from error
        self._note_failure(run, "unreachable")
        self._abort_aside(run)
        if run.tap is not None:
            run.answer = run.tap.answer()
        outcome = Outcome.TIMED_OUT if silent else Outcome.WORKER_LOST
        where = "in mid-answer" if run.account.answer_began else "before it answered"
        fault = ApiError(504, f"The worker was lost {where}: {error}", code=outcome.value)
        self._end(run, outcome, run.reply.status or fault.status)
        await _refuse(run.reply, fault.status, fault.headers(), fault.body())

    def _give_attempt_up(self, run: Run, dispatch: Dispatch, failure: AttemptFailed) -> None:
        log.info("attempt %d of step %d failed: %s", run.account.attempts, run.ticket.step, failure.message)
        run.last_failure, run.retry_after_s = failure.message, failure.retry_after_s
        self._note_failure(run, failure.kind)
        if failure.may_still_run:
            self._abort_aside(run)
        run.attempt = None
        run.interrupts.forget_worker()
        self._driver.attempt_failed(run.ticket, dispatch, failure.kind)

    async def _stop_for_client(self, run: Run) -> None:
        """The client left. The engine is told before the step ends: the trajectory's next step waits for
        that.
        """
        if run.account.ended:
            return
        self._driver.aborting(run.ticket)
        if run.tap is not None:
            run.answer = run.tap.answer()
        # The client may be back before the engine has answered.
        self._book.client_left(run.call.who, run.answer, time.monotonic())
        attempt = run.attempt
        if attempt is not None and attempt.worker.features.abort:
            await self._upstream.abort(attempt.worker, attempt.rid)
        self._end(run, Outcome.ABORTED, run.reply.status)

    async def _answer_aborted(self, run: Run) -> None:
        """An operator aborted a step that no worker had: the client is told as the engine would tell it."""
        self._end(run, Outcome.ABORTED, 200)
        if run.reply.status is None:
            kind = EVENT_STREAM if run.call.scan.stream else JSON
            await run.reply.whole(200, [kind], aborted_body(run))
        else:
            await run.reply.end(aborted_body(run))

    def _abort_aside(self, run: Run) -> None:
        """Tells a worker that may still be at work, without waiting for it."""
        attempt = run.attempt
        if attempt is not None and attempt.worker.features.abort:
            task = asyncio.create_task(self._upstream.abort(attempt.worker, attempt.rid))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    def _note_failure(self, run: Run, kind: FailureKind) -> None:
        if run.attempt is not None:
            dispatch = run.attempt.dispatch
            self._fleet.note_failure(dispatch.worker, dispatch.generation, kind)

    # ---------------------------------------------------------------- the one ending

    def _end(self, run: Run, outcome: Outcome, status: int | None) -> None:
        """Everybody who counts hears of it here, once: a second call raises StepEndedTwice."""
        now = time.monotonic()
        call, account, answer = run.call, run.account, run.answer
        if answer is not None:
            account.heard(answer)
        ended = account.end(outcome, status=status, now=now)
        if run.pings is not None:
            run.pings.stop()
        self.running.remove(run)
        call.live.last_ended = now
        call.live.worker = ended.worker
        self._driver.end(
            run.ticket,
            outcome.value,
            prompt_tokens=ended.prompt_tokens,
            output_tokens=ended.output_tokens,
            cached_tokens=ended.cached_tokens,
        )
        self._book.step_ended(call.who, outcome, answer, now)
        if call.who.final:
            self._driver.finish(call.live)
        for sink in self._sinks:
            sink(ended)

    def _answer_headers(self, run: Run, exchange: Exchange) -> Headers:
        """The worker's own headers that cross, and which worker it was. It is alive, by the way."""
        attempt = run.attempt
        assert attempt is not None
        self._fleet.note_success(attempt.dispatch.worker, attempt.dispatch.generation)
        headers = answer_headers(exchange.headers)
        headers.append((b"x-heddle-worker", attempt.worker.name.encode("latin-1", "replace")))
        return headers


def _is_whole(answer: Answer) -> bool:
    """Whether a stream said that it is over, one way or another."""
    return answer.done or bool(answer.finish_reasons) or answer.error is not None


async def _refuse(reply: Reply, status: int, headers: Headers, error: bytes) -> None:
    """An error as an answer of its own, or as the last event of a stream that has begun."""
    if reply.status is None:
        await reply.whole(status, headers, error)
    else:
        await reply.end(stream_error_event(error))
