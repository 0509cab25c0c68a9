"""KV pages in shared memory, between the engine's processes and the shim.

The shim creates the store; the HiCache class in each of the engine's scheduler processes attaches to it. A
page is one file below a directory of shared memory, so it outlives the process that wrote it:

    owner, attached   locks: who is there (held, not written)
    lock              the store's lock; holds the bytes promised so far
    pages/NAMESPACE/  HASH.PART, and namespace.json; NAMESPACE is the digest of model, weights and layout
    staging/          pages being written and space promised to transfers
    pins/             pages that eviction must spare, until a time

Invariants: pages, staging and promises together never pass the budget. A page is whole or not there: it is
renamed into place. What a dead process left in staging is swept, because its lock on the file is gone. The
number in ``lock`` is an upper bound of what lies there, and every eviction counts anew.

All calls block for at most the copy of one page; they are safe from several threads and processes.
"""

import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle_contracts.kv import KvNamespace

from heddle_shim.transfer.page_shelf import PageShelf
from heddle_shim.transfer.store_errors import StoreInUse, StoreMissing, StoreTooLarge
from heddle_shim.transfer.store_files import (
    entries,
    hold_lock,
    parent_locked,
    size_if_alive,
    unlink,
    write_whole,
)

EVICTION_SLACK: Final = 0.05
"""An eviction frees this share of the budget beyond what was asked for: it looks at every page, so it should
be rare.
"""
NAMESPACE_FILE: Final = "namespace.json"
PROMISED_SHARE: Final = 0.5
"""At most this share of the budget is promised to arriving transfers; the engine's own pages need the rest.
"""


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """What lies in a store, counted now. ``promised`` is set aside for transfers that are under way."""

    budget: int
    pages: int
    bytes: int
    promised: int
    pinned: int


@dataclass(slots=True)
class _Found:
    """One look at everything in the store."""

    pages: list[tuple[int, int, str]]
    """(last used in ns, bytes, path)"""
    total: int
    promised: int


class Promise:
    """Space set aside for pages that are to come. A sparse file stands for it, so it costs no memory and ends
    with the process that holds it.
    """

    def __init__(self, store: "PageStore", fd: int, path: str, size: int) -> None:
        self._store = store
        self._fd = fd
        self._path = path
        self.left = size
        """Bytes not yet used by pages."""

    def shrink(self, size: int) -> int:
        """Gives up to ``size`` bytes to a page; returns how many. The store's lock is held."""
        given = min(size, self.left)
        self.left -= given
        os.ftruncate(self._fd, self.left)
        return given

    def close(self) -> None:
        """Gives back what was not used. Safe to repeat."""
        if self._fd >= 0:
            self._store.end_promise(self._path, self.left)
            os.close(self._fd)
            self._fd = -1
            self.left = 0


