"""Pages written straight into the receiver's memory by an RDMA engine, beside the TCP connection.

The connection still carries offers, checksums and ends; only the bytes of a page go another way. Each page
has its turn in one of two slots of memory that the receiver registered; the receiver says when a slot is free
again. A slot's memory lives as long as the process, so a write that comes late can spoil a page under way,
which the checksum finds, and nothing else.
"""

import ctypes
import mmap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from heddle_shim.transfer.page_file import PageBytes

SLOTS: Final = 2


class TransportMissing(Exception):
    """An extra transport that is not installed or has no device here; the message says what to do."""


class Memory:
    """Memory at a fixed address."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self.view: Final = memoryview(self._map)
        self.address: Final = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.size: Final = size

    def fill(self, parts: Sequence[PageBytes]) -> None:
        """Copies parts one behind the other."""
        at = 0
        for part in parts:
            data = memoryview(part).cast("B")
            self.view[at : at + len(data)] = data
            at += len(data)


class Writer(Protocol):
    """The sender's way into one receiver's slots."""

    async def write(self, slot: int, parts: Sequence[PageBytes]) -> None:
        """Puts a page's parts into a slot.

        Raises:
            OSError: the engine could not; the connection is then taken for broken.
        """

    def close(self) -> None: ...


class Mover(Protocol):
    """One engine in this process."""

    @property
    def name(self) -> str:
        """Key of ``Handshake.transports``."""

    def note(self, slots: Sequence[Memory]) -> dict[str, Any]:
        """What a sender must know to write into these slots, as JSON."""

    def register(self, memory: Memory) -> None:
        """Makes memory known to the engine, for good.

        Raises:
            OSError: the engine refuses.
        """

    def writer(self, note: Mapping[str, Any], size: int) -> Writer:
        """Raises OSError where the note leads nowhere."""


class SlotPool:
    """Registered memory of one engine, used again and again."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._free: defaultdict[int, list[list[Memory]]] = defaultdict(list)

    def take(self, size: int) -> list[Memory]:
        """``SLOTS`` pieces of so many bytes."""
        if self._free[size]:
            return self._free[size].pop()
        made = [Memory(size) for _ in range(SLOTS)]
        for memory in made:
            self._mover.register(memory)
        return made

    def give_back(self, slots: list[Memory]) -> None:
        self._free[slots[0].size].append(slots)
