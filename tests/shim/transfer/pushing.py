"""What tests of the TCP transport push, and how."""

import asyncio
from collections.abc import Sequence

from heddle_contracts.kv import KvNamespace
from heddle_shim.transfer.engine_side import Offer
from heddle_shim.transfer.page_file import PageBytes, Part
from heddle_shim.transfer.tcp import TcpTransport
from heddle_shim.transfer.transport import Progress

from .conftest import PATIENCE_S
from .stored_engine import StoredEngine


class MemorySource:
    """Pages made up from their index; ``reads`` says which were asked for."""

    def __init__(self, namespace: KvNamespace, hashes: Sequence[str]) -> None:
        self.namespace = namespace
        self.hashes = tuple(hashes)
        self.reads: list[int] = []

    async def read(self, index: int) -> Sequence[Part]:
        self.reads.append(index)
        return [Part.of(data) for data in page(self.namespace, index)]

    async def close(self) -> None: ...


def page(namespace: KvNamespace, index: int) -> list[PageBytes]:
    size = namespace.layout.rank_page_bytes
    return [bytes([(index + part) % 251]) * size for part in range(namespace.layout.parts)]


def offer_of(source: MemorySource, name: str = "m", deadline_s: float = PATIENCE_S) -> Offer:
    return Offer(name, "t", source.namespace, source.hashes, deadline_s)


async def push(address: str, source: MemorySource, progress: Progress, name: str = "m") -> None:
    async with asyncio.timeout(PATIENCE_S):
        await TcpTransport().push(address, offer_of(source, name), source, progress)


def assert_stored(engine: StoredEngine, source: MemorySource, pages: int) -> None:
    shelf = engine.store.shelf(engine.own)
    for index, name in enumerate(source.hashes[:pages]):
        for part, data in enumerate(page(source.namespace, index)):
            assert shelf.get(name, part) == data
