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
    MAX_PAGES,
    MAX_TEXT,
    PREAMBLE,
    ConnectionBroken,
    Frame,
    FrameSocket,
    FrameType,
    pack_offer,
    unpack_fault,
    unpack_missing,
)
from heddle_shim.transfer.transport import Progress

CONNECT_S: Final = 5.0
ATTEMPTS: Final = 6
"""Connections in a row that bring no page before a push is given up. With the pauses between them (0.1 s,
doubling) they span three seconds: time for a shim to be restarted.
"""
FIRST_PAUSE_S: Final = 0.1
CHECKSUM_ATTEMPTS: Final = 3
FORGET_S: Final = 1.0
"""How long a cancelled push tries to tell the receiver."""
OURS: Final = frozenset({MigrationFault.CHECKSUM, MigrationFault.WEIGHTS_CHANGED, MigrationFault.ENGINE})
"""Faults that end a push at this side."""


class TcpTransport:
    """Pushes to ``TcpReceiver``. One instance serves any number of pushes."""

    name: Final = "tcp"

    async def push(self, address: str, offer: Offer, source: PageSource, progress: Progress) -> None:
        """As ``Transport.push``; ``address`` is host:port."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + offer.deadline_s
        try:
            await self._until_done(address, offer, source, progress, ends)
        except (asyncio.CancelledError, TransferFault) as error:
            # The receiver knows of its own refusals; of ours it must be told.
            if not isinstance(error, TransferFault) or error.fault in OURS:
                with contextlib.suppress(OSError, TimeoutError, TransferFault):
                    await asyncio.wait_for(_forget(address, offer.id), FORGET_S)
            raise

    async def _until_done(
        self, address: str, offer: Offer, source: PageSource, progress: Progress, ends: float
    ) -> None:
        loop = asyncio.get_running_loop()
        in_vain = spoilt = 0
        while True:
            moved = progress.moved
            progress.attempts += 1
            left = Offer(offer.id, offer.trajectory, offer.namespace, offer.hashes, ends - loop.time())
            try:
                await _attempt(address, left, source, progress)
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


async def _attempt(address: str, offer: Offer, source: PageSource, progress: Progress) -> None:
    wire = await _connect(address)
    try:
        await wire.send(FrameType.OFFER, pack_offer(offer))
        answer = await _expect(wire, FrameType.ACCEPT)
        missing = unpack_missing(await wire.body(answer, MAX_PAGES // 8 + 1), len(offer.hashes))
        if progress.attempts == 1:
            progress.present = len(offer.hashes) - len(missing)
        reply = asyncio.create_task(_expect(wire, FrameType.DONE))
        try:
            await _send_pages(wire, offer, missing, source, progress, reply)
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
        wire.close()


async def _send_pages(
    wire: FrameSocket,
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
            crcs = struct.pack(f"<{len(page)}I", *(part.crc for part in page))
            await wire.send(FrameType.PAGE, crcs, *(part.data for part in page), parts=len(page), page=index)
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


async def _expect(wire: FrameSocket, kind: FrameType) -> Frame:
    frame = await wire.receive()
    if frame.type is FrameType.REFUSE:
        raise unpack_fault(await wire.body(frame, MAX_TEXT))
    if frame.type is not kind:
        raise ConnectionBroken(f"{frame.type.name} where {kind.name} was expected")
    return frame


async def _connect(address: str) -> FrameSocket:
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
            except BaseException:
                sock.close()
                raise
    except TimeoutError as error:
        raise ConnectionRefusedError(f"no connection within {CONNECT_S:g} s") from error
    except ValueError as error:
        raise TransferFault(MigrationFault.TARGET_UNREACHABLE, f"{address}: not host:port") from error
    return wire


async def _forget(address: str, offer_id: str) -> None:
    """Tells the receiver that an offer is over, so that it need not wait for a new connection."""
    wire = await _connect(address)
    try:
        await wire.send(FrameType.FORGET, offer_id.encode())
    finally:
        wire.close()
