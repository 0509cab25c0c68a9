"""A client that writes bytes by hand: what no HTTP library would send, and hang-ups at a chosen moment."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

WAIT_S = 10.0


class RawLine:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer that has a length or is chunked."""
        async with asyncio.timeout(WAIT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split(" ")[1])
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            if headers.get("transfer-encoding") != "chunked":
                return status, headers, await self.reader.readexactly(int(headers.get("content-length", 0)))
            body = b""
            while size := int(await self.reader.readline(), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readline()
            await self.reader.readline()
            return status, headers, body

    def leave(self) -> None:
        """RST, as when the process of the client is killed with data on its way."""
        self.writer.transport.abort()

    async def finish(self) -> None:
        """FIN, as when a client closes its connection."""
        self.writer.close()
        await self.writer.wait_closed()


def request(
    body: bytes | dict[str, Any],
    path: str = "/v1/chat/completions",
    *,
    method: str = "POST",
    version: str = "1.1",
    headers: tuple[str, ...] = (),
) -> bytes:
    """One request with its length; ``headers``: whole lines."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (f"{method} {path} HTTP/{version}", "host: x", f"content-length: {len(data)}", *headers)
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


def chat(content: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "test-model", "messages": [{"role": "user", "content": content}], **more}


@pytest.fixture
def make_request() -> Callable[..., bytes]:
    return request


@pytest.fixture
def chat_body() -> Callable[..., dict[str, Any]]:
    return chat


@pytest.fixture
def connect_to() -> Callable[[str, int], Awaitable[RawLine]]:
    """``await connect_to(host, port)``: a connection on the running loop, which the test cuts."""

    async def open_line(host: str, port: int) -> RawLine:
        return RawLine(*await asyncio.open_connection(host, port))

    return open_line


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], Awaitable[RawLine]]]:
    """``await connect(gateway.url)``: a connection, cut at the end of the test if it still stands."""
    lines: list[RawLine] = []

    async def open_line(url: str) -> RawLine:
        at = urlsplit(url)
        line = RawLine(*await asyncio.open_connection(at.hostname, at.port))
        lines.append(line)
        return line

    yield open_line
    for line in lines:
        line.leave()
