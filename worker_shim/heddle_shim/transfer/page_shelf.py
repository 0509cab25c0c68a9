"""The pages of one model, weight version and layout in a page store."""

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle_contracts.kv import KvNamespace

from heddle_shim.transfer.page_file import (
    PageBroken,
    PageBytes,
    Part,
    checksum,
    file_size,
    read_page,
    read_page_into,
    write_page,
)

if TYPE_CHECKING:
    from heddle_shim.transfer.page_store import PageStore, Promise


class PageShelf:
    """Pages are named by hash and part: what one TP rank holds of a page (``KvLayout.part_of``).

    A hash names its tokens and all before them, so a page that is there is never written again.
    """

    def __init__(self, store: "PageStore", namespace: KvNamespace, directory: Path) -> None:
        self.namespace: Final = namespace
        self._store = store
        self._directory = str(directory)

    def put(
        self,
        page_hash: str,
        part: int,
        data: PageBytes,
        promise: "Promise | None" = None,
        crc: int | None = None,
    ) -> bool:
        """Stores one part of a page; False, and nothing stored, without room. Space of ``promise`` is
        used first. ``crc``: the part's checksum, where it is known.
        """
        path = self._path(page_hash, part)
        if os.path.exists(path):
            return True
        with self._store.locked():
            staged = self._store.stage(file_size(memoryview(data).nbytes), promise=promise)
        if staged is None:
            return False
        fd, staging = staged
        try:
            write_page(fd, data, checksum(data) if crc is None else crc)
            # The kernel's own time stamps are too coarse to order pages that are written together.
            now = time.time_ns()
            os.utime(fd, ns=(now, now))
            os.rename(staging, path)
        except OSError:
            # Shared memory that others filled. The claim is too high until the next eviction counts anew.
            os.unlink(staging)
            return False
        finally:
            os.close(fd)
        return True

    def get(self, page_hash: str, part: int) -> bytearray | None:
        """One part of a page; None if it is not there. A broken page is removed and not there."""
        fd = self._open(page_hash, part)
        if fd is None:
            return None
        try:
            return read_page(fd)
        except PageBroken:
            self._remove(page_hash, part)
            return None
        finally:
            os.close(fd)

    def read_into(self, page_hash: str, part: int, buffer: PageBytes) -> bool:
        """Fills ``buffer``, whose length must be the page's; False if the page is not there, is broken (it is
        removed) or has another length. The buffer may then have been written to.
        """
        return self.read_part(page_hash, part, buffer) is not None

    def read_part(self, page_hash: str, part: int, buffer: PageBytes) -> Part | None:
        """As ``read_into``; returns the buffer with its checksum."""
        fd = self._open(page_hash, part)
        if fd is None:
            return None
        try:
            return Part(buffer, read_page_into(fd, buffer))
        except PageBroken:
            self._remove(page_hash, part)
            return None
        finally:
            os.close(fd)

    def has(self, page_hash: str, part: int) -> bool:
        """Whether one part of a page is there."""
        return os.path.exists(self._path(page_hash, part))

    def prefix(self, hashes: Iterable[str], parts: Sequence[int]) -> int:
        """How many pages from the first on are there in all of these parts, without a hole."""
        count = 0
        for page_hash in hashes:
            if not all(self.has(page_hash, part) for part in parts):
                break
            count += 1
        return count

    def touch(self, hashes: Sequence[str], parts: Sequence[int]) -> None:
        """Marks a prefix as used now, its end as a little older: eviction then takes prefixes from the end,
        where the loss is smallest.
        """
        now = time.time_ns()
        for index, page_hash in enumerate(hashes):
            for part in parts:
                try:
                    os.utime(self._path(page_hash, part), ns=(now - index, now - index))
                except FileNotFoundError:
                    continue

    def _remove(self, page_hash: str, part: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(page_hash, part))

    def _open(self, page_hash: str, part: int) -> int | None:
        try:
            return os.open(self._path(page_hash, part), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    def _path(self, page_hash: str, part: int) -> str:
        return f"{self._directory}/{page_hash}.{part}"
