"""Header lines of ours, and what a worker's headers say to the gateway itself.

Which headers cross is decided in one place, router_rs/crates/wire/src/headers.rs.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

LIMITS: Final = (b"anthropic-ratelimit-", b"x-ratelimit-")


@lru_cache(maxsize=1024)
def worker_line(name: str) -> bytes:
    """Which worker answered. An operator's name may be anything; what no header can hold becomes a "?"."""
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    return b"x-heddle-worker: %b\r\n" % text.encode("latin-1", "replace")


def limit_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A worker's header lines about limits: Claude Code waits by them."""
    return b"".join(b"%b: %b\r\n" % pair for pair in headers if pair[0].startswith(LIMITS))


def override_lines(rid: str, priority: int | None) -> bytes:
    """Request id and priority where a body has no field for them (SGLang, ``request_headers.py``)."""
    lines = b"x-override-rid: %b\r\n" % rid.encode("ascii")
    return lines if priority is None else lines + b"x-override-priority: %d\r\n" % priority


def retry_after_of(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Seconds of a worker's ``retry-after``; 0 without one, or where it is a date."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit():
            return float(value[:6])
    return 0.0
