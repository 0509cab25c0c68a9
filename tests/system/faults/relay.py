"""A TCP relay between two parties that can stop passing bytes, one way or both: a partition of a network."""

import asyncio
from collections.abc import Mapping

CHUNK = 65536


class Relay:
    """Listens on ``host`` and ``port`` (0: a free one) and passes bytes on to ``target_port`` of this host.
    ``names``: what is written over in the answers, of the same length, so that who reads an address there
    comes through a relay too.

    ``passed``: bytes to the target so far. A cut loses nothing: bytes wait, as they would in the senders'
    buffers, and go on when it is healed. A connection made meanwhile stays silent.
    """

    def __init__(
        self,
        target_port: int,
        names: Mapping[bytes, bytes] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._target_port = target_port
        self._host = host
        self._names = dict(names or {})
        self._towards, self._back = asyncio.Event(), asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._most: int | None = None
        self.passed = 0
        self.port = port
        self.heal()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self, *, towards: bool = True, back: bool = True) -> None:
        """Stops bytes to the target, from it, or both."""
        if towards:
            self._towards.clear()
        if back:
            self._back.clear()

    def cut_after(self, more: int) -> None:
        """Lets so many more bytes to the target, then none."""
        self._most = self.passed + more

    def heal(self) -> None:
        self._most = None
        self._towards.set()
        self._back.set()

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._accept, self._host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._pumps):
            task.cancel()
        for writer in list(self._writers):
            writer.close()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        self._writers.add(far_writer)
        for pump in (
            self._pump(reader, far_writer, self._towards, {}),
            self._pump(far_reader, writer, self._back, self._names),
        ):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _bounded(self, data: bytes, writer: asyncio.StreamWriter) -> bytes:
        """What of ``data`` is left to be written, once it may be."""
        if self._most is not None and self.passed + len(data) > self._most:
            now = max(0, self._most - self.passed)
            writer.write(data[:now])
            self.passed += now
            data = data[now:]
            self._towards.clear()
            await self._towards.wait()
        self.passed += len(data)
        return data

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_open: asyncio.Event,
        names: Mapping[bytes, bytes],
    ) -> None:
        try:
            while data := await reader.read(CHUNK):
                await is_open.wait()
                if is_open is self._towards:
                    data = await self._bounded(data, writer)
                for old, new in names.items():
                    assert len(old) == len(new)
                    data = data.replace(old, new)
                writer.write(data)
                await writer.drain()
            await is_open.wait()
        except OSError:
            pass
        finally:
            writer.close()
            self._writers.discard(writer)
