"""The TCP transport against broken networks, slow receivers and senders that lie."""

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

import pytest
from heddle_contracts.kv import MigrationFault
from heddle_shim.transfer.engine_side import Offer, PageSink
from heddle_shim.transfer.faults import TransferFault
from heddle_shim.transfer.frames import (
    HEADER,
    NONCE_BYTES,
    PREAMBLE,
    FrameType,
    pack_missing,
    pack_offer,
    proof_of,
    unpack_missing,
)
from heddle_shim.transfer.page_file import Part
from heddle_shim.transfer.tcp import TcpTransport
from heddle_shim.transfer.tcp_receiver import MAX_ARRIVALS, TcpReceiver
from heddle_shim.transfer.transport import Progress

from .broken_wire import BrokenWire
from .conftest import PATIENCE_S, Eventually, HashChain, MakeNamespace, MakeReceiver, MakeStore
from .pushing import MemorySource, assert_stored, offer_of, push
from .stored_engine import StoredEngine


async def test_a_push_goes_on_where_broken_connections_ended(
    make_receiver: MakeReceiver, make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    engine = StoredEngine(make_store(64 << 20), make_namespace())
    receiver = await make_receiver(engine)
    source = MemorySource(make_namespace(), hash_chain(200))
    progress = Progress()

    async with BrokenWire(receiver.address, cuts=(5, 60_000, 150_000)) as wire:
        await push(wire.address, source, progress)

    assert wire.connections == progress.attempts == 4
    assert (progress.complete, progress.moved) == (200, 200)
    assert_stored(engine, source, 200)
    # A cut loses at most what was under way, never all that had arrived.
    assert 200 <= len(source.reads) < 400
    assert receiver.arriving == 0
    assert engine.store.usage().promised == 0


async def test_a_byte_that_changed_on_the_way_is_sent_again(
    make_receiver: MakeReceiver, make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    engine = StoredEngine(make_store(64 << 20), make_namespace())
    receiver = await make_receiver(engine)
    source = MemorySource(make_namespace(), hash_chain(50))
    progress = Progress()
    in_a_page = 20 * source.namespace.layout.page_bytes

    async with BrokenWire(receiver.address, flips=(in_a_page,)) as wire:
        await push(wire.address, source, progress)

    assert progress.attempts == 2
    assert_stored(engine, source, 50)


async def test_a_wire_that_always_changes_bytes_ends_the_push(
    make_receiver: MakeReceiver,
    make_store: MakeStore,
    make_namespace: MakeNamespace,
    hash_chain: HashChain,
    eventually: Eventually,
) -> None:
    engine = StoredEngine(make_store(64 << 20), make_namespace())
    receiver = await make_receiver(engine)
    source = MemorySource(make_namespace(), hash_chain(50))
    spoil = 5_000

    async with BrokenWire(receiver.address, flips=(spoil,) * 10) as wire:
        with pytest.raises(TransferFault, match="another checksum") as caught:
            await push(wire.address, source, Progress())

    assert caught.value.fault is MigrationFault.CHECKSUM
    await eventually(lambda: receiver.arriving == 0)
    assert engine.store.usage().promised == 0


async def test_a_receiver_that_is_restarted_in_the_middle_gets_the_rest(
    make_receiver: MakeReceiver,
    make_store: MakeStore,
    make_namespace: MakeNamespace,
    hash_chain: HashChain,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Three seconds are plenty for a restart, but not on a machine that does ten other things.
    monkeypatch.setattr("heddle_shim.transfer.tcp.ATTEMPTS", 10)
    engine = StoredEngine(make_store(64 << 20), make_namespace())
    first = await make_receiver(engine)
    port = int(first.address.rpartition(":")[2])
    source = MemorySource(make_namespace(), hash_chain(100))
    progress = Progress()
    restarts: list[asyncio.Task[None]] = []

    async def restart() -> None:
        await first.close()
        await make_receiver(engine, port)

    async with BrokenWire(first.address, cuts=(100_000,)) as wire:
        wire.on_cut = lambda: restarts.append(asyncio.create_task(restart()))
        await push(wire.address, source, progress)
    await asyncio.gather(*restarts)

    assert progress.complete == 100
    assert_stored(engine, source, 100)
    assert engine.store.usage().promised == 0


async def test_nobody_there_is_told_apart_from_a_connection_that_broke(
    make_receiver: MakeReceiver, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    source = MemorySource(make_namespace(), hash_chain(50))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(TransferFault) as caught:
        await push(nobody, source, Progress())
    assert caught.value.fault is MigrationFault.TARGET_UNREACHABLE

    receiver = await make_receiver()
    async with BrokenWire(receiver.address, cuts=(3,) * 20) as wire:
        with pytest.raises(TransferFault) as caught:
            await push(wire.address, source, Progress())
    assert caught.value.fault in {MigrationFault.BROKEN, MigrationFault.TARGET_UNREACHABLE}

    with pytest.raises(TransferFault, match="not host:port"):
        await push("nowhere", source, Progress())


async def greeted(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a receiver without a key, up to the first frame."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(PREAMBLE)
    writer.write(proof_of(None, await reader.readexactly(NONCE_BYTES)))
    return reader, writer


class SlowSink:
    """A sink that stores nothing until it is let go."""

    def __init__(self, offer: Offer) -> None:
        self.pages = len(offer.hashes)
        self.written: list[int] = []
        self.go = asyncio.Event()
        self.closed_with: int | None = None

    def missing(self) -> list[int]:
        return [index for index in range(self.pages) if index not in self.written]

    async def write(self, index: int, parts: Sequence[Part]) -> None:
        await self.go.wait()
        self.written.append(index)

    async def close(self, complete: int) -> None:
        self.closed_with = complete


class SlowEngine(StoredEngine):
    """An engine whose sinks are slow."""

    sinks: list[SlowSink]

    async def open_sink(self, offer: Offer) -> PageSink:
        self.sinks.append(SlowSink(offer))
        return self.sinks[-1]


@pytest.fixture
def slow_engine(make_store: MakeStore, make_namespace: MakeNamespace) -> SlowEngine:
    engine = SlowEngine(make_store(), make_namespace(head_dim=4096, page_size=16))
    engine.sinks = []
    return engine


async def test_a_slow_store_holds_the_sender_back(
    make_receiver: MakeReceiver, slow_engine: SlowEngine, hash_chain: HashChain, eventually: Eventually
) -> None:
    receiver = await make_receiver(slow_engine)
    source = MemorySource(slow_engine.own, hash_chain(100))
    megabytes = source.namespace.layout.page_bytes / 1e6
    pushing = asyncio.create_task(push(receiver.address, source, Progress()))
    # The system's buffers hold some pages (at most 4 MB doubled, at both ends), memory two at either end.
    bound = 4 + 16 / megabytes + 4

    await eventually(lambda: len(source.reads) > 3)
    # Nothing is stored, so whatever is read until the sender is seen to stand still lies in between.
    still = -1
    while still != len(source.reads):
        still = len(source.reads)
        await asyncio.sleep(0.2)
    assert still <= bound

    slow_engine.sinks[0].go.set()
    await pushing
    assert len(source.reads) == 100


async def test_a_cancelled_push_frees_the_room_at_once(
    make_receiver: MakeReceiver, slow_engine: SlowEngine, hash_chain: HashChain, eventually: Eventually
) -> None:
    receiver = await make_receiver(slow_engine)
    source = MemorySource(slow_engine.own, hash_chain(20))
    pushing = asyncio.create_task(push(receiver.address, source, Progress()))
    await eventually(lambda: len(source.reads) > 3)
    slow_engine.sinks[0].go.set()

    pushing.cancel()
    with suppress(asyncio.CancelledError):
        await pushing

    await eventually(lambda: slow_engine.sinks[0].closed_with is not None)
    assert receiver.arriving == 0


async def test_an_arrival_that_is_never_finished_ends_by_itself(
    make_receiver: MakeReceiver,
    slow_engine: SlowEngine,
    hash_chain: HashChain,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("heddle_shim.transfer.tcp_receiver.RESUME_S", 0.2)
    receiver = await make_receiver(slow_engine)
    source = MemorySource(slow_engine.own, hash_chain(3))
    host, _, port = receiver.address.rpartition(":")
    _, writer = await greeted(host, int(port))
    body = pack_offer(offer_of(source), "tcp")
    writer.write(HEADER.pack(FrameType.OFFER, 0, 0, len(body)) + body)
    await eventually(lambda: receiver.arriving == 1)

    writer.transport.abort()

    await eventually(lambda: receiver.arriving == 0)
    assert slow_engine.sinks[0].closed_with == 0


async def test_more_arrivals_than_may_be_are_refused_as_busy(
    make_receiver: MakeReceiver, slow_engine: SlowEngine, hash_chain: HashChain, eventually: Eventually
) -> None:
    receiver = await make_receiver(slow_engine)
    source = MemorySource(slow_engine.own, hash_chain(2))
    pushing = [
        asyncio.create_task(push(receiver.address, source, Progress(), f"m{number}"))
        for number in range(MAX_ARRIVALS)
    ]
    await eventually(lambda: receiver.arriving == MAX_ARRIVALS)

    with pytest.raises(TransferFault) as caught:
        await push(receiver.address, source, Progress(), "one more")

    assert caught.value.fault is MigrationFault.TARGET_BUSY
    for sink in slow_engine.sinks:
        sink.go.set()
    await asyncio.gather(*pushing)
    assert receiver.arriving == 0


NOISE = {
    "an unknown frame": HEADER.pack(99, 0, 0, 0),
    "a page before an offer": HEADER.pack(FrameType.PAGE, 1, 0, 4) + b"abcd",
    "an offer without end": HEADER.pack(FrameType.OFFER, 0, 0, 1 << 50),
    "an offer of noise": HEADER.pack(FrameType.OFFER, 0, 0, 8) + b"\xff" * 8,
    "an offer that promises more hashes": HEADER.pack(FrameType.OFFER, 0, 0, 4 + 12)
    + struct.pack("<I", 12)
    + b'{"pages": 9}',
    "forgetting what never was": HEADER.pack(FrameType.FORGET, 0, 0, 1) + b"x",
}


@pytest.mark.parametrize("sent", NOISE.values(), ids=NOISE.keys())
async def test_noise_is_hung_up_on_and_the_next_push_succeeds(
    sent: bytes, make_receiver: MakeReceiver, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    receiver = await make_receiver()
    host, _, port = receiver.address.rpartition(":")
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await greeted(host, int(port))
        writer.write(sent)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        progress = Progress()
        await push(receiver.address, MemorySource(make_namespace(), hash_chain(3)), progress)

    assert progress.complete == 3


async def test_another_protocol_is_hung_up_on(make_receiver: MakeReceiver) -> None:
    receiver = await make_receiver()
    host, _, port = receiver.address.rpartition(":")
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_only_who_knows_the_key_may_push(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    engine = StoredEngine(make_store(), make_namespace())
    receiver = TcpReceiver(engine, key="secret")
    await receiver.start()
    source = MemorySource(make_namespace(), hash_chain(3))
    for key in (None, "guess"):
        with pytest.raises(TransferFault, match="key") as caught:
            await TcpTransport(key=key).push(receiver.address, offer_of(source), source, Progress())
        assert caught.value.fault is MigrationFault.MISMATCH
    assert engine.pages(source.hashes) == 0

    await TcpTransport(key="secret").push(receiver.address, offer_of(source), source, Progress())

    assert engine.pages(source.hashes) == 3
    await receiver.close()


@pytest.mark.parametrize(
    ("parts", "index", "length"), [(2, 0, None), (1, 7, None), (1, 0, 10)], ids=["parts", "index", "length"]
)
async def test_a_page_that_was_not_offered_ends_the_connection(
    parts: int,
    index: int,
    length: int | None,
    make_receiver: MakeReceiver,
    make_namespace: MakeNamespace,
    hash_chain: HashChain,
) -> None:
    receiver = await make_receiver()
    source = MemorySource(make_namespace(), hash_chain(3))
    size = source.namespace.layout.page_bytes + 4 if length is None else length
    host, _, port = receiver.address.rpartition(":")
    body = pack_offer(offer_of(source), "tcp")
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await greeted(host, int(port))
        writer.write(HEADER.pack(FrameType.OFFER, 0, 0, len(body)) + body)
        await reader.readexactly(HEADER.size + 1)
        writer.write(HEADER.pack(FrameType.PAGE, parts, index, size))
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


def test_wanted_pages_survive_the_wire() -> None:
    for pages in (1, 7, 8, 9, 1000):
        wanted = [index for index in range(pages) if os.urandom(1)[0] & 1]
        assert unpack_missing(pack_missing(wanted, pages), pages) == wanted
