"""Pages pushed over TCP: the receiving side.

Room is reserved before an offer is accepted. An arrival whose connection broke keeps its room for a while, so
that the sender can come back to it by the offer's id; what never comes back ends by itself. Two pages an
arrival are in memory, one being received and one being stored, so a slow store slows the sender down.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import os
import socket
import struct
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle_contracts.kv import MigrationFault

from heddle_shim.transfer.engine_side import EngineSide, Offer, PageSink
from heddle_shim.transfer.faults import TransferFault
from heddle_shim.transfer.frames import (
    HASH_BYTES,
    INLINE,
    MAX_PAGES,
    MAX_TEXT,
    NONCE_BYTES,
    PREAMBLE,
    PROOF_BYTES,
    ConnectionBroken,
    Frame,
    FrameSocket,
    FrameType,
    pack_fault,
    pack_missing,
    proof_of,
    unpack_offer,
)
from heddle_shim.transfer.mover import SLOTS, Mover, SlotPool
from heddle_shim.transfer.page_file import Part, checksum

log = logging.getLogger(__name__)

MAX_ARRIVALS: Final = 8
"""Offers at once. The gateway starts one transfer an endpoint; the rest is for several gateways and races."""
MAX_CONNECTIONS: Final = 32
RESUME_S: Final = 10.0
"""How long the room of a broken arrival is kept; a sender gives up after about three seconds."""
GREETING_S: Final = 10.0
IDLE_S: Final = 60.0
"""A sender that says nothing for so long is taken for gone."""
DRAIN_S: Final = 5.0
INLINE_CHECK_BYTES: Final = 128 * 1024
"""The checksum of less is computed sooner (50 us) than another thread has begun to."""


@dataclass(slots=True)
class _Arrival:
    """An offer that was accepted. ``task`` receives it now; None while its connection is broken."""

    offer: Offer
    sink: PageSink
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None


class TcpReceiver:
    """Listens for ``TcpTransport``."""

    name: Final = "tcp"

    def __init__(
        self,
        engine: EngineSide,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str = "",
        movers: Sequence[Mover] = (),
        key: str | None = None,
    ) -> None:
        """Listens on ``host``:``port`` (0 takes a free one) from ``start`` on; others reach it at
        ``advertise``, by default the host. ``movers`` may carry the pages' bytes instead of the connection.
        ``key``: what senders must know; None admits all.
        """
        self._engine = engine
        self._key = key
        self._movers = {mover.name: (mover, SlotPool(mover)) for mover in movers}
        self._host, self._port = host, port
        self._advertise = advertise or host
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals: dict[str, _Arrival] = {}
        self._bound = 0
        # One offer is admitted at a time, or the same one could be admitted twice.
        self._gate = asyncio.Lock()

    @property
    def names(self) -> list[str]:
        """Transports that arrive here: keys of ``Handshake.transports``."""
        return [self.name, *self._movers]

    @property
    def address(self) -> str:
        host = f"[{self._advertise}]" if ":" in self._advertise else self._advertise
        return f"{host}:{self._bound}"

    @property
    def arriving(self) -> int:
        return len(self._arrivals)

    async def start(self) -> None:
        """Listens from now on.

        Raises:
            OSError: the address cannot be listened on.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self._port), family=family, backlog=64)
        listener.setblocking(False)
        self._listener = listener
        self._bound = listener.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(listener))

    async def close(self) -> None:
        if self._listener is None:
            return
        tasks = [*self._tasks, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        self._listener = None
        for arrival in list(self._arrivals.values()):
            await self._end(arrival)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("cannot accept a transfer: %s", error)
                await asyncio.sleep(0.1)
                continue
            if len(self._tasks) >= MAX_CONNECTIONS:
                sock.close()
                continue
            self._own(self._serve(sock))

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------------------------------ one connection

    async def _serve(self, sock: socket.socket) -> None:
        wire = FrameSocket(sock)
        try:
            async with asyncio.timeout(GREETING_S):
                greeting = bytearray(len(PREAMBLE))
                await wire.receive_into(memoryview(greeting))
                if greeting != PREAMBLE:
                    raise ConnectionBroken("the sender speaks another protocol")
                await self._require_key(wire)
                frame = await wire.receive()
                body = await wire.body(frame, MAX_TEXT + MAX_PAGES * HASH_BYTES)
            if frame.type is FrameType.FORGET:
                await self._forget(body.decode(errors="replace"))
            elif frame.type is FrameType.OFFER:
                await self._take_in(wire, *unpack_offer(body))
            else:
                raise ConnectionBroken(f"{frame.type.name} before an offer")
        except TransferFault as fault:
            log.info("transfer refused: %s", fault)
            with contextlib.suppress(OSError):
                await wire.send(FrameType.REFUSE, pack_fault(fault))
                await wire.drain(DRAIN_S)
        except (OSError, TimeoutError) as error:
            log.info("transfer connection ended: %s", error or type(error).__name__)
        finally:
            wire.close()

    async def _require_key(self, wire: FrameSocket) -> None:
        nonce, proof = os.urandom(NONCE_BYTES), bytearray(PROOF_BYTES)
        await wire.send_raw(nonce)
        await wire.receive_into(memoryview(proof))
        if not hmac.compare_digest(proof, proof_of(self._key, nonce)):
            raise TransferFault(
                MigrationFault.MISMATCH, "key: the sender does not know the target's; start both with one key"
            )

    async def _take_in(self, wire: FrameSocket, offer: Offer, by: str) -> None:
        if by != INLINE and by not in self._movers:
            raise TransferFault(MigrationFault.MISMATCH, f"transport: {by} is not there at the target")
        arrival = await self._arrival(offer)
        arrival.task = asyncio.current_task()
        self._set_timer(arrival, offer.deadline_s + RESUME_S)
        try:
            if by == INLINE:
                buffers = [memoryview(bytearray(offer.namespace.layout.page_bytes)) for _ in range(SLOTS)]
                await self._receive(wire, arrival, buffers, None)
            else:
                await self._receive_moved(wire, arrival, *self._movers[by])
        except TransferFault as fault:
            # A page that came broken may come whole the next time; nothing else gets better by itself.
            if fault.fault is not MigrationFault.CHECKSUM:
                await self._end(arrival)
            raise
        finally:
            if arrival.task is asyncio.current_task():
                arrival.task = None
                self._set_timer(arrival, RESUME_S)

    async def _receive_moved(
        self, wire: FrameSocket, arrival: _Arrival, mover: Mover, pool: SlotPool
    ) -> None:
        slots = pool.take(arrival.offer.namespace.layout.page_bytes)
        try:
            await self._receive(wire, arrival, [memory.view for memory in slots], mover.note(slots))
        finally:
            pool.give_back(slots)

    async def _receive(
        self,
        wire: FrameSocket,
        arrival: _Arrival,
        buffers: Sequence[memoryview],
        note: dict[str, Any] | None,
    ) -> None:
        """``note``: of the mover that fills the buffers; None where the connection does."""
        offer = arrival.offer
        layout = offer.namespace.layout
        wanted = pack_missing(arrival.sink.missing(), len(offer.hashes))
        await wire.send(FrameType.ACCEPT, wanted, b"" if note is None else json.dumps(note).encode())
        storing: asyncio.Task[None] | None = None
        try:
            for turn in range(len(offer.hashes) + 1):
                async with asyncio.timeout(IDLE_S):
                    frame = await wire.receive()
                if frame.type is FrameType.END:
                    break
                _check_page(frame, offer, inline=note is None)
                buffer = buffers[turn % SLOTS]
                crcs, parts = await _page(wire, buffer, layout.parts, inline=note is None)
                if storing is not None:
                    await storing
                taken = None if note is None else wire
                storing = asyncio.create_task(_store(arrival.sink, frame.page, parts, crcs, taken))
            else:
                raise ConnectionBroken("more pages than were offered")
            if storing is not None:
                await storing
        finally:
            if storing is not None:
                await asyncio.gather(storing, return_exceptions=True)
        missing = arrival.sink.missing()
        await self._end(arrival)
        await wire.send(FrameType.DONE, page=min([frame.page, *missing[:1]]))
        await wire.drain(DRAIN_S)

    # ------------------------------------------------------------------------------------------ arrivals

    async def _arrival(self, offer: Offer) -> _Arrival:
        """The arrival of an offer that came before, or a new one with room reserved."""
        async with self._gate:
            return await self._admit(offer)

    async def _admit(self, offer: Offer) -> _Arrival:
        known = self._arrivals.get(offer.id)
        if known is not None:
            await self._stop(known)
            if (known.offer.namespace, known.offer.hashes) == (offer.namespace, offer.hashes):
                return known
            await self._end(known)
        if len(self._arrivals) >= MAX_ARRIVALS:
            raise TransferFault(MigrationFault.TARGET_BUSY, f"{MAX_ARRIVALS} transfers arrive here already")
        if (reason := self._engine.cannot_migrate()) is not None:
            raise TransferFault(MigrationFault.ENGINE, f"nothing can be moved here: {reason}")
        arrival = _Arrival(offer, await self._engine.open_sink(offer))
        self._arrivals[offer.id] = arrival
        return arrival

    async def _stop(self, arrival: _Arrival) -> None:
        """Ends the connection that receives it; the room stays."""
        task = arrival.task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _end(self, arrival: _Arrival) -> None:
        """Forgets it and gives back the room that was not used."""
        if arrival.timer is not None:
            arrival.timer.cancel()
        if self._arrivals.pop(arrival.offer.id, None) is None:
            return
        missing = arrival.sink.missing()
        await arrival.sink.close(missing[0] if missing else len(arrival.offer.hashes))

    async def _forget(self, offer_id: str) -> None:
        arrival = self._arrivals.get(offer_id)
        if arrival is not None:
            await self._stop(arrival)
            await self._end(arrival)

    def _set_timer(self, arrival: _Arrival, seconds: float) -> None:
        if arrival.timer is not None:
            arrival.timer.cancel()
        if arrival.offer.id in self._arrivals:
            loop = asyncio.get_running_loop()
            arrival.timer = loop.call_later(seconds, self._expire, arrival.offer.id)

    def _expire(self, offer_id: str) -> None:
        self._own(self._forget(offer_id))


def _check_page(frame: Frame, offer: Offer, *, inline: bool) -> None:
    layout = offer.namespace.layout
    if frame.type is not FrameType.PAGE:
        raise ConnectionBroken(f"{frame.type.name} among pages")
    expected = 4 * layout.parts + (layout.page_bytes if inline else 0)
    if frame.parts != layout.parts or frame.length != expected:
        raise ConnectionBroken(f"a page of {frame.length} bytes in {frame.parts} parts was not offered")
    if frame.page >= len(offer.hashes):
        raise ConnectionBroken(f"page {frame.page} of {len(offer.hashes)}")


async def _page(
    wire: FrameSocket, buffer: memoryview, count: int, *, inline: bool
) -> tuple[tuple[int, ...], list[memoryview]]:
    """Checksums and parts of a page whose header was read."""
    crcs = bytearray(4 * count)
    await wire.receive_into(memoryview(crcs))
    if inline:
        await wire.receive_into(buffer)
    size = len(buffer) // count
    parts = [buffer[at : at + size] for at in range(0, len(buffer), size)]
    return struct.unpack(f"<{count}I", crcs), parts


async def _store(
    sink: PageSink, index: int, parts: Sequence[memoryview], crcs: Sequence[int], taken: FrameSocket | None
) -> None:
    """Verifies and stores a page; tells the sender over ``taken`` that its slot is free."""
    if sum(len(part) for part in parts) < INLINE_CHECK_BYTES:
        found = [checksum(part) for part in parts]
    else:
        found = await asyncio.to_thread(lambda: [checksum(part) for part in parts])
    if found != list(crcs):
        raise TransferFault(
            MigrationFault.CHECKSUM, f"page {index} arrived with another checksum than it left"
        )
    await sink.write(index, [Part(data, crc) for data, crc in zip(parts, found, strict=True)])
    if taken is not None:
        await taken.send(FrameType.TAKEN, page=index)
