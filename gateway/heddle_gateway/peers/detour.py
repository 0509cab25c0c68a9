"""Links by way of the store that both gateways reach, where they do not reach each other.

A `Link` does not notice: it has a transport whose bytes go as messages, numbered in each direction. One that
is missing, doubled or late ends the connection, as a broken one ends; nothing is sent again here.

Invariants: bytes arrive in their order or the connection is lost; that the other side has fallen silent is
for `Link` to notice, as of any connection.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol
from uuid import uuid4

from heddle_gateway.peers.frames import BadFrame, Frame, FrameReader, written
from heddle_gateway.peers.link import IS_DETOUR
from heddle_gateway.supervision import Background

log = logging.getLogger(__name__)

MAX_MESSAGE: Final = 256 * 1024
AGAIN_S: Final = 0.5
"""A store that was away is asked again after so long."""
CLOSE_S: Final = 1.0


class Mail(Protocol):
    """store.redis_mail.RedisMail. Its calls raise the fault that `Detours` was given."""

    async def post(self, to: str, message: bytes) -> None: ...
    async def take(self) -> Sequence[bytes]: ...
    async def close(self) -> None: ...


class DetourTransport(asyncio.Transport):
    """One end of a connection. ``say(kind, number, data)`` posts a message and raises ``fault``."""

    def __init__(
        self,
        protocol: asyncio.Protocol,
        say: Callable[[str, int, bytes], Awaitable[None]],
        fault: type[Exception],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__({IS_DETOUR: True})
        self._protocol = protocol
        self._say = say
        self._fault = fault
        self._on_lost = on_lost
        self._unsent = bytearray()
        self._some = asyncio.Event()
        self._said = self._heard = 0
        self._closing = self._lost = False
        self.task: asyncio.Task[None] | None = None

    def begin(self, kind: str) -> None:
        """The other end hears of it by ``kind``."""
        self._protocol.connection_made(self)
        self.task = asyncio.create_task(self._run(kind), name="detour")

    # ---------------------------------------------------------------- asyncio.Transport

    def write(self, data: Any) -> None:
        if not self._closing:
            self._unsent += data
            self._some.set()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """What was written still leaves."""
        self._closing = True
        self._some.set()

    def abort(self) -> None:
        self._unsent.clear()
        self.close()

    # ---------------------------------------------------------------- what comes

    def take(self, kind: str, number: int, data: bytes) -> None:
        """A message of the other end."""
        if self._lost:
            return
        if number != self._heard:
            log.warning("a link by way of Redis is lost: message %d comes after %d", number, self._heard - 1)
            self.close()
            self.lose()
        elif kind == "closed":
            self.lose()
        else:
            self._heard += 1
            if data:
                self._protocol.data_received(data)

    def lose(self, error: Exception | None = None) -> None:
        """The connection is gone."""
        if not self._lost:
            self._lost = self._closing = True
            self._some.set()
            self._on_lost()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    # ---------------------------------------------------------------- inside

    async def _run(self, kind: str) -> None:
        try:
            await self._next(kind)
            while not (self._closing and not self._unsent):
                await self._some.wait()
                self._some.clear()
                while self._unsent:
                    data = bytes(self._unsent[:MAX_MESSAGE])
                    del self._unsent[: len(data)]
                    await self._next("data", data)
            await self._next("closed")
        except self._fault as error:
            self.lose(error)
        self.lose()

    async def _next(self, kind: str, data: bytes = b"") -> None:
        number, self._said = self._said, self._said + 1
        await self._say(kind, number, data)


class Detours:
    """``accept()``: the protocol of a connection that another gateway opens; ``fault``: what ``mail`` raises.
    ``name``: of this process.
    """

    def __init__(
        self, mail: Mail, name: str, accept: Callable[[], asyncio.Protocol], fault: type[Exception]
    ) -> None:
        self._mail = mail
        self._name = name
        self._accept = accept
        self._fault = fault
        self._ends: dict[tuple[str, str], DetourTransport] = {}
        self._task = Background("detours", self._read)
        self._closing = False

    def start(self) -> None:
        self._task.start()

    async def close(self) -> None:
        ends = list(self._ends.values())
        for end in ends:
            end.close()
        if tasks := [end.task for end in ends if end.task is not None]:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
        self._closing = True
        # A client's own timeout can swallow it: then the loop ends by itself.
        await self._task.stop()
        await self._mail.close()

    def connect(self, to: str, protocol: asyncio.Protocol) -> None:
        """Opens a connection to the gateway of this name. Whether it is there shows when it answers."""
        self._end(to, uuid4().hex, protocol).begin("open")

    # ---------------------------------------------------------------- inside

    def _end(self, other: str, connection: str, protocol: asyncio.Protocol) -> DetourTransport:
        key = (other, connection)

        async def say(kind: str, number: int, data: bytes) -> None:
            await self._mail.post(
                other, written(kind, data, by=self._name, connection=connection, number=number)
            )

        def lost() -> None:
            self._ends.pop(key, None)

        end = DetourTransport(protocol, say, self._fault, lost)
        self._ends[key] = end
        return end

    async def _read(self) -> None:
        while not self._closing:
            try:
                messages = await self._mail.take()
            except self._fault:
                # Who leads by it says so; connections by way of it are lost by their silence.
                await asyncio.sleep(AGAIN_S)
                continue
            for message in messages:
                try:
                    for frame in FrameReader().feed(message):
                        self._hear(frame)
                except (BadFrame, KeyError, TypeError, ValueError) as error:
                    log.warning("a message by way of Redis is left out: %s: %s", type(error).__name__, error)

    def _hear(self, frame: Frame) -> None:
        kind, head, data = frame
        other, connection = str(head["by"]), str(head["connection"])
        end = self._ends.get((other, connection))
        if end is None and kind == "open":
            end = self._end(other, connection, self._accept())
            end.begin("opened")
        if end is not None:
            end.take(kind, int(head["number"]), data)
