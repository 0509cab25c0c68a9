"""Which Host headers are accepted.

Paths are taken from ``scope["path"]`` alone, so a crafted Host (``localhost/#@x``) cannot change which route
is authorised (CVE-2026-49468 of another gateway); it is refused all the same, since links may be built from
it.
"""

import re
from collections.abc import Sequence
from typing import Final

VALID_HOST: Final = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]{2,64}\])(?::[0-9]{1,5})?\Z")
# Hosts already looked at; a handful in practice, bounded against made-up ones.
MAX_REMEMBERED: Final = 256


class HostRule:
    """``allowed``: host names without port; empty allows every well-formed one."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed = frozenset(host.lower() for host in allowed)
        self._good: set[str] = set()

    def accepts(self, host: str) -> bool:
        if host in self._good:
            return True
        if not VALID_HOST.match(host):
            return False
        name = re.sub(r":[0-9]+\Z", "", host).lower()
        if self._allowed and name not in self._allowed:
            return False
        if len(self._good) < MAX_REMEMBERED:
            self._good.add(host)
        return True