class PageStore:
    """One store. ``create`` it in the shim, ``attach`` to it in the engine's processes."""

    def __init__(self, root: Path, budget: int, presence: int, *, owner: bool) -> None:
        self.root: Final = root
        self.budget: Final = budget
        self._presence = presence
        self._owner = owner
        self._threads = threading.Lock()
        self._lock_fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._serial = 0

    @classmethod
    def create(cls, root: Path, budget: int) -> "PageStore":
        """Makes the store, or takes over the one that an earlier shim left; its pages are kept.

        Raises:
            StoreInUse: another shim owns it.
            StoreTooLarge: the file system has not the room for ``budget`` bytes.
        """
        with parent_locked(root.parent):
            for name in ("pages", "staging", "pins"):
                (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            presence = hold_lock(root / "owner", fcntl.LOCK_EX)
        if presence is None:
            raise StoreInUse(f"{root}: another shim owns this page store; give this one another directory")
        store = cls(root, budget, presence, owner=True)
        with store.locked():
            held = store._look().total
        free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize + held
        if budget > free:
            store.close()
            raise StoreTooLarge(
                f"{root}: a budget of {budget} bytes, but the file system has {free}; lower it, or give the"
                " container more shared memory (docker: --shm-size)"
            )
        write_whole(root / "budget", str(budget))
        with store.locked():
            store.make_room(0)
        return store

    @classmethod
    def attach(cls, root: Path) -> "PageStore":
        """The store that a shim made.

        Raises:
            StoreMissing: there is none.
        """
        try:
            budget = int((root / "budget").read_text())
        except (OSError, ValueError) as error:
            raise StoreMissing(f"{root}: no page store; start the shim first ({error})") from error
        presence = hold_lock(root / "attached", fcntl.LOCK_SH)
        if presence is None:
            raise StoreMissing(f"{root}: this page store is being removed")
        return cls(root, budget, presence, owner=False)

    def close(self, *, remove: bool = False) -> None:
        """Ends this process's part. The owner removes everything with ``remove``. Safe to repeat."""
        if self._presence < 0:
            return
        if remove and self._owner:
            shutil.rmtree(self.root, ignore_errors=True)
        os.close(self._lock_fd)
        os.close(self._presence)
        self._presence = self._lock_fd = -1

    def shelf(self, namespace: KvNamespace) -> PageShelf:
        """Pages of one model, weight version and layout."""
        directory = self.root / "pages" / namespace.digest
        if not (directory / NAMESPACE_FILE).exists():
            directory.mkdir(mode=0o700, exist_ok=True)
            write_whole(directory / NAMESPACE_FILE, namespace.model_dump_json())
        return PageShelf(self, namespace, directory)

    def namespaces(self) -> list[KvNamespace]:
        """Whose pages lie here; an engine adds its own when it starts."""
        found = []
        for path in sorted((self.root / "pages").glob(f"*/{NAMESPACE_FILE}")):
            found.append(KvNamespace.model_validate_json(path.read_bytes()))
        return found

    def drop(self, namespace: KvNamespace) -> int:
        """Removes all pages of a namespace that are there now; returns how many. Its shelves stay good, in
        whatever process they are.
        """
        directory = self.root / "pages" / namespace.digest
        with self.locked():
            pages = [
                one.path for one in entries(directory) if one.name[0] != "." and one.name != NAMESPACE_FILE
            ]
            count = sum(map(unlink, pages))
            self.make_room(0)
        return count

    # ------------------------------------------------------------------------------------------ weights

    @property
    def weight_version(self) -> str | None:
        """What the shim last said the engine's weights are; None before it has."""
        try:
            return (self.root / "weight_version").read_text()
        except FileNotFoundError:
            return None

    def set_weight_version(self, version: str) -> None:
        """Told by the shim. The engine's side asks before each batch, and so never mixes versions."""
        write_whole(self.root / "weight_version", version)

    # ------------------------------------------------------------------------------------------ pins

    def pin(self, name: str, namespace: KvNamespace, hashes: Sequence[str], seconds: float) -> None:
        """Eviction spares these pages for so long. The same name again replaces the pin."""
        path = self._pin_path(name)
        staged = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        staged.write_text(json.dumps({"directory": namespace.digest, "hashes": list(hashes)}))
        until = time.time_ns() + int(seconds * 1e9)
        os.utime(staged, ns=(until, until))
        staged.replace(path)

    def unpin(self, name: str) -> None:
        """Ends a pin; none of that name is no error."""
        unlink(str(self._pin_path(name)))

    def _pin_path(self, name: str) -> Path:
        return self.root / "pins" / hashlib.sha256(name.encode()).hexdigest()[:32]

    def _pinned(self) -> set[str]:
        """Pinned pages as DIRECTORY/HASH; forgets the pins whose time is over."""
        pinned: set[str] = set()
        now = time.time_ns()
        for entry in entries(self.root / "pins"):
            try:
                if entry.stat().st_mtime_ns < now and not entry.name.startswith("."):
                    unlink(entry.path)
                    continue
                said = json.loads(Path(entry.path).read_bytes())
            except (FileNotFoundError, ValueError):
                continue  # Unpinned, or being written.
            pinned.update(f"{said['directory']}/{page}" for page in said["hashes"])
        return pinned

    # ------------------------------------------------------------------------------------------ space

    def promise(self, size: int) -> Promise | None:
        """Sets ``size`` bytes aside for arriving pages; None where the store cannot promise that much."""
        with self.locked():
            found = self._look()
            if found.promised + size > self.budget * PROMISED_SHARE:
                return None
            staged = self.stage(size, kind="promise")
        return None if staged is None else Promise(self, *staged, size)

    def end_promise(self, path: str, left: int) -> None:
        """Used by ``Promise``."""
        with self.locked():
            if unlink(path):
                self._set_claimed(self._claimed() - left)

    def stage(
        self, size: int, *, kind: str = "page", promise: Promise | None = None
    ) -> tuple[int, str] | None:
        """A locked file of ``size`` bytes in staging, as (descriptor, path); None without room. The store's
        lock is held. What ``promise`` has left is used first.
        """
        given = promise.shrink(size) if promise is not None else 0
        claimed = self._claimed() - given
        if claimed + size > self.budget:
            claimed = self.make_room(size)
            if claimed + size > self.budget:
                return None
        self._serial += 1
        path = f"{self.root}/staging/{kind}.{os.getpid()}.{id(self)}.{self._serial}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.ftruncate(fd, size)
        self._set_claimed(claimed + size)
        return fd, path

    def make_room(self, size: int) -> int:
        """Evicts until ``size`` bytes fit, if that can be; returns what then lies in the store. The lock is
        held.

        Least recently used first; pinned pages are spared.
        """
        found = self._look()
        total = found.total
        if total + size > self.budget:
            goal = self.budget - size - int(self.budget * EVICTION_SLACK)
            pinned = self._pinned()
            for _, length, path in sorted(found.pages):
                if total <= goal:
                    break
                directory, name = path.rsplit("/", 2)[1:]
                if f"{directory}/{name.partition('.')[0]}" not in pinned and unlink(path):
                    total -= length
        self._set_claimed(total)
        return total

    def usage(self) -> StoreUsage:
        """Counts everything now."""
        with self.locked():
            found = self._look()
            pinned = self._pinned()
        held = sum(length for _, length, _ in found.pages)
        return StoreUsage(self.budget, len(found.pages), held, found.promised, len(pinned))

    def audit(self) -> list[str]:
        """Broken invariants, empty when all is well."""
        with self.locked():
            claimed, found = self._claimed(), self._look()
        faults = []
        if claimed < found.total:
            faults.append(f"{found.total} bytes lie in the store, {claimed} are claimed")
        if found.total > self.budget:
            faults.append(f"{found.total} bytes lie in a store of {self.budget}")
        return faults

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else, in any process, changes what is claimed."""
        with self._threads:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _claimed(self) -> int:
        return int(os.pread(self._lock_fd, 32, 0) or b"0")

    def _set_claimed(self, size: int) -> None:
        os.pwrite(self._lock_fd, b"%-32d" % max(0, size), 0)

    def _look(self) -> _Found:
        """Counts all files; sweeps what dead processes left in staging. The lock is held."""
        pages: list[tuple[int, int, str]] = []
        total = promised = 0
        for directory in entries(self.root / "pages"):
            for entry in entries(Path(directory.path)):
                if entry.name == NAMESPACE_FILE or entry.name.startswith("."):
                    continue
                try:
                    facts = entry.stat()
                except FileNotFoundError:
                    continue
                pages.append((facts.st_mtime_ns, facts.st_size, entry.path))
                total += facts.st_size
        for entry in entries(self.root / "staging"):
            size = size_if_alive(entry.path)
            total += size
            promised += size if entry.name.startswith("promise.") else 0
        return _Found(pages, total, promised)


def remove_abandoned(parent: Path, prefix: str) -> list[Path]:
    """Removes stores below ``parent`` that no shim and no engine holds any more; returns which."""
    removed = []
    with parent_locked(parent):
        for root in sorted(parent.glob(f"{prefix}*")):
            if not (root / "budget").is_file():
                continue
            owner = hold_lock(root / "owner", fcntl.LOCK_EX)
            attached = hold_lock(root / "attached", fcntl.LOCK_EX) if owner is not None else None
            if owner is not None and attached is not None:
                shutil.rmtree(root, ignore_errors=True)
                removed.append(root)
            for fd in (owner, attached):
                if fd is not None:
                    os.close(fd)
    return removed
