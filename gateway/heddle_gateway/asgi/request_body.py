"""The request's body as plain bytes: collected, bounded, decoded.

Invariants: neither the received nor the decoded body grows beyond the limit; what comes out is what the
client's JSON writer wrote. Codex compresses with zstd, some SDKs with gzip; the scan and the worker see
neither.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import zstandard

NextPart = Callable[[], Awaitable[tuple[bytes, bool]]]
"""What has arrived since the last call, and whether more will come. Raises ClientLeft."""

DEFAULT_LIMIT: Final = 256 * 1024 * 1024
"""Bytes. Images travel as base64 in the body; smaller defaults of other servers reject them."""

# Above this many received bytes decoding would hold the event loop for longer than other requests should
# wait.
_THREAD_ABOVE: Final = 256 * 1024
# A few KiB may unfold to as much as the limit allows: above this it is begun anew, beside the loop.
_THREAD_ABOVE_DECODED: Final = 4 * 1024 * 1024
# zstd has no bound on what a call puts out. Its best case is a 128 KiB block from 4 bytes, so 1 KiB gives at
# most 32 MiB before the limit is looked at again.
_ZSTD_PIECE: Final = 1024
# zlib copies what lies behind a member's end.
_ZLIB_PIECE: Final = 64 * 1024
# A member or frame may be ten bytes, and takes a decoder of its own all the same.
_MAX_MEMBERS: Final = 1024


class ClientError(Exception):
    """A request that this gateway refuses by itself. ``param``: the header or body field at fault. ``code``:
    OpenAI's word for the case.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code


class ClientLeft(Exception):
    """The client closed the connection before its body was whole. There is nobody to answer."""


async def read_body(next_part: NextPart, headers: Mapping[str, str], limit: int = DEFAULT_LIMIT) -> bytes:
    """``headers``: lower-case names.

    Raises ClientError (400 damaged coding, 413 larger than ``limit`` bytes before or after decoding, 415
    unknown coding) and ClientLeft.
    """
    coding_header = headers.get("content-encoding")
    codings = _codings(coding_header) if coding_header else ()
    declared = headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    body, more = await next_part()
    if more:
        body = await _collect(body, next_part, limit)
    elif len(body) > limit:
        raise _too_large(limit)
    for coding in reversed(codings):
        body = await _decoded(body, _DECODERS[coding], limit)
    return body


async def _decoded(body: bytes, decode: Callable[[bytes, int], bytes], limit: int) -> bytes:
    if len(body) <= _THREAD_ABOVE:
        try:
            return decode(body, min(limit, _THREAD_ABOVE_DECODED))
        except ClientError as error:
            if error.status != 413 or limit <= _THREAD_ABOVE_DECODED:
                raise
    return await asyncio.to_thread(decode, body, limit)


async def _collect(first: bytes, next_part: NextPart, limit: int) -> bytes:
    parts = [first]
    size = len(first)
    more = True
    while more:
        if size > limit:
            raise _too_large(limit)
        part, more = await next_part()
        size += len(part)
        parts.append(part)
    if size > limit:
        raise _too_large(limit)
    return b"".join(parts)


def _codings(header: str) -> list[str]:
    codings = [
        coding for part in header.split(",") if (coding := part.strip().lower()) not in ("", "identity")
    ]
    for coding in codings:
        if coding not in _DECODERS:
            raise ClientError(
                415,
                f"Content-Encoding {coding!r} is not supported; use gzip, deflate, zstd or none.",
                param="content-encoding",
            )
    # Each pass may grow the body by a large factor; nobody sends more than one.
    if len(codings) > 2:
        raise ClientError(415, "Too many codings in Content-Encoding.", param="content-encoding")
    return codings


def _gunzip(data: bytes, limit: int) -> bytes:
    return _inflate(data, limit, zlib.MAX_WBITS | 16, "gzip")


def _inflate_deflate(data: bytes, limit: int) -> bytes:
    # RFC 9110 means the zlib format; some clients send the bare one. The zlib header is checkable.
    zlib_header = len(data) >= 2 and data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
    return _inflate(data, limit, zlib.MAX_WBITS if zlib_header else -zlib.MAX_WBITS, "deflate")


def _inflate(data: bytes, limit: int, wbits: int, coding: str) -> bytes:
    parts: list[bytes] = []
    room = limit
    member = zlib.decompressobj(wbits)
    members = 1
    for start in range(0, len(data), _ZLIB_PIECE):
        piece = data[start : start + _ZLIB_PIECE]
        while piece:
            if member.eof:
                # A gzip body may be several members in a row.
                if wbits <= zlib.MAX_WBITS:
                    return b"".join(parts)
                members += 1
                if members > _MAX_MEMBERS:
                    raise _too_many_members(coding)
                member = zlib.decompressobj(wbits)
            try:
                part = member.decompress(piece, room + 1)
            except zlib.error as error:
                raise _damaged(coding) from error
            if len(part) > room:
                raise _too_large(limit)
            room -= len(part)
            parts.append(part)
            piece = member.unused_data
    if not member.eof:
        raise _damaged(coding)
    return b"".join(parts)


def _unzstd(data: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    frame = zstandard.ZstdDecompressor().decompressobj()
    frames = 1
    fed = False
    for start in range(0, len(data), _ZSTD_PIECE):
        piece = data[start : start + _ZSTD_PIECE]
        while piece:
            if frame.eof:
                frames += 1
                if frames > _MAX_MEMBERS:
                    raise _too_many_members("zstd")
                frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                part = frame.decompress(piece)
            except zstandard.ZstdError as error:
                raise _damaged("zstd") from error
            fed = True
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            piece = frame.unused_data if frame.eof else b""
    if not fed or not frame.eof:
        raise _damaged("zstd")
    return b"".join(parts)


_DECODERS: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate_deflate,
    "zstd": _unzstd,
}


def _too_large(limit: int) -> ClientError:
    return ClientError(413, f"The request body is larger than {limit} bytes.")


def _too_many_members(coding: str) -> ClientError:
    return ClientError(
        400,
        f"The request body has more than {_MAX_MEMBERS} {coding} members; compress it as one.",
        param="content-encoding",
    )


def _damaged(coding: str) -> ClientError:
    return ClientError(400, f"The request body is not valid {coding}.", param="content-encoding")
