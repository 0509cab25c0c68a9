"""Where the events of a ``text/event-stream`` end (WHATWG HTML, 9.2.6), without reading what they say."""

from typing import Final

# One byte less than the longest blank line behind an event.
_SEAM: Final = 3


class EventCutter:
    """Cuts a stream behind its events as it comes, in time proportional to its length, however long an event
    is.
    """

    __slots__ = ("_held", "_seam")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._seam = b""
        """The last bytes of what is held: a blank line may begin there."""

    def feed(self, data: bytes) -> bytes:
        """The events that ``data`` completes, as bytes; what follows them is held."""
        if not self._held:
            end = end_of_last_event(data)
            if end == len(data):
                return data
            whole, rest = data[:end], data[end:]
        else:
            seam = self._seam
            end = end_of_last_event(seam + data) - len(seam)
            if end > 0:
                self._held.append(data[:end])
                whole, rest = b"".join(self._held), data[end:]
                self._held.clear()
            else:
                whole, rest = b"", data
        if rest:
            self._seam = ((self._seam if self._held else b"") + rest)[-_SEAM:]
            self._held.append(rest)
        return whole

    def rest(self) -> bytes:
        """What is held, at the stream's end."""
        return b"".join(self._held)


def end_of_last_event(data: bytes) -> int:
    """Offset behind the last complete event in ``data``; 0 when none is complete.

    Line ends may be LF, CRLF or CR. Only whole events go to a client, so that an error event can follow any
    of them when the worker is lost.
    """
    if data.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
        return len(data)
    end = 0
    for blank in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        at = data.rfind(blank)
        if at >= 0:
            end = max(end, at + len(blank))
    return end
