"""A TCP hop in front of a gateway that breaks requests and answers as it is told."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

LATEST_CUT_S = 0.05


class Fate(StrEnum):
    """What happens to a request and its answer on their way."""

    PASS = "pass"
    CUT = "cut"
    """The line is cut before the answer comes, wherever the request is then."""
    LOSE = "lose"
    """The line is cut when the answer comes: the gateway has done the step, the client does not know."""
    STALL = "stall"
    """The answer is held back until the SDK's own timeout."""


class FailingNetwork:
    """A TCP hop in front of the gateway. ``fate(retry, turns)`` decides about each request: the number of its
    repeat, and the assistant's messages it holds.
    """

    def __init__(self, port: int, fate: Callable[[int, int], Fate]) -> None:
        self._port = port
        self._fate = fate
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self.fates: Counter[Fate] = Counter()

    async def __aenter__(self) -> "FailingNetwork":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    @property
    def base_url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        line = _Line(writer, far_writer)
        back = asyncio.create_task(line.carry_back(far_reader))
        try:
            while True:
                head, body = await _read_request(reader)
                repeat = int(_header(head, b"x-stainless-retry-count") or 0)
                line.fate = self._fate(repeat, body.count(b'"role":"assistant"'))
                self.fates[line.fate] += 1
                far_writer.write(head + body)
                if line.fate is Fate.CUT:
                    line.cut_before = asyncio.get_running_loop().time() + LATEST_CUT_S
                    asyncio.get_running_loop().call_later(random.uniform(0, LATEST_CUT_S), line.cut_if_silent)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left
        finally:
            line.cut()
            back.cancel()
            self._lines.discard(task)


@dataclass
class _Line:
    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    fate: Fate = Fate.PASS
    cut_before: float = 0.0
    cutting: bool = False

    async def carry_back(self, reader: asyncio.StreamReader) -> None:
        late = b""
        try:
            while data := await reader.read(65536):
                if self.cutting:
                    late += data
                elif self.fate in (Fate.PASS, Fate.CUT):
                    self.fate = Fate.PASS
                    self.near.write(data)
                elif self.fate is Fate.LOSE:
                    break
        except ConnectionError:
            pass
        if _is_whole(late):
            # An answer that crossed with the cut is none that gets lost.
            self.near.write(late)
            self.near.close()
            self.far.transport.abort()
        else:
            self.cut()

    def cut_if_silent(self) -> None:
        """The gateway hears of it first, and the client when the gateway has closed its side: who is started
        late, or is busy, does not take a repeat for a request beside the one that was cut.

        Not if it has got late: an opening that was answered by then would be a lost answer.
        """
        if self.fate is Fate.CUT and asyncio.get_running_loop().time() < self.cut_before:
            self.cutting = True
            self.far.write_eof()

    def cut(self) -> None:
        self.near.transport.abort()
        self.far.transport.abort()


def _is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = _header(head, b"content-length")
    return body.endswith(b"0\r\n\r\n") if length is None else len(body) == int(length)


async def _read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    return head, await reader.readexactly(int(_header(head, b"content-length") or 0))


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return None
