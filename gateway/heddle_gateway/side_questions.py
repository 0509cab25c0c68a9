"""What agents and trainers ask beside their steps and any worker can answer: how long a prompt is, which
tokens it has. It is no step, so that no trajectory hears of it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, Protocol

from heddle_gateway.asgi.client_exchange import ClientExchange, Endpoint
from heddle_gateway.asgi.interrupts import Interrupted, Interrupts
from heddle_gateway.asgi.request_body import ClientError, ClientLeft, read_body
from heddle_gateway.asked_model import Models, require_model
from heddle_gateway.attempts import JSON, OF_THE_BODY, refuse_with
from heddle_gateway.dialects.dialect import CHAT, MESSAGES, Dialect
from heddle_gateway.dialects.errors import ApiError, wrapped
from heddle_gateway.dialects.wire import scan_body
from heddle_gateway.upstream.errors import UpstreamError
from heddle_gateway.upstream.forward import Endpoint as Server
from heddle_gateway.upstream.forward import Upstream
from heddle_gateway.upstream.headers import worker_line

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """``path``: what clients call and what the worker is called with. ``dialect``: how the body is read and
    an error written.
    """

    path: str
    dialect: Dialect
    what: str


QUESTIONS: Final = (
    Question("/v1/messages/count_tokens", MESSAGES, "the length of a prompt of the messages dialect"),
    Question("/v1/chat/completions/render", CHAT, "the tokens of a prompt of the chat dialect (vLLM)"),
    Question("/tokenize", CHAT, "the tokens of a text"),
    Question("/detokenize", CHAT, "the text of tokens"),
)


class Answerer(Server, Protocol):
    """A worker that can be asked (fleet.events.WorkerEndpoint)."""

    @property
    def worker_id(self) -> int: ...
    @property
    def name(self) -> str: ...


class Workers(Protocol):
    """The fleet (fleet.registry.Fleet)."""

    def endpoints(self) -> Sequence[Answerer]: ...


class ServedModels(Models, Protocol):
    """Which worker goes by which names (fleet.served_models.ServedModels)."""

    def serves(self, worker_id: int, model: str | None) -> bool: ...


class SideQuestions:
    """The endpoints. Workers take turns; one that cannot be reached is passed over."""

    def __init__(
        self, workers: Workers, models: ServedModels, upstream: Upstream, max_body_bytes: int
    ) -> None:
        self._workers = workers
        self._models = models
        self._upstream = upstream
        self._max_body_bytes = max_body_bytes
        self._turns = count()

    def endpoints(self) -> Mapping[str, Endpoint]:
        """By path, for POST."""
        return {question.path: partial(self._serve, question) for question in QUESTIONS}

    async def _serve(self, question: Question, client: ClientExchange) -> None:
        interrupts = Interrupts(client)
        try:
            body = client.plain_body
            if body is None or len(body) > self._max_body_bytes:
                body = await read_body(client.next_part, client.headers, self._max_body_bytes)
            with interrupts:
                await self._ask(question, client, body)
        except (ClientLeft, Interrupted):
            return
        except ClientError as error:
            fault = ApiError(error.status, error.message, code=error.code, param=error.param)
            await refuse_with(client, question.dialect, fault)
        finally:
            interrupts.close()

    async def _ask(self, question: Question, client: ClientExchange, body: bytes) -> None:
        """Raises ClientError."""
        dialect = question.dialect
        try:
            model = scan_body(body, dialect.name).model
        except ValueError as error:
            raise ClientError(400, f"The body cannot be read: {error}") from error
        await require_model(self._models, model)
        workers = [one for one in self._workers.endpoints() if self._models.serves(one.worker_id, model)]
        turn = next(self._turns) % len(workers) if workers else 0
        for worker in workers[turn:] + workers[:turn]:
            try:
                exchange = await self._upstream.open(
                    worker, question.path.encode(), client.forward, body, whole=True
                )
            except UpstreamError as error:
                log.info("%s could not answer %s: %s", worker.name, question.path, error)
                continue
            try:
                status, answer = exchange.status, exchange.body()
                lines = exchange.lines(OF_THE_BODY) + JSON + worker_line(worker.name)
            finally:
                exchange.close()
            if status >= 300:
                status = status if status >= 400 else 502
                answer = wrapped(status, answer, dialect.errors)
            await client.whole(status, lines, answer)
            return
        await refuse_with(client, dialect, ApiError(503, "No worker can answer this now."))
