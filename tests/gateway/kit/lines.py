"""The worker's side of one connection: what came over it, and what a script may send."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from .answers import USAGE_CHUNK, chat_answer, chat_chunk, message_answer


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


async def read_request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    headers = []
    for text in head[1:]:
        if text:
            name, _, value = text.partition(":")
            headers.append((name.lower(), value.strip()))
    length = next((int(value) for name, value in headers if name == "content-length"), 0)
    return Received(method, path, headers, await reader.readexactly(length))


async def watch(request: Received, line: Line) -> None:
    """Nothing is pipelined here, so the next read ends only when the client leaves."""
    try:
        if not await line.reader.read(1):
            request.client_left.set()
    except ConnectionError:
        request.client_left.set()
