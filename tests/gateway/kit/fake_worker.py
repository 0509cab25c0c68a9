"""A scripted worker over a real socket, for everything on the byte path.

Each request is answered by a script: an async function that gets the request and the connection, and may send
anything, wait for anything, or cut the line. Without one, the worker behaves like a small SGLang.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from .answers import MODEL, message_answer, response_answer
from .lines import Line, Received, read_request, watch

Script = Callable[[Received, Line], Awaitable[None]]


class FakeWorker:
    """Listens on a free port. ``received``: step requests; ``aborts``: rids it was told to stop; ``models``:
    what it lists, with ``card`` beside each; ``answers``: to other POSTs, by path, which are kept in
    ``asked``.
    """

    def __init__(self) -> None:
        self.script: Script | None = None
        self.received: list[Received] = []
        self.answers: dict[str, Any] = {}
        self.asked: list[Received] = []
        self.aborts: list[str] = []
        self.abort_gate: asyncio.Event | None = None
        self.instance = os.urandom(4).hex()
        self.features: dict[str, Any] = {"enable_priority_scheduling": True}
        self.kind = "sglang"
        self.models: tuple[str, ...] = (MODEL,)
        self.card: dict[str, Any] = {}
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
                request = await read_request(reader)
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
            in (
                "/v1/chat/completions",
                "/v1/completions",
                "/generate",
                "/inference/v1/generate",
                "/v1/messages",
                "/v1/responses",
            )
            and request.method == "POST"
        ):
            self.received.append(request)
            watching = asyncio.create_task(watch(request, line))
            try:
                await (self.script or default_script)(request, line)
            finally:
                watching.cancel()
                await asyncio.wait({watching})
            if line.writer.is_closing():
                raise ConnectionError
        elif request.path == "/abort_request" and request.method == "POST" and self.kind == "sglang":
            self.aborts.append(request.json()["rid"])
            if self.abort_gate is not None:
                await self.abort_gate.wait()
            await line.answer(200, b"")
        elif request.path in self.answers and request.method == "POST":
            self.asked.append(request)
            await line.answer(200, self.answers[request.path])
        else:
            await self._answer_probe(request, line)

    async def _answer_probe(self, request: Received, line: Line) -> None:
        path = request.path.partition("?")[0]
        if path == "/v1/models":
            cards = [{"id": name, "object": "model", **self.card} for name in self.models]
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
    elif request.path == "/inference/v1/generate":
        choice = {"index": 0, "logprobs": None, "finish_reason": "stop", "token_ids": [7, 8]}
        await line.answer(200, {"request_id": "r", "choices": [choice], "prompt_logprobs": None})
    elif request.path == "/v1/messages":
        await (line.stream_message() if body.get("stream") else line.answer(200, message_answer()))
    elif request.path == "/v1/responses":
        response = response_answer(body["request_id"])
        await (line.stream_response(response) if body.get("stream") else line.answer(200, response))
    elif body.get("stream"):
        await line.stream_chat()
    else:
        await line.answer_chat()
