"""A TCP proxy that does to a connection what networks do."""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

CHUNK = 16 * 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class BrokenWire:
    """``async with`` forwards connections to ``target`` (host:port) from ``address``.

    ``cuts``: for each connection in turn, bytes from the sender after which it is cut; ``flips``: bytes after
    which one byte is inverted. None, and connections beyond the lists: nothing is done to them.
    """

    def __init__(
        self, target: str, *, cuts: tuple[int | None, ...] = (), flips: tuple[int | None, ...] = ()
    ) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._cuts, self._flips = cuts, flips
        self.connections = 0
        self.on_cut: Callable[[], None] = lambda: None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    async def __aenter__(self) -> "BrokenWire":
        self._own(self._accept())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            sock, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self._own(self._connected(sock, self.connections))
            self.connections += 1

    async def _connected(self, sender: socket.socket, number: int) -> None:
        cut = self._cuts[number] if number < len(self._cuts) else None
        flip = self._flips[number] if number < len(self._flips) else None
        receiver = socket.socket()
        try:
            receiver.setblocking(False)
            await asyncio.get_running_loop().sock_connect(receiver, self._target)
            back = asyncio.create_task(_copy(receiver, sender))
            try:
                await self._forward(sender, receiver, cut, flip)
                await back
            finally:
                back.cancel()
                await asyncio.gather(back, return_exceptions=True)
        except OSError:
            for end in (sender, receiver):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        finally:
            sender.close()
            receiver.close()

    async def _forward(
        self, sender: socket.socket, receiver: socket.socket, cut: int | None, flip: int | None
    ) -> None:
        loop = asyncio.get_running_loop()
        passed = 0
        while data := await loop.sock_recv(sender, CHUNK):
            if flip is not None and passed <= flip < passed + len(data):
                at = flip - passed
                data = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
            if cut is not None and passed + len(data) > cut:
                await loop.sock_sendall(receiver, data[: cut - passed])
                self.on_cut()
                raise ConnectionResetError
            passed += len(data)
            await loop.sock_sendall(receiver, data)
        receiver.shutdown(socket.SHUT_WR)


async def _copy(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, CHUNK):
        await loop.sock_sendall(target, data)
    target.shutdown(socket.SHUT_WR)
