"""An engine whose pages lie in a page store, with a shim's HTTP app around it: all real but the engine."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from heddle_contracts.kv import EngineFacts, KvNamespace, MigrationFault, MigrationRequest
from heddle_shim.transfer.engine_side import EngineState, Offer, PageSink, PageSource
from heddle_shim.transfer.faults import TransferFault
from heddle_shim.transfer.migrations import Migrations
from heddle_shim.transfer.page_store import PageStore
from heddle_shim.transfer.routes import MigrationRoutes
from heddle_shim.transfer.stored_pages import StoredSink, StoredSource
from heddle_shim.transfer.tcp import TcpTransport
from heddle_shim.transfer.tcp_receiver import TcpReceiver
from starlette.applications import Starlette

START_S = 60.0


class StoredEngine:
    """Fills ``EngineSide``. ``on_read`` is awaited before each page is read, so that a test can hold it."""

    def __init__(self, store: PageStore, namespace: KvNamespace) -> None:
        self.store = store
        self.own = namespace
        self.refusal: str | None = None
        self.on_read: Callable[[int], Any] | None = None

    def facts(self) -> EngineFacts:
        return EngineFacts(kind="stored", tp_size=self.own.layout.tp_size)

    def state(self) -> EngineState:
        return "ready"

    def namespace(self) -> KvNamespace | None:
        return self.own

    def cannot_migrate(self) -> str | None:
        return self.refusal

    async def open_source(self, request: MigrationRequest) -> PageSource:
        if request.page_hashes is None:
            raise TransferFault(MigrationFault.NOTHING_TO_MOVE, "page_hashes: send them")
        source = StoredSource(self.store, self.own, request.page_hashes, request.id, request.deadline_s)
        return HeldSource(source, self)

    async def open_sink(self, offer: Offer) -> PageSink:
        return StoredSink(self.store, self.own, offer)

    def fill(self, hashes: Sequence[str], data: Callable[[str, int], bytes]) -> None:
        shelf = self.store.shelf(self.own)
        for name in hashes:
            for part in range(self.own.layout.parts):
                assert shelf.put(name, part, data(name, part))

    def pages(self, hashes: Sequence[str]) -> int:
        return self.store.shelf(self.own).prefix(hashes, range(self.own.layout.parts))


class HeldSource:
    """A source that asks ``on_read`` of its engine before each page."""

    def __init__(self, source: StoredSource, engine: StoredEngine) -> None:
        self._source, self._engine = source, engine
        self.namespace, self.hashes = source.namespace, source.hashes

    async def read(self, index: int) -> Any:
        if self._engine.on_read is not None:
            await self._engine.on_read(index)
        return await self._source.read(index)

    async def close(self) -> None:
        await self._source.close()


class QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers; ``up`` is set once it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


class Shim:
    """``async with`` serves an engine's shim on free ports; ``url`` is its base URL."""

    def __init__(self, engine: StoredEngine, *, rate: float | None = None) -> None:
        self.engine = engine
        self.receiver = TcpReceiver(engine)
        self.migrations = Migrations(engine, [TcpTransport()], bytes_per_second=rate)
        self.receivers = {"tcp": self.receiver}
        routes = MigrationRoutes(engine, self.migrations, self.receivers, shim_version="test")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(
            Starlette(routes=routes.routes()), log_config=None, access_log=False, lifespan="off"
        )
        self._server = QuietServer(config)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Shim":
        await self.receiver.start()
        self._task = asyncio.create_task(self._server.serve([self._listener]))
        await asyncio.wait_for(self._server.up.wait(), START_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.migrations.close()
        await self.receiver.close()
        self._server.should_exit = True
        assert self._task is not None
        await self._task
        self._listener.close()
