"""Every answer carries ``x-request-id``: the caller's where it is harmless, else one of ours.

Invariant: nothing from a client is reflected unless the pattern admits it (no control characters, bounded).
"""

import re
from random import Random
from typing import Final

_random = Random()
VALID_ID: Final = re.compile(r"[A-Za-z0-9._:/-]{1,256}\Z")


def request_id(wanted: str | None) -> bytes:
    """``wanted``: the client's ``x-request-id``, if it sent one."""
    if wanted is not None and VALID_ID.match(wanted):
        return wanted.encode("ascii")
    # To be told apart, not to be secret: no system call for it.
    return b"%032x" % _random.getrandbits(128)
