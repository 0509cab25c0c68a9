"""Header lines of ours, and what a worker's headers say to the gateway itself.

Which headers cross is decided in one place, router_rs/crates/wire/src/headers.rs.
"""

from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=1024)
def worker_line(name: str) -> bytes:
    """Which worker answered. An operator's name may be anything; what no header can hold becomes a "?"."""
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    return b"x-heddle-worker: %b\r\n" % text.encode("latin-1", "replace")


def retry_after_of(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Seconds of a worker's ``retry-after``; 0 without one, or where it is a date."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit():
            return float(value[:6])
    return 0.0
