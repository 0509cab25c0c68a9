"""The endpoints that generate: read the request, run its sequences, deliver the answer, notice a client
that leaves.

Invariant: whatever ends the exchange, every sequence of the request has ended or has been aborted when it
is over.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from heddle_shim.emulator.chat_reply import ChatReply
from heddle_shim.emulator.completion_reply import CompletionReply
from heddle_shim.emulator.driver import DuplicateRequestError, Submission
from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.generation import Ending, Generation
from heddle_shim.emulator.messages_reply import MessagesReply
from heddle_shim.emulator.native_reply import NativeReply
from heddle_shim.emulator.reply import Reply
from heddle_shim.emulator.request_fields import Body
from heddle_shim.emulator.responses_reply import ResponsesReply
from heddle_shim.emulator.worker import EmulatedWorker

MakeReply = Callable[[EmulatedWorker, Body], Reply]

_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")


class ClientLeftError(Exception):
    """The client closed the connection before its request was read."""


class GenerationEndpoint:
    """An ASGI endpoint. ``errors``: how its errors are written. ``strict`` asks for the content type.
    ``overrides``: request id and priority may come in headers.
    """

    def __init__(
        self,
        worker: EmulatedWorker,
        make_reply: MakeReply,
        errors: Callable[[ApiError], object],
        *,
        strict: bool = True,
        overrides: bool = False,
    ) -> None:
        self._worker = worker
        self._make_reply = make_reply
        self._errors = errors
        self._strict = strict
        self._overrides = overrides

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await json_body(scope, receive, strict=self._strict)
            if self._overrides:
                body = {**body, **_header_overrides(scope)}
            reply = self._make_reply(self._worker, body)
            await self._deliver(reply, receive, send)
        except ApiError as error:
            await self._send_error(error, send)
        except ClientLeftError:
            return

    async def _deliver(self, reply: Reply, receive: Receive, send: Send) -> None:
        primers = [work.primer for work in reply.works if work.primer is not None]
        if primers:
            primed = await self._run(primers, receive)
            if primed.gone:
                return
            _raise_if_refused(primers)
        sequences = [choice.generation for work in reply.works for choice in work.choices]
        if any(primer.ending is Ending.ABORTED for primer in primers):
            # The request was aborted before its choices existed.
            for generation in sequences:
                generation.abort_wanted = True
        if not reply.stream:
            if not (await self._run(sequences, receive)).gone:
                _raise_if_refused(sequences)
                await _send_json(send, 200, reply.whole(), [_engine_seconds(sequences)])
            return
        submission = self._submit(sequences, stream=True)
        watch = asyncio.create_task(_leave_on_disconnect(submission, receive))
        try:
            await self._stream(reply, submission, send)
        finally:
            watch.cancel()
            self._let_go(submission)

    async def _run(self, sequences: list[Generation], receive: Receive) -> Submission:
        """Runs sequences to their end, or until the client leaves."""
        submission = self._submit(sequences, stream=False)
        watch = asyncio.create_task(_leave_on_disconnect(submission, receive))
        try:
            await submission.ended()
        finally:
            watch.cancel()
            self._let_go(submission)
        return submission

    async def _stream(self, reply: Reply, submission: Submission, send: Send) -> None:
        """Sends the status with the first token: a request refused before it gets an honest status. A reply
        with an opening is begun at once.
        """
        started = reply.opening is not None
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": [_EVENTS]})
            if reply.opening:
                await send({"type": "http.response.body", "body": reply.opening, "more_body": True})
        while True:
            await submission.changed()
            if submission.gone:
                return
            over = not submission.unfinished
            try:
                _raise_if_refused(submission.generations)
            except ApiError as error:
                if not started:
                    raise
                await send({"type": "http.response.body", "body": reply.refused(error), "more_body": False})
                return
            frames = reply.frames(submission.made())
            if not frames:
                continue
            if not started:
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": [_EVENTS]})
            await send({"type": "http.response.body", "body": frames, "more_body": not over})
            if over:
                return

    def _submit(self, sequences: list[Generation], *, stream: bool) -> Submission:
        try:
            return self._worker.driver.submit(sequences, stream=stream)
        except DuplicateRequestError as error:
            raise ApiError(str(error)) from error

    def _let_go(self, submission: Submission) -> None:
        """The exchange is over: what still runs is aborted, after the delay a real engine needs to notice."""
        if not submission.unfinished:
            return
        driver, delay = self._worker.driver, self._worker.settings.disconnect_delay_s
        if delay > 0:
            asyncio.get_running_loop().call_later(delay, driver.abandon, submission)
        else:
            driver.abandon(submission)

    async def _send_error(self, error: ApiError, send: Send) -> None:
        await _send_json(send, error.status, self._errors(error))


def generation_endpoints(worker: EmulatedWorker) -> dict[str, GenerationEndpoint]:
    """Endpoint by path."""

    def endpoint(
        make_reply: MakeReply, errors: Callable[[ApiError], object], **how: bool
    ) -> GenerationEndpoint:
        return GenerationEndpoint(worker, make_reply, errors, **how)

    return {
        "/v1/chat/completions": endpoint(ChatReply, ApiError.flat, overrides=True),
        "/v1/completions": endpoint(CompletionReply, ApiError.flat),
        "/generate": endpoint(NativeReply, ApiError.native, strict=False, overrides=True),
        "/v1/messages": endpoint(MessagesReply, ApiError.anthropic, overrides=True),
        "/v1/responses": endpoint(ResponsesReply, ApiError.responses),
    }


def _header_overrides(scope: Scope) -> Body:
    """SGLang with SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1 (request_headers.py)."""
    found: dict[str, object] = {}
    for name, value in scope["headers"]:
        if name == b"x-override-rid":
            found["rid"] = value.decode("latin-1")
        elif name == b"x-override-priority":
            try:
                found["priority"] = int(value)
            except ValueError as error:
                raise ApiError(f"invalid x-override-priority header {value!r}: {error}") from error
    return found


def _raise_if_refused(sequences: Sequence[Generation]) -> None:
    for generation in sequences:
        if generation.ending is Ending.REFUSED:
            raise ApiError(generation.message, 503)


async def _leave_on_disconnect(submission: Submission, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    submission.leave()


async def json_body(scope: Scope, receive: Receive, *, strict: bool) -> Body:
    """The request's JSON object. ``strict`` asks for the content type, as SGLang's /v1 routes do."""
    if strict:
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        if kind.split(b";", 1)[0].strip().lower() != b"application/json":
            raise ApiError("Unsupported Media Type: Only 'application/json' is allowed")
    chunks: list[bytes] = []
    more = True
    while more:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    try:
        body = json.loads(b"".join(chunks))
    except ValueError as error:
        raise ApiError(f"Invalid JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError("The request body must be a JSON object")
    return body


def _engine_seconds(sequences: Sequence[Generation]) -> tuple[bytes, bytes]:
    """What of the answer's time is the modelled engine's; the rest is the machine's that it runs on."""
    begun = min(generation.created_at for generation in sequences)
    ended = max(generation.finished_at or begun for generation in sequences)
    return b"x-emulated-seconds", b"%.6f" % (ended - begun)


async def _send_json(
    send: Send, status: int, payload: object, also: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    body = json.dumps(payload, separators=(",", ":")).encode()
    headers = [_JSON, (b"content-length", str(len(body)).encode()), *also]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
