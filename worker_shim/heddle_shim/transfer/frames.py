"""The wire format of the TCP transport, over non-blocking sockets.

A frame is a header of 16 bytes (type, parts, page, bytes of body) and its body. Pages are received straight
into the buffer they are stored from. Numbers are little-endian.

    sender   OFFER   JSON and the raw page hashes      receiver   ACCEPT  a bit a page: is it wanted?
             PAGE    a CRC-32 a part, the parts                   REFUSE  fault and detail; at any time
             END     page: how many of the prefix there are       DONE    page: how many are whole here
             FORGET  id of an offer; instead of OFFER     TAKEN   a page is stored, its slot is free (mover)

Before the first frame the sender shows that it knows the receiver's key, if there is one: it answers random
bytes with their HMAC. Pages themselves are neither hidden nor signed: shims belong in one trusted network.
"""

import asyncio
import contextlib
import hmac
import json
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from heddle_contracts.kv import KvNamespace, MigrationFault
from pydantic import ValidationError

from heddle_shim.transfer.engine_side import Offer
from heddle_shim.transfer.faults import TransferFault
from heddle_shim.transfer.page_file import PageBytes

PREAMBLE: Final = b"HEDDLEKV\x01\x00\x00\x00"
"""Sent first by the sender: protocol and its version."""
NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32
HEADER: Final = struct.Struct("<BxHIQ")
HASH_BYTES: Final = 32
MAX_PAGES: Final = 1_000_000
MAX_TEXT: Final = 64 * 1024
"""Most bytes of the JSON in a frame."""
SOCKET_BUFFER: Final = 4 << 20
JOINED_BYTES: Final = 64 * 1024
"""Frames up to this size are copied together and sent at once."""
INLINE: Final = "tcp"
"""The pages' bytes go over the connection itself."""


class FrameType(IntEnum):
    OFFER = 1
    ACCEPT = 2
    REFUSE = 3
    PAGE = 4
    END = 5
    DONE = 6
    FORGET = 7
    TAKEN = 8


class Frame(NamedTuple):
    """A header that was read; the body follows on the wire."""

    type: FrameType
    parts: int
    page: int
    length: int


class ConnectionBroken(ConnectionError):
    """The other side went away, or speaks something else."""


class FrameSocket:
    """Frames over one connection. One task sends and one receives at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, kind: FrameType, *bodies: PageBytes, parts: int = 0, page: int = 0) -> None:
        """Sends a frame whose body is all of ``bodies``."""
        length = sum(memoryview(body).nbytes for body in bodies)
        header = HEADER.pack(kind, parts, page, length)
        if length <= JOINED_BYTES:
            await self.send_raw(b"".join((header, *bodies)))
            return
        await self.send_raw(header)
        for body in bodies:
            await self.send_raw(body)

    async def send_raw(self, data: PageBytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    async def receive(self) -> Frame:
        """The next header.

        Raises:
            ConnectionBroken: the connection ended, or this is no frame.
        """
        header = bytearray(HEADER.size)
        await self.receive_into(memoryview(header))
        kind, parts, page, length = HEADER.unpack(header)
        try:
            return Frame(FrameType(kind), parts, page, length)
        except ValueError as error:
            raise ConnectionBroken(f"frame type {kind} is unknown") from error

    async def receive_into(self, view: memoryview) -> None:
        """Fills ``view``."""
        while view:
            got = await self._loop.sock_recv_into(self._sock, view)
            if not got:
                raise ConnectionBroken("the other side closed the connection")
            view = view[got:]

    async def body(self, frame: Frame, limit: int) -> bytearray:
        """The body of a small frame."""
        if frame.length > limit:
            raise ConnectionBroken(f"a {frame.type.name} frame of {frame.length} bytes; {limit} are allowed")
        data = bytearray(frame.length)
        await self.receive_into(memoryview(data))
        return data

    async def drain(self, seconds: float) -> None:
        """Ends sending and reads until the other side has ended too, so that it gets our last frame."""
        rest = bytearray(1 << 16)
        with contextlib.suppress(OSError, TimeoutError):
            self._sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(seconds):
                while (await self._loop.sock_recv_into(self._sock, rest)) > 0:
                    pass

    def close(self) -> None:
        self._sock.close()


def proof_of(key: str | None, nonce: bytes | bytearray) -> bytes:
    """What the sender answers to the receiver's nonce; without a key the empty one is known to all."""
    return hmac.digest((key or "").encode(), nonce, "sha256")


