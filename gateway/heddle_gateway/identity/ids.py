"""Trajectory ids as callers write them, and the one form in which Heddle keeps them.

Invariants: a kept id is printable ASCII of 1 to 256 characters, safe in a header, a URL path and a log
line. Characters outside the plain set are percent-encoded, so an id from a URL path and the same id from a
header meet.
"""

import re
from hashlib import blake2b
from typing import Final
from urllib.parse import quote

from heddle_gateway.asgi.request_body import ClientError

MAX_LENGTH: Final = 256
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/@+=~-]{1,256}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_STRAY_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SAFE: Final = "._:/@+=~-%"


class InvalidId(ClientError):
    """An id that cannot be kept: control characters, or too long. ``param`` names what carried it."""

    def __init__(self, carrier: str, reason: str) -> None:
        super().__init__(400, f"{carrier}: {reason}", param=carrier)


def asked_id(text: str) -> str:
    """The form that was kept of an id that somebody asks for in their own words. What cannot be an id is
    answered as it is: nothing is known by it.
    """
    try:
        return kept_id(text, "id") or text
    except InvalidId:
        return text


def kept_id(text: str, carrier: str) -> str | None:
    """The form kept of ``text``; None for an empty one. Raises InvalidId.

    ``text`` may be UTF-8 read as Latin-1, as ASGI hands out header values.
    """
    if _PLAIN.fullmatch(text):
        return text
    text = text.strip()
    if not text:
        return None
    if _CONTROL.search(text):
        raise InvalidId(carrier, "control characters are not allowed in an id")
    if not text.isascii():
        text = _as_utf8(text)
    encoded = quote(_STRAY_PERCENT.sub("%25", text), safe=_SAFE, errors="surrogatepass")
    if len(encoded) > MAX_LENGTH:
        raise InvalidId(carrier, f"an id has at most {MAX_LENGTH} characters")
    return encoded


def joined_id(root: str, part: str) -> str:
    """The id of ``part`` inside ``root``, both kept ids; where that is too long the part gives way to its
    hash.
    """
    whole = f"{root}/{part}"
    if len(whole) <= MAX_LENGTH:
        return whole
    digest = blake2b(whole.encode(), digest_size=16).hexdigest()
    return f"{root[: MAX_LENGTH - len(digest) - 1]}/{digest}"


def _as_utf8(text: str) -> str:
    try:
        return text.encode("latin-1").decode("utf-8")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return text
