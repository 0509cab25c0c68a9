"""Pages pushed over TCP: the sending side.

One connection an attempt. The receiver says first which pages it wants, so a push after a broken connection
goes on where the last one ended. Pages go in order; at most two are in memory, one being sent and one being
read. What the receiver cannot take in keeps waiting here: TCP's own back-pressure.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Final

from heddle_contracts.kv import MigrationFault

from heddle_shim.transfer.engine_side import Offer, PageSource
from heddle_shim.transfer.faults import TransferFault
from heddle_shim.transfer.frames import (
    INLINE,
    MAX_PAGES,
    MAX_TEXT,
    NONCE_BYTES,
    PREAMBLE,
    ConnectionBroken,
    Frame,
    FrameSocket,
    FrameType,
    pack_offer,
    proof_of,
    unpack_fault,
    unpack_missing,
    unpack_note,
)
from heddle_shim.transfer.mover import SLOTS, Mover, Writer
from heddle_shim.transfer.page_file import Part
from heddle_shim.transfer.transport import Progress, Weigh

CONNECT_S: Final = 5.0
ATTEMPTS: Final = 6
"""Connections in a row that bring no page before a push is given up. With the pauses between them (0.1 s,
doubling) they span three seconds: time for a shim to be restarted.
"""
FIRST_PAUSE_S: Final = 0.1
CHECKSUM_ATTEMPTS: Final = 3
FORGET_S: Final = 1.0
"""How long a cancelled push tries to tell the receiver."""
OURS: Final = frozenset(
    {
        MigrationFault.CHECKSUM,
        MigrationFault.WEIGHTS_CHANGED,
        MigrationFault.ENGINE,
        MigrationFault.NOT_WORTH_IT,
    }
)
"""Faults that end a push at this side."""


class TcpTransport:
    """Pushes to ``TcpReceiver``. One instance serves any number of pushes. With a ``mover`` the pages' bytes
    go by it, and the connection carries the rest.
    """

    def __init__(self, mover: Mover | None = None, key: str | None = None) -> None:
        """``key``: what receivers ask for; None where they ask for none."""
        self._mover = mover
        self._key = key

    @property
    def name(self) -> str:
        return "tcp" if self._mover is None else self._mover.name

    async def push(
        self, address: str, offer: Offer, source: PageSource, progress: Progress, weigh: Weigh | None = None
    ) -> None:
        """As ``Transport.push``; ``address`` is host:port."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + offer.deadline_s
        try:
            await self._until_done(address, offer, source, progress, ends, weigh)
        except (asyncio.CancelledError, TransferFault) as error:
            # The receiver knows of its own refusals; of ours it must be told.
            if not isinstance(error, TransferFault) or error.fault in OURS:
                with contextlib.suppress(OSError, TimeoutError, TransferFault):
                    await asyncio.wait_for(_forget(address, self._key, offer.id), FORGET_S)
            raise

    async def _until_done(
        self,
        address: str,
        offer: Offer,
        source: PageSource,
        progress: Progress,
        ends: float,
        weigh: Weigh | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        in_vain = spoilt = 0
        while True:
            moved = progress.moved
            progress.attempts += 1
            left = Offer(offer.id, offer.trajectory, offer.namespace, offer.hashes, ends - loop.time())
            try:
                await _attempt(address, self._key, left, source, progress, self._mover, weigh)
                return
            except TransferFault as fault:
                spoilt += 1
                if fault.fault is not MigrationFault.CHECKSUM or spoilt >= CHECKSUM_ATTEMPTS:
                    raise
            except OSError as error:
                in_vain = 0 if progress.moved > moved else in_vain + 1
                if in_vain >= ATTEMPTS:
                    reached = progress.moved or isinstance(error, ConnectionBroken)
                    fault_kind = MigrationFault.BROKEN if reached else MigrationFault.TARGET_UNREACHABLE
                    raise TransferFault(fault_kind, f"{address}: {error or type(error).__name__}") from error
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** max(0, in_vain - 1))


