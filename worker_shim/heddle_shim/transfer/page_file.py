"""One page on disk or in shared memory: a header with length and checksum, then the bytes.

A page is written under a staging name and renamed when whole, so a reader sees all of it or nothing. The
checksum is for what a rename cannot promise: memory that went bad, a file that was cut.
"""

import os
import struct
import zlib
from typing import Final, NamedTuple, TypeAlias

HEADER: Final = struct.Struct("<8sQI4x")
"""Magic, bytes of the page, CRC-32 of them."""
MAGIC: Final = b"HEDDLE01"

PageBytes: TypeAlias = bytes | bytearray | memoryview


class Part(NamedTuple):
    """One part of a page with its checksum, which travels with it so that it is computed once."""

    data: PageBytes
    crc: int

    @classmethod
    def of(cls, data: PageBytes) -> "Part":
        return cls(data, checksum(data))


class PageBroken(Exception):
    """A page file whose header or checksum does not fit its bytes."""


def file_size(page_bytes: int) -> int:
    """Bytes of the file that holds a page of so many."""
    return HEADER.size + page_bytes


def checksum(data: PageBytes) -> int:
    """CRC-32; 2.5 GB/s with the interpreter's own zlib, which needs no package in the engine's process."""
    return zlib.crc32(data)


def write_page(fd: int, data: PageBytes, crc: int) -> None:
    """Writes header and bytes, whose checksum is ``crc``, at the start of ``fd``.

    Raises:
        OSError: no space is left, or the write failed; the file is then of no use.
    """
    view = memoryview(data).cast("B")
    parts: list[memoryview] = [memoryview(HEADER.pack(MAGIC, len(view), crc)), view]
    at = 0
    while parts:
        at += (written := os.pwritev(fd, parts, at))
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if written:
            parts[0] = parts[0][written:]


def read_page(fd: int) -> bytearray:
    """The bytes of a page.

    Raises:
        PageBroken: header or checksum do not fit.
    """
    size = os.fstat(fd).st_size - HEADER.size
    if size < 0:
        raise PageBroken("shorter than its header")
    data = bytearray(size)
    read_page_into(fd, data)
    return data


def read_page_into(fd: int, buffer: PageBytes) -> int:
    """Fills ``buffer``, which must have the length of the page; returns the page's checksum.

    Raises:
        PageBroken: header, length or checksum do not fit; the buffer may have been written to.
    """
    view = memoryview(buffer).cast("B")
    head = bytearray(HEADER.size)
    got = os.preadv(fd, [head, view], 0)
    while got < HEADER.size + len(view):
        if got < HEADER.size or not (more := os.preadv(fd, [view[got - HEADER.size :]], got)):
            raise PageBroken(f"{got} bytes where {HEADER.size + len(view)} were expected")
        got += more
    magic, length, crc = HEADER.unpack(head)
    if magic != MAGIC or length != len(view):
        raise PageBroken(f"a page of {length} bytes where {len(view)} were expected")
    if checksum(view) != crc:
        raise PageBroken("its checksum does not fit")
    return int(crc)
