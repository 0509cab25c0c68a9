"""Page stores in shared memory, namespaces with small pages, shims and receivers over them."""

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from heddle_contracts.kv import KvLayout, KvNamespace
from heddle_shim.transfer.page_store import PageStore
from heddle_shim.transfer.tcp_receiver import TcpReceiver

from .stored_engine import Shim, StoredEngine

MakeStore = Callable[..., PageStore]
MakeNamespace = Callable[..., KvNamespace]
MakeShim = Callable[..., Awaitable[Shim]]
MakeReceiver = Callable[..., Awaitable[TcpReceiver]]
HashChain = Callable[..., list[str]]
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]

PATIENCE_S = 60.0
"""Far beyond what any of this takes; only a hang reaches it."""


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A directory of shared memory that is gone after the test."""
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    path = Path(tempfile.mkdtemp(prefix="heddle-test-", dir=parent))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_store(shared_memory: Path) -> Iterator[MakeStore]:
    """Creates stores; all are closed and removed."""
    made: list[PageStore] = []

    def make(budget: int = 1 << 20, name: str = "store") -> PageStore:
        made.append(PageStore.create(shared_memory / name, budget))
        return made[-1]

    yield make
    for store in made:
        store.close(remove=True)


@pytest.fixture
def make_namespace() -> MakeNamespace:
    """A namespace of small pages; keywords override its layout."""

    def make(model: str = "tiny", weights: str = "default", **layout: Any) -> KvNamespace:
        shape = {
            "dtype": "float32",
            "item_bytes": 4,
            "page_size": 4,
            "layers": 2,
            "kv_heads": 4,
            "head_dim": 8,
        }
        return KvNamespace(model=model, weight_version=weights, layout=KvLayout(**{**shape, **layout}))

    return make


@pytest.fixture
def hash_chain() -> HashChain:
    """Page hashes of a made-up history."""

    def chain(count: int, seed: str = "") -> list[str]:
        hashes, last = [], seed
        for index in range(count):
            last = hashlib.sha256(f"{last}/{index}".encode()).hexdigest()
            hashes.append(last)
        return hashes

    return chain


@pytest.fixture
def eventually() -> Eventually:
    """Waits until a condition holds."""

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - the condition is anybody's
                await asyncio.sleep(0.01)

    return until


@pytest.fixture
async def make_shim(make_store: MakeStore, make_namespace: MakeNamespace) -> AsyncIterator[MakeShim]:
    """Starts shims over their own stores; all are stopped."""
    async with AsyncExitStack() as stack:

        async def make(
            name: str,
            namespace: KvNamespace | None = None,
            *,
            budget: int = 1 << 20,
            rate: float | None = None,
        ) -> Shim:
            engine = StoredEngine(make_store(budget, name), namespace or make_namespace())
            return await stack.enter_async_context(Shim(engine, rate=rate))

        yield make


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as found:
        yield found


@pytest.fixture
async def make_receiver(make_store: MakeStore, make_namespace: MakeNamespace) -> AsyncIterator[MakeReceiver]:
    """Receivers over stores of their own; all are closed."""
    async with AsyncExitStack() as stack:

        async def make(engine: StoredEngine | None = None, port: int = 0) -> TcpReceiver:
            receiver = TcpReceiver(engine or StoredEngine(make_store(64 << 20), make_namespace()), port=port)
            await receiver.start()
            stack.push_async_callback(receiver.close)
            return receiver

        yield make