async def _attempt(
    address: str,
    key: str | None,
    offer: Offer,
    source: PageSource,
    progress: Progress,
    mover: Mover | None,
    weigh: Weigh | None,
) -> None:
    wire = await _connect(address, key)
    way: _Inline | _Moved | None = None
    try:
        await wire.send(FrameType.OFFER, pack_offer(offer, INLINE if mover is None else mover.name))
        answer = await _expect(wire, FrameType.ACCEPT)
        accepted = await wire.body(answer, MAX_PAGES // 8 + 1 + MAX_TEXT)
        missing = unpack_missing(accepted, len(offer.hashes))
        if progress.present is None:
            progress.present = len(offer.hashes) - len(missing)
            if weigh is not None:
                weigh(len(missing))
        if mover is None:
            way = _Inline(wire)
        else:
            note = unpack_note(accepted, len(offer.hashes))
            way = _Moved(wire, mover.writer(note, offer.namespace.layout.page_bytes))
        reply = asyncio.create_task(way.done())
        try:
            await _send_pages(wire, way, offer, missing, source, progress, reply)
        except ConnectionError:
            # What the receiver said last explains the break better than the break itself.
            await asyncio.wait([reply], timeout=CONNECT_S)
            if reply.done() and not reply.cancelled() and isinstance(reply.exception(), TransferFault):
                reply.result()
            raise
        finally:
            reply.cancel()
            await asyncio.gather(reply, return_exceptions=True)
    finally:
        if isinstance(way, _Moved):
            way.close()
        wire.close()


class _Inline:
    """Pages go over the connection."""

    def __init__(self, wire: FrameSocket) -> None:
        self._wire = wire

    async def send(self, index: int, page: Sequence[Part], reply: asyncio.Task[Frame]) -> None:
        data = [part.data for part in page]
        await self._wire.send(FrameType.PAGE, _checksums(page), *data, parts=len(page), page=index)

    async def done(self) -> Frame:
        """What the receiver says when it has all."""
        return await _expect(self._wire, FrameType.DONE)


class _Moved:
    """Pages are written into the receiver's slots; the connection says which one is there."""

    def __init__(self, wire: FrameSocket, writer: Writer) -> None:
        self._wire, self._writer = wire, writer
        self._free = asyncio.Semaphore(SLOTS)
        self._turn = 0

    async def send(self, index: int, page: Sequence[Part], reply: asyncio.Task[Frame]) -> None:
        free = asyncio.create_task(self._free.acquire())
        try:
            await asyncio.wait({free, reply}, return_when=asyncio.FIRST_COMPLETED)
            if not free.done():
                reply.result()
                raise ConnectionBroken("the receiver was done before it had all pages")
        finally:
            free.cancel()
        await self._writer.write(self._turn % SLOTS, [part.data for part in page])
        self._turn += 1
        await self._wire.send(FrameType.PAGE, _checksums(page), parts=len(page), page=index)

    async def done(self) -> Frame:
        while (frame := await _expect(self._wire, FrameType.DONE, FrameType.TAKEN)).type is FrameType.TAKEN:
            self._free.release()
        return frame

    def close(self) -> None:
        self._writer.close()


def _checksums(page: Sequence[Part]) -> bytes:
    return struct.pack(f"<{len(page)}I", *(part.crc for part in page))


async def _send_pages(
    wire: FrameSocket,
    way: _Inline | _Moved,
    offer: Offer,
    missing: Sequence[int],
    source: PageSource,
    progress: Progress,
    reply: asyncio.Task[Frame],
) -> None:
    complete = len(offer.hashes)
    upcoming = asyncio.create_task(source.read(missing[0])) if missing else None
    try:
        for place, index in enumerate(missing):
            assert upcoming is not None
            page = await upcoming
            if page is None:
                complete = index
                break
            after = missing[place + 1] if place + 1 < len(missing) else None
            upcoming = asyncio.create_task(source.read(after)) if after is not None else None
            if progress.first_page_at is None:
                progress.first_page_at = asyncio.get_running_loop().time()
            await way.send(index, page, reply)
            if reply.done():
                reply.result()
                raise ConnectionBroken("the receiver was done before it had all pages")
            progress.moved += 1
            progress.bytes += sum(memoryview(part.data).nbytes for part in page)
    finally:
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
    await wire.send(FrameType.END, page=complete)
    progress.complete = (await reply).page
    # A page that was sent again after a break has moved once.
    progress.moved = max(0, progress.complete - (progress.present or 0))


async def _expect(wire: FrameSocket, *kinds: FrameType) -> Frame:
    frame = await wire.receive()
    if frame.type is FrameType.REFUSE:
        raise unpack_fault(await wire.body(frame, MAX_TEXT))
    if frame.type not in kinds:
        raise ConnectionBroken(f"{frame.type.name} where {kinds[0].name} was expected")
    return frame


async def _connect(address: str, key: str | None) -> FrameSocket:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            family, kind, protocol, _, target = found[0]
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, target)
                wire = FrameSocket(sock)
                await wire.send_raw(PREAMBLE)
                nonce = bytearray(NONCE_BYTES)
                await wire.receive_into(memoryview(nonce))
                await wire.send_raw(proof_of(key, nonce))
            except BaseException:
                sock.close()
                raise
    except TimeoutError as error:
        raise ConnectionRefusedError(f"no connection within {CONNECT_S:g} s") from error
    except ValueError as error:
        raise TransferFault(MigrationFault.TARGET_UNREACHABLE, f"{address}: not host:port") from error
    return wire


async def _forget(address: str, key: str | None, offer_id: str) -> None:
    """Tells the receiver that an offer is over, so that it need not wait for a new connection."""
    wire = await _connect(address, key)
    try:
        await wire.send(FrameType.FORGET, offer_id.encode())
    finally:
        wire.close()