def pack_offer(offer: Offer, by: str) -> bytes:
    """Body of an OFFER frame. ``by``: the transport that carries the pages' bytes."""
    facts = {
        "id": offer.id,
        "trajectory": offer.trajectory,
        "namespace": offer.namespace.model_dump(mode="json"),
        "deadline_s": offer.deadline_s,
        "pages": len(offer.hashes),
        "by": by,
    }
    text = json.dumps(facts).encode()
    return struct.pack("<I", len(text)) + text + bytes.fromhex("".join(offer.hashes))


def unpack_offer(body: bytearray) -> tuple[Offer, str]:
    """The offer in a body, and the transport that carries the pages' bytes.

    Raises:
        ConnectionBroken: it is none.
    """
    try:
        (length,) = struct.unpack_from("<I", body)
        facts = json.loads(body[4 : 4 + length])
        names = bytes(body[4 + length :]).hex()
        if len(names) != facts["pages"] * HASH_BYTES * 2:
            raise ValueError(f"{len(names) // 64} hashes for {facts['pages']} pages")
        hashes = tuple(names[at : at + 64] for at in range(0, len(names), 64))
        namespace = KvNamespace.model_validate(facts["namespace"])
        deadline = min(3600.0, max(0.0, float(facts["deadline_s"])))
        offer = Offer(str(facts["id"]), str(facts["trajectory"]), namespace, hashes, deadline)
        return offer, str(facts["by"])
    except (ValueError, KeyError, TypeError, struct.error, ValidationError) as error:
        raise ConnectionBroken(f"an OFFER that cannot be read: {error}") from error


def pack_missing(missing: Sequence[int], pages: int) -> bytes:
    """Start of an ACCEPT frame's body: bit ``index`` is set where the page is wanted. The rest is a mover's
    note in JSON.
    """
    bits = bytearray((pages + 7) // 8)
    for index in missing:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)


def unpack_missing(bits: bytes | bytearray, pages: int) -> list[int]:
    """Indices of the wanted pages, rising."""
    if len(bits) < (pages + 7) // 8:
        raise ConnectionBroken(f"an ACCEPT of {len(bits)} bytes for {pages} pages")
    return [index for index in range(pages) if bits[index >> 3] >> (index & 7) & 1]


def unpack_note(body: bytes | bytearray, pages: int) -> dict[str, Any]:
    """The mover's note of an ACCEPT."""
    try:
        note = json.loads(body[(pages + 7) // 8 :])
    except ValueError as error:
        raise ConnectionBroken(f"an ACCEPT whose note cannot be read: {error}") from error
    if not isinstance(note, dict):
        raise ConnectionBroken("an ACCEPT whose note is no object")
    return note


def pack_fault(fault: TransferFault) -> bytes:
    """Body of a REFUSE frame."""
    return json.dumps({"fault": fault.fault, "detail": fault.detail[:2000]}).encode()


def unpack_fault(body: bytes | bytearray) -> TransferFault:
    """What a REFUSE frame says; a fault this side does not know is a broken connection."""
    try:
        said: dict[str, Any] = json.loads(body)
        return TransferFault(MigrationFault(said["fault"]), str(said["detail"]))
    except (ValueError, KeyError, TypeError) as error:
        return TransferFault(MigrationFault.BROKEN, f"a refusal that cannot be read: {error}")
