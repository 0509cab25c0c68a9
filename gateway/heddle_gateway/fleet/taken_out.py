"""Which workers somebody took out, so that their shims, which go on reporting, do not bring them back.

A shim registers again whenever its worker is not known, as it has to after a gateway's restart. One that was
drained by hand is told instead that it was (410), and stays away until the worker is known again: added by
hand, or registered by another shim, one that was started since.
"""

from typing import Final

MOST: Final = 4096
"""URLs remembered; the oldest are forgotten. A shim asks each second, and needs to hear it once."""


class TakenOut:
    """URLs in canonical form."""

    def __init__(self) -> None:
        self._urls: dict[str, None] = {}

    def note(self, url: str) -> None:
        self._urls.pop(url, None)
        self._urls[url] = None
        while len(self._urls) > MOST:
            del self._urls[next(iter(self._urls))]

    def forget(self, url: str) -> None:
        self._urls.pop(url, None)

    def __contains__(self, url: str) -> bool:
        return url in self._urls
