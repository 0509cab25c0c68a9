"""A scripted worker over a real socket, for everything on the byte path.

Each request is answered by a script: an async function that gets the request and the connection, and may send
anything, wait for anything, or cut the line. Without one, the worker behaves like a small SGLang.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import uvicorn
from heddle_contracts.steps import StepRecord
from heddle_gateway.app import Gateway, create_app
from heddle_gateway.asgi.server_protocol import GatewayProtocol
from heddle_gateway.settings import load_settings

WAIT_S = 10.0
MODEL = "test-model"


async def wait_until(condition: Callable[[], bool], what: str = "condition") -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110  what is waited for has no event to wait on
                await asyncio.sleep(0.002)
    except TimeoutError:
        pytest.fail(f"waited {WAIT_S:g} s in vain for: {what}")


@dataclass
class Received:
    """A request as it came over the wire, and how its connection ended if the client cut it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    client_left: asyncio.Event = field(default_factory=asyncio.Event)

    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class Line:
    """The worker's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self, status: int, body: bytes | dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        """A whole answer with its length."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"content-type": "application/json", **(headers or {}), "content-length": str(len(data))}
        head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        await self.send(head.encode() + b"\r\n" + data)

    async def begin_stream(self, headers: dict[str, str] | None = None) -> None:
        lines = {"content-type": "text/event-stream", **(headers or {}), "transfer-encoding": "chunked"}
        head = "HTTP/1.1 200 OK\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        await self.send(head.encode() + b"\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def event(self, data: dict[str, Any] | str) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        await self.chunk(f"data: {text}\n\n".encode())

    async def chat_event(self, delta: dict[str, Any], finish: str | None = None) -> None:
        await self.event(chat_chunk(delta, finish))

    async def usage_event(self) -> None:
        await self.event(USAGE_CHUNK)

    async def stream_chat(self, words: tuple[str, ...] = ("Hel", "lo", ".")) -> None:
        """A complete streamed answer, with the usage chunk at its end."""
        await self.begin_stream()
        await self.chat_event({"role": "assistant", "content": ""})
        for word in words:
            await self.chat_event({"content": word})
        await self.chat_event({}, finish="stop")
        await self.usage_event()
        await self.event("[DONE]")
        await self.end_stream()

    async def answer_chat(self, text: str = "Hello.", **more: Any) -> None:
        await self.answer(200, chat_answer(text, **more))

    async def named_event(self, data: dict[str, Any]) -> None:
        await self.chunk(f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode())

    async def begin_message(self) -> None:
        """The beginning of a streamed message, before any of its text."""
        await self.begin_stream()
        begun = message_answer() | {"content": [], "stop_reason": None}
        await self.named_event({"type": "message_start", "message": begun})

    async def message_text(self, text: str) -> None:
        delta = {"type": "text_delta", "text": text}
        await self.named_event({"type": "content_block_delta", "index": 0, "delta": delta})

    async def stream_message(self, words: tuple[str, ...] = ("Hel", "lo", ".")) -> None:
        await self.begin_message()
        block = {"type": "text", "text": ""}
        await self.named_event({"type": "content_block_start", "index": 0, "content_block": block})
        for word in words:
            await self.message_text(word)
        await self.named_event({"type": "content_block_stop", "index": 0})
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        await self.named_event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}})
        await self.named_event({"type": "message_stop"})
        await self.end_stream()

    async def begin_response(self, response: dict[str, Any]) -> None:
        """The beginning of a streamed response, before any of its text."""
        await self.begin_stream()
        begun = response | {"status": "in_progress", "output": [], "usage": None}
        for number, name in enumerate(("response.created", "response.in_progress")):
            await self.named_event({"type": name, "sequence_number": number, "response": begun})

    async def response_text(self, text: str, number: int) -> None:
        event = {"type": "response.output_text.delta", "sequence_number": number, "delta": text}
        where = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
        await self.named_event(event | where)

    async def stream_response(self, response: dict[str, Any]) -> None:
        await self.begin_response(response)
        [item] = response["output"]
        added = {"item": item | {"content": []}, "output_index": 0}
        await self.named_event({"type": "response.output_item.added", "sequence_number": 2, **added})
        await self.response_text("Hello.", 3)
        done = {"item": item, "output_index": 0}
        await self.named_event({"type": "response.output_item.done", "sequence_number": 4, **done})
        await self.named_event({"type": "response.completed", "sequence_number": 5, "response": response})
        await self.end_stream()

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Cuts the line as a killed process does: RST, no FIN."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.close()


