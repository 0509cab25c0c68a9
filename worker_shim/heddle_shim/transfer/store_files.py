"""Files and locks that several processes share."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def hold_lock(path: Path, mode: int) -> int | None:
    """A lock on a file, held while the descriptor is open; None where others forbid it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@contextmanager
def parent_locked(parent: Path) -> Iterator[None]:
    """No store below ``parent`` is made or removed by another process of this user meanwhile."""
    parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(parent / f".heddle-stores-{os.getuid()}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def size_if_alive(path: str) -> int:
    """Size of a file in staging; 0, and the file is gone, if its writer died."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.fstat(fd).st_size
    else:
        unlink(path)
        return 0
    finally:
        os.close(fd)


def entries(directory: Path) -> list["os.DirEntry[str]"]:
    """Files of a directory; none where it does not exist."""
    try:
        with os.scandir(directory) as found:
            return list(found)
    except FileNotFoundError:
        return []


def write_whole(path: Path, text: str) -> None:
    """A reader sees the old text or the new one."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    staged.write_text(text)
    staged.replace(path)


def unlink(path: str) -> bool:
    """Whether there was a file to remove."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
