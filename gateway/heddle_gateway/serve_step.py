"""The story of one request on the data path.

    understand   body, scan: what is asked, and by whom                (errors here: no step exists yet)
    arrive       a desk is told (peers/desk.py): whose step is it? The core dispatches now, later, or rejects
    attempt      attempts.py: bytes to the worker, bytes back; as often as nothing has reached the client
    end          exactly once, whatever happened: core, identity, history, metrics

Invariants: a request that was understood becomes one step with one ending; a body is never re-serialised;
the client's hang-up interrupts any wait, and the step ends only after the engine was told to stop; nothing
decides here where or when a step runs.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import parse_qsl

from heddle_contracts.steps import Outcome

from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.accounting.open_step import OpenStep
from heddle_gateway.asgi.client_exchange import ClientExchange
from heddle_gateway.asgi.interrupts import Interrupted, Interrupts, Reason
from heddle_gateway.asgi.pings import EVENT_STREAM, Pings
from heddle_gateway.asgi.request_body import ClientError, ClientLeft, read_body
from heddle_gateway.asked_model import Models, require_model
from heddle_gateway.attempts import JSON, Attempts, refuse_with
from heddle_gateway.dialects.dialect import Dialect
from heddle_gateway.dialects.errors import ApiError
from heddle_gateway.dialects.wire import scan_body
from heddle_gateway.identity import RequestFacts
from heddle_gateway.identity.keys import tenant_of
from heddle_gateway.live.decisions import Reject
from heddle_gateway.peers.desk import Desks, Placed
from heddle_gateway.running_step import (
    AttemptFailed,
    Call,
    Run,
    RunningSteps,
    aborted_body,
    identity_lines,
    rejection,
)
from heddle_gateway.stored_answers import StoredAnswers
from heddle_gateway.upstream.forward import Upstream

# It stays in records, in the list of live trajectories and in Redis. Engines call a model by its path, too.
MAX_MODEL_NAME: Final = 1024


class StepServer:
    """The data path. ``desks``: where steps are decided about; ``models``: what may be asked for. ``sinks``
    take every step that was served here and has ended; they must neither block nor raise.
    """

    def __init__(
        self,
        *,
        desks: Desks,
        models: Models,
        upstream: Upstream,
        running: RunningSteps,
        stored: StoredAnswers,
        sinks: Sequence[Callable[[EndedStep], None]],
        on_refused: Callable[[int], None],
        max_body_bytes: int,
        ping_period_s: float = 0.0,
    ) -> None:
        self._desks = desks
        self._models = models
        self._stored = stored
        self._attempts = Attempts(desks=desks, upstream=upstream, stored=stored, end=self._end)
        self._sinks = tuple(sinks)
        self._on_refused = on_refused
        self._max_body_bytes = max_body_bytes
        self._ping_period_s = ping_period_s
        self.running = running

    async def close(self) -> None:
        """Waits for the aborts under way; each is bounded."""
        await self._attempts.close()

    # ---------------------------------------------------------------- the story

    async def serve(self, dialect: Dialect, client: ClientExchange) -> None:
        """The endpoint of one dialect."""
        try:
            facts = await self._understand(dialect, client)
            interrupts = Interrupts(client)
            arrived_at = time.monotonic()
            here = self._desks.here
            if here is not None and arrived_at <= here.sure_until:
                placed = here.arrive(facts, interrupts.worker_gone)
            else:
                placed = await self._ask(facts, interrupts)
            await self._run(self._begin(dialect, facts, client, interrupts, arrived_at, placed))
        except ClientLeft:
            return
        except ClientError as error:
            client.on_cut = None
            self._on_refused(error.status)
            fault = ApiError(error.status, error.message, code=error.code, param=error.param)
            await refuse_with(client, dialect, fault)
        except Exception:
            # A defect of ours: the server logs it, the caller gets the request id to name it by.
            if not client.ended:
                text = "The gateway failed; its log has the request id."
                await refuse_with(client, dialect, ApiError(500, text, code="gateway_defect"))
            raise

    async def _run(self, run: Run) -> None:
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
                self._attempts.abort_aside(run)
                self._end(run, Outcome.ABORTED, run.client.status)

    async def _understand(self, dialect: Dialect, client: ClientExchange) -> RequestFacts:
        """Raises ClientError, ClientLeft."""
        arrived_at = time.monotonic()
        headers, body = client.headers, client.plain_body
        if body is None or len(body) > self._max_body_bytes:
            body = await read_body(client.next_part, headers, self._max_body_bytes)
        try:
            scan = scan_body(body, dialect.name)
        except ValueError as error:
            raise ClientError(400, f"The body cannot be read: {error}") from error
        if dialect.stores_answers:
            self._stored.check(scan)
        model = scan.model
        if model is not None and len(model) > MAX_MODEL_NAME:
            raise ClientError(
                400, f"The model's name is longer than {MAX_MODEL_NAME} characters.", param="model"
            )
        if not self._models.knows(model):
            await require_model(self._models, model)
        query = client.query
        return RequestFacts(
            path=client.path,
            headers=headers,
            query=dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)) if query else {},
            scan=scan,
            tenant=tenant_of(headers),
            received_at=arrived_at,
            body=body,
        )

    async def _ask(self, facts: RequestFacts, interrupts: Interrupts) -> Placed:
        """Of another process, or here once it is certain that none decides. Raises ClientError."""
        desks = self._desks
        if desks.here is not None:
            await desks.sure()
        if desks.here is not None:
            return desks.here.arrive(facts, interrupts.worker_gone)
        assert desks.elsewhere is not None
        return await desks.elsewhere.ask(facts, interrupts.worker_gone)

    def _begin(
        self,
        dialect: Dialect,
        facts: RequestFacts,
        client: ClientExchange,
        interrupts: Interrupts,
        arrived_at: float,
        placed: Placed,
    ) -> Run:
        who, claim, live, ticket, gap_before_s = placed
        scan, tenant = facts.scan, facts.tenant
        account = OpenStep(
            who,
            tenant=tenant,
            model=scan.model,
            dialect=dialect.name,
            estimated_prompt_tokens=scan.prompt_tokens,
            arrived_at=arrived_at,
            waited_s=time.monotonic() - arrived_at,
            gap_before_s=gap_before_s,
        )
        client.lines += identity_lines(who)
        call = Call(dialect, facts.body, scan, who, tenant, client.forward, claim, live)
        run = Run(call, client, interrupts, account, ticket)
        self.running.add(run)
        elsewhere = self._desks.elsewhere
        if elsewhere is not None:
            elsewhere.begun(run)
        if self._ping_period_s and scan.stream:
            run.pings = Pings(client, self._ping_period_s)
        return run

    async def _follow_decisions(self, run: Run) -> None:
        """Until the client has its answer. Raises Interrupted when it left."""
        while True:
            decision = run.ticket.decision
            if decision is None:
                try:
                    with run.interrupts:
                        decision = await run.ticket.decided()
                except Interrupted as interrupted:
                    if interrupted.reason is not Reason.WORKER_GONE:
                        raise
                    # Dispatched and withdrawn before this task came to run.
                    decision = await run.ticket.decided()
            if isinstance(decision, Reject):
                fault = rejection(decision, run.last_failure, run.retry_after_s)
                self._end(run, Outcome.REJECTED, run.client.status or fault.status)
                await refuse_with(run.client, run.call.dialect, fault, run)
                return
            try:
                await self._attempts.make(run, decision)
                return
            except AttemptFailed as failure:
                self._attempts.give_up(run, decision, failure)

    async def _stop_for_client(self, run: Run) -> None:
        """The client left. The engine is told before the step ends: the trajectory's next step waits for
        that.
        """
        if run.account.ended:
            return
        if run.tap is not None:
            run.answer = run.tap.answer()
        run.left = True
        self._desks.now.aborting(run, time.monotonic())
        await self._attempts.abort(run)
        self._end(run, Outcome.ABORTED, run.client.status)

    async def _answer_aborted(self, run: Run) -> None:
        """An operator aborted a step that no worker had, or one whose engine knows no aborts: the client is
        told as an engine would tell it.
        """
        if run.tap is not None:
            run.answer = run.tap.answer()
        self._end(run, Outcome.ABORTED, 200)
        if run.client.status is None:
            kind = EVENT_STREAM if run.call.scan.stream else JSON
            await run.client.whole(200, kind, aborted_body(run))
        else:
            await run.client.end(aborted_body(run))

    # ---------------------------------------------------------------- the one ending

    def _end(self, run: Run, outcome: Outcome, status: int | None) -> None:
        """Everybody who counts hears of it here, once: a second call raises StepEndedTwice."""
        now = time.monotonic()
        account, answer = run.account, run.answer
        if answer is not None:
            account.heard(answer)
        ended = account.end(outcome, status=status, now=now)
        if run.pings is not None:
            run.pings.stop()
        self.running.remove(run)
        self._desks.now.end(run, ended, outcome, answer, now)
        for sink in self._sinks:
            sink(ended)