Script = Callable[[Received, Line], Awaitable[None]]


def chat_answer(text: str = "Hello.", **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 3,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 5},
        },
        **more,
    }


def message_answer(text: str = "Hello.", **more: Any) -> dict[str, Any]:
    """Anthropic's message, as SGLang writes it."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 6, "output_tokens": 3, "cache_read_input_tokens": 5},
        **more,
    }


def response_answer(response_id: str, text: str = "Hello.", **more: Any) -> dict[str, Any]:
    """OpenAI's response, as SGLang writes it."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": "completed",
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "usage": {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 14,
        },
        **more,
    }


def chat_chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }


USAGE_CHUNK: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": MODEL,
    "choices": [],
    "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
}


class FakeWorker:
    """Listens on a free port. ``received``: step requests; ``aborts``: rids it was told to stop; ``models``:
    what it lists.
    """

    def __init__(self) -> None:
        self.script: Script | None = None
        self.received: list[Received] = []
        self.aborts: list[str] = []
        self.abort_gate: asyncio.Event | None = None
        self.instance = os.urandom(4).hex()
        self.features: dict[str, Any] = {"enable_priority_scheduling": True}
        self.kind = "sglang"
        self.models: tuple[str, ...] = (MODEL,)
        self.accepted = 0
        self._lines: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_lines(self) -> int:
        return len(self._lines)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As when the process is killed: no more connections, all lines cut."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._lines):
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What was accepted in this very turn of the loop has its handler run, and what was cut is let go.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            writer.transport.abort()  # accepted while it was being stopped: nobody else knows this line
            return
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._lines.add(writer)
        try:
            while True:
                request = await _read_request(reader)
                await self._serve(request, Line(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._lines.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, request: Received, line: Line) -> None:
        if (
            request.path
            in ("/v1/chat/completions", "/v1/completions", "/generate", "/v1/messages", "/v1/responses")
            and request.method == "POST"
        ):
            self.received.append(request)
            watch = asyncio.create_task(_watch(request, line))
            try:
                await (self.script or default_script)(request, line)
            finally:
                watch.cancel()
                await asyncio.wait({watch})
            if line.writer.is_closing():
                raise ConnectionError
        elif request.path == "/abort_request" and request.method == "POST" and self.kind == "sglang":
            self.aborts.append(request.json()["rid"])
            if self.abort_gate is not None:
                await self.abort_gate.wait()
            await line.answer(200, b"")
        else:
            await self._answer_probe(request, line)

    async def _answer_probe(self, request: Received, line: Line) -> None:
        path = request.path.partition("?")[0]
        if path == "/v1/models":
            cards = [{"id": name, "object": "model"} for name in self.models]
            await line.answer(200, {"object": "list", "data": cards})
        elif path == "/health":
            await line.answer(200, b"")
        elif self.kind != "sglang":
            await line.answer(404, {"detail": "Not Found"})
        elif path == "/server_info":
            info = {
                "tp_size": 1,
                "max_total_num_tokens": 100_000,
                "max_running_requests": 64,
                "version": "0.5.23",
                "heddle_instance_id": self.instance,
                **self.features,
            }
            await line.answer(200, info)
        elif path in ("/ping", "/model_info"):
            await line.answer(200, {})
        elif path == "/v1/loads":
            loads = [{"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0}]
            await line.answer(200, {"loads": loads})
        elif path in ("/abort_request", "/generate"):
            await line.answer(405, {"detail": "Method Not Allowed"})
        else:
            await line.answer(404, {"detail": "Not Found"})


async def default_script(request: Received, line: Line) -> None:
    body = request.json()
    if request.path == "/generate":
        meta = {"id": body.get("rid"), "finish_reason": {"type": "stop"}, "prompt_tokens": 4}
        meta |= {"completion_tokens": 2, "cached_tokens": 1}
        await line.answer(200, {"text": "Hi.", "output_ids": [7, 8], "meta_info": meta})
    elif request.path == "/v1/messages":
        await (line.stream_message() if body.get("stream") else line.answer(200, message_answer()))
    elif request.path == "/v1/responses":
        response = response_answer(body["request_id"])
        await (line.stream_response(response) if body.get("stream") else line.answer(200, response))
    elif body.get("stream"):
        await line.stream_chat()
    else:
        await line.answer_chat()


async def _read_request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    headers = []
    for text in head[1:]:
        if text:
            name, _, value = text.partition(":")
            headers.append((name.lower(), value.strip()))
    length = next((int(value) for name, value in headers if name == "content-length"), 0)
    return Received(method, path, headers, await reader.readexactly(length))


async def _watch(request: Received, line: Line) -> None:
    """Nothing is pipelined here, so the next read ends only when the client leaves."""
    try:
        if not await line.reader.read(1):
            request.client_left.set()
    except ConnectionError:
        request.client_left.set()


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """``await until(lambda: ..., "what")``: waits, bounded, until it holds."""
    return wait_until


@pytest.fixture
async def new_worker() -> AsyncIterator[Callable[[], Awaitable[FakeWorker]]]:
    workers: list[FakeWorker] = []

    async def start() -> FakeWorker:
        worker = FakeWorker()
        await worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        await worker.stop()


@pytest.fixture
async def worker(new_worker: Callable[[], Awaitable[FakeWorker]]) -> FakeWorker:
    return await new_worker()


class QuietServer(uvicorn.Server):
    """uvicorn inside a test: the signals belong to pytest."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class RunningGateway:
    """A whole gateway on a free port. ``parts``: app.Gateway. ``client``: httpx, follows no redirect.
    ``stop`` ends it ahead of the test's end.
    """

    parts: Gateway
    url: str
    client: httpx.AsyncClient
    stop: Callable[[], Awaitable[None]]

    async def chat(
        self, content: str = "hi", path: str = "/v1/chat/completions", **more: Any
    ) -> httpx.Response:
        """One chat request of one user message; ``headers`` go as headers, the rest into the body."""
        headers = more.pop("headers", None)
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}
        return await self.client.post(path, json=body, headers=headers)

    async def records(self, count: int) -> list[StepRecord]:
        """All step records in the history, once there are ``count``; oldest first."""
        await wait_until(lambda: self.parts.history.stats().put >= count, f"{count} ended steps")
        assert await self.parts.history.flush(WAIT_S)
        pages = (await self.client.get("/admin/v1/trajectories?limit=500")).json()["items"]
        found: list[StepRecord] = []
        for item in pages:
            one = await self.client.get("/admin/v1/trajectories/" + quote(item["trajectory_id"], safe=""))
            found += [StepRecord.model_validate(step) for step in one.json()["steps"]["items"]]
        return sorted(found, key=lambda record: record.arrived_at)

    def at_rest(self) -> bool:
        """No step is live anywhere, and the core's books balance."""
        stats = self.parts.driver.stats()
        return (
            stats["steps_live"] == 0
            and len(self.parts.steps.running) == 0
            and self.parts.driver.live_steps == 0
            and stats["steps_arrived_total"] == stats["steps_ended_total"]
        )


NewGateway = Callable[..., Awaitable[RunningGateway]]


@pytest.fixture
async def new_gateway(tmp_path: Path) -> AsyncIterator[NewGateway]:
    """``await new_gateway(*workers, **settings)``: serves, with the given fake workers active."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*workers: FakeWorker, **settings: Any) -> RunningGateway:
            settings.setdefault("database", str(tmp_path / "history.db"))
            app = create_app(load_settings(workers=[worker.url for worker in workers], **settings))
            listening = socket.create_server(("127.0.0.1", 0))
            server = QuietServer(
                uvicorn.Config(
                    app,
                    http=GatewayProtocol,
                    lifespan="on",
                    log_config=None,
                    server_header=False,
                    timeout_graceful_shutdown=5,
                )
            )
            task = asyncio.create_task(server.serve(sockets=[listening]))

            async def stop() -> None:
                server.should_exit = True
                await task

            stack.push_async_callback(stop)
            await wait_until(lambda: server.started or task.done(), "the gateway to start")
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, timeout=WAIT_S, trust_env=False)
            )
            gateway = RunningGateway(app.state.gateway, url, client, stop)
            await wait_until(lambda: gateway.parts.fleet.active() >= len(workers), "active workers")
            return gateway

        yield start


@pytest.fixture
async def gateway(new_gateway: NewGateway, worker: FakeWorker) -> AsyncIterator[RunningGateway]:
    """One gateway with one worker. Afterwards nothing may be live and the core must be sound."""
    running = await new_gateway(worker)
    yield running
    await wait_until(running.at_rest, "all steps to end")
    assert running.parts.driver.audit() == []
