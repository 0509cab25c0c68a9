"""Messages between two gateways as bytes: a head in JSON, and what is no JSON behind it.

One frame: the length of the rest (4 bytes, big-endian), the length of the head (4), the head, the blob. The
head is an object; ``"_"`` in it is the kind.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

MAX_FRAME: Final = 512 * 1024 * 1024
"""Above what a largest request body can make of itself."""
MAX_HELLO: Final = 16 * 1024
"""From somebody who is not known yet."""
_LENGTHS: Final = struct.Struct(">II")
_SIZE: Final = 4


class Frame(NamedTuple):
    """One message. ``head``: without its kind."""

    kind: str
    head: dict[str, Any]
    blob: bytes


class BadFrame(ValueError):
    """Bytes that no gateway of this release sends."""


def written(kind: str, blob: bytes = b"", /, **head: Any) -> bytes:
    """A frame as bytes. ASCII: ids may hold lone surrogates, which UTF-8 has no bytes for."""
    head["_"] = kind
    text = json.dumps(head, separators=(",", ":")).encode("ascii")
    return b"%b%b%b" % (_LENGTHS.pack(_SIZE + len(text) + len(blob), len(text)), text, blob)


class FrameReader:
    """Takes bytes as they come, gives whole frames. ``limit``: longest frame."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._data = bytearray()
        self.limit = limit

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Raises BadFrame; the connection is of no use then."""
        self._data += data
        while len(self._data) >= _LENGTHS.size:
            length, head_length = _LENGTHS.unpack_from(self._data)
            if length > self.limit or head_length + _SIZE > length:
                raise BadFrame(f"a frame of {length} bytes with a head of {head_length}")
            end = _SIZE + length
            if len(self._data) < end:
                return
            start = _LENGTHS.size + head_length
            text, blob = bytes(self._data[_LENGTHS.size : start]), bytes(self._data[start:end])
            del self._data[:end]
            yield _frame(text, blob)


def _frame(text: bytes, blob: bytes) -> Frame:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a head that is no JSON: {error}") from error
    kind = head.pop("_", None) if isinstance(head, dict) else None
    if not isinstance(kind, str):
        raise BadFrame("a head that is no object, or without its kind")
    return Frame(kind, head, blob)
