"""Pages whose bytes go by an RDMA engine: memory of this process, and the real engines where they load.

Mooncake runs in its TCP mode and NIXL over UCX, which need no RDMA device but their own packages.
"""

import ctypes
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from heddle_contracts.kv import MigrationFault
from heddle_shim.transfer.engine_side import Offer
from heddle_shim.transfer.extra_transports import load_mover
from heddle_shim.transfer.faults import TransferFault
from heddle_shim.transfer.mover import Memory, Mover, SlotPool, TransportMissing
from heddle_shim.transfer.page_file import PageBytes
from heddle_shim.transfer.reshard import reshard
from heddle_shim.transfer.stored_pages import StoredSource
from heddle_shim.transfer.tcp import TcpTransport
from heddle_shim.transfer.tcp_receiver import TcpReceiver
from heddle_shim.transfer.transport import Progress

from .conftest import PATIENCE_S, HashChain, MakeNamespace, MakeStore
from .stored_engine import StoredEngine


class MemoryMover:
    """Writes to addresses of this process. ``spoil``: pages of which one byte is changed, by turn."""

    name = "memory"

    def __init__(self) -> None:
        self.registered: set[int] = set()
        self.spoil: set[int] = set()
        self.fail: set[int] = set()
        self.writes = 0

    def note(self, slots: Sequence[Memory]) -> dict[str, Any]:
        return {"slots": [memory.address for memory in slots]}

    def register(self, memory: Memory) -> None:
        self.registered.add(memory.address)

    def writer(self, note: Mapping[str, Any], size: int) -> "MemoryWriter":
        return MemoryWriter(self, note["slots"])


class MemoryWriter:
    def __init__(self, mover: MemoryMover, slots: list[int]) -> None:
        self._mover, self._slots = mover, slots

    async def write(self, slot: int, parts: Sequence[PageBytes]) -> None:
        mover = self._mover
        turn, mover.writes = mover.writes, mover.writes + 1
        if turn in mover.fail:
            raise ConnectionError("the engine failed")
        address = self._slots[slot]
        assert address in mover.registered
        data = b"".join(bytes(part) for part in parts)
        if turn in mover.spoil:
            data = b"\xee" + data[1:]
        ctypes.memmove(address, data, len(data))

    def close(self) -> None: ...


MOVERS: dict[str, Callable[[], Mover]] = {
    "memory": MemoryMover,
    "mooncake": lambda: load_mover("mooncake-tcp", "127.0.0.1"),
    "nixl": lambda: load_mover("nixl", "127.0.0.1"),
}
MakePair = Callable[..., Awaitable[tuple[StoredEngine, StoredEngine, str]]]


@pytest.fixture
async def make_pair(make_store: MakeStore, make_namespace: MakeNamespace) -> AsyncIterator[MakePair]:
    """Two engines, the second behind a receiver with these movers: (source, target, its address)."""
    async with AsyncExitStack() as stack:

        async def make(*movers: Mover) -> tuple[StoredEngine, StoredEngine, str]:
            source = StoredEngine(make_store(4 << 20, "a"), make_namespace(tp_size=2))
            target = StoredEngine(make_store(4 << 20, "b"), make_namespace(tp_size=4))
            receiver = TcpReceiver(target, movers=movers)
            await receiver.start()
            stack.push_async_callback(receiver.close)
            return source, target, receiver.address

        yield make


async def push(source: StoredEngine, names: Sequence[str], address: str, mover: Mover | None) -> Progress:
    pages = StoredSource(source.store, source.own, names, "m", PATIENCE_S)
    offer = Offer("m", "t", source.own, tuple(names), PATIENCE_S)
    progress = Progress()
    await TcpTransport(mover).push(address, offer, pages, progress)
    await pages.close()
    return progress


def content(engine: StoredEngine) -> Callable[[str, int], bytes]:
    size = engine.own.layout.rank_page_bytes
    return lambda name, part: (name.encode() * (size // len(name) + 1))[part : part + size]


@pytest.mark.parametrize("kind", list(MOVERS))
async def test_pages_go_by_the_engine_and_land_re_sharded(
    kind: str, make_pair: MakePair, hash_chain: HashChain
) -> None:
    try:
        there, here = MOVERS[kind](), MOVERS[kind]()
    except TransportMissing as error:
        pytest.skip(str(error))
    if isinstance(there, MemoryMover):
        here = there
    source, target, address = await make_pair(there)
    names = hash_chain(30)
    source.fill(names, content(source))

    progress = await push(source, names, address, here)

    assert (progress.complete, progress.moved, progress.attempts) == (30, 30, 1)
    assert target.pages(names) == 30
    shelf, made = target.store.shelf(target.own), content(source)
    for name in names:
        parts: list[PageBytes] = [made(name, part) for part in range(2)]
        expected = reshard(source.own.layout, target.own.layout, parts)
        assert [shelf.get(name, part) for part in range(4)] == [bytes(part) for part in expected]


async def test_what_an_engine_spoils_is_found_and_what_it_drops_is_sent_again(
    make_pair: MakePair, hash_chain: HashChain
) -> None:
    mover = MemoryMover()
    mover.spoil, mover.fail = {3}, {9}
    source, target, address = await make_pair(mover)
    names = hash_chain(20)
    source.fill(names, content(source))

    progress = await push(source, names, address, mover)

    assert (progress.complete, progress.attempts) == (20, 3)
    assert target.pages(names) == 20
    assert target.store.usage().promised == 0


async def test_a_mover_that_the_target_has_not_is_refused(make_pair: MakePair, hash_chain: HashChain) -> None:
    source, _, address = await make_pair()
    names = hash_chain(3)
    source.fill(names, content(source))

    with pytest.raises(TransferFault, match="memory is not there") as caught:
        await push(source, names, address, MemoryMover())

    assert caught.value.fault is MigrationFault.MISMATCH


def test_slots_are_registered_once_and_used_again() -> None:
    mover = MemoryMover()
    pool = SlotPool(mover)
    first = pool.take(1000)
    second = pool.take(1000)
    pool.give_back(first)

    assert pool.take(1000) is first
    assert len(mover.registered) == 4
    assert second is not first


@pytest.mark.parametrize(
    ("kind", "module"), [("mooncake", "mooncake.engine"), ("nixl", "nixl._api")], ids=["mooncake", "nixl"]
)
def test_an_extra_that_does_not_load_says_what_to_install(
    kind: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(f"heddle_shim.transfer.{kind}.import_module", absent)

    with pytest.raises(TransportMissing, match=rf"heddle-shim\[{kind}\].*tcp transport.*{module}"):
        MOVERS[kind]()


def test_a_transport_of_no_name_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match="known are mooncake"):
        load_mover("pigeon", "127.0.0.1")
