"""Bodies are collected and decoded within bounds, and refused by type."""

import gzip
import threading
import zlib
from random import Random
from typing import Any

import pytest
import zstandard
from heddle_gateway.asgi import request_body
from heddle_gateway.asgi.request_body import ClientError, ClientLeft, NextPart, read_body

LIMIT = 100_000
TEXT = b'{"model": "m"}' * 50


LEAVES = object()


def receiving(*parts: Any) -> NextPart:
    left = list(parts)

    async def next_part() -> tuple[bytes, bool]:
        part = left.pop(0)
        if part is LEAVES:
            raise ClientLeft
        return part

    return next_part


def body_of(data: bytes, pieces: int = 3) -> NextPart:
    size = len(data) // pieces + 1
    parts = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    return receiving(*((part, number < len(parts)) for number, part in enumerate(parts, 1)))


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def streamed_zstd(data: bytes) -> bytes:
    # Without the content size in the frame, as clients that stream write it.
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


CODINGS = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("zstd", zstandard.compress),
    ("zstd", streamed_zstd),
]


async def test_a_plain_body_comes_as_it_was_sent() -> None:
    for pieces in (1, 2, 7):
        assert await read_body(body_of(TEXT, pieces), {}, LIMIT) == TEXT
    assert await read_body(receiving((b"", False)), {"content-encoding": "identity"}, LIMIT) == b""


@pytest.mark.parametrize(("coding", "pack"), CODINGS)
async def test_a_coded_body_is_decoded(coding, pack) -> None:
    assert await read_body(body_of(pack(TEXT)), {"content-encoding": coding.upper()}, LIMIT) == TEXT


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
async def test_a_body_of_several_members_is_one_body(coding, pack) -> None:
    data = pack(TEXT) + pack(b"more")
    assert await read_body(body_of(data), {"content-encoding": coding}, LIMIT) == TEXT + b"more"


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
async def test_members_may_end_anywhere_in_what_is_decoded_at_once(coding, pack) -> None:
    texts = [Random(size).randbytes(size) for size in (1, 1023, 65_515, 70_000, 0, 200_000, 5)]
    body = b"".join(pack(text) for text in texts)
    assert await read_body(body_of(body), {"content-encoding": coding}, 10 * LIMIT) == b"".join(texts)


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
async def test_thousands_of_empty_members_are_refused(coding, pack) -> None:
    """Each takes a decoder of its own: a megabyte of them held the event loop or the GIL for seconds."""
    headers = {"content-encoding": coding}
    assert await read_body(body_of(pack(b"") * 1024), headers, LIMIT) == b""
    error = await refusal(body_of(pack(b"") * 1025), headers)
    assert (error.status, error.param) == (400, "content-encoding")


async def test_two_codings_are_undone_from_the_last() -> None:
    data = zstandard.compress(gzip.compress(TEXT))
    assert await read_body(body_of(data), {"content-encoding": "gzip, zstd"}, LIMIT) == TEXT


async def refusal(receive: Any, headers: dict[str, str]) -> ClientError:
    with pytest.raises(ClientError) as caught:
        await read_body(receive, headers, LIMIT)
    return caught.value


@pytest.mark.parametrize(("coding", "pack"), CODINGS)
@pytest.mark.parametrize("size", [LIMIT + 1, 200 * LIMIT])
async def test_a_body_that_grows_beyond_the_limit_is_refused(coding, pack, size) -> None:
    packed = pack(b"a" * size)
    assert len(packed) < LIMIT
    error = await refusal(body_of(packed), {"content-encoding": coding})
    assert (error.status, error.param) == (413, None)


@pytest.mark.parametrize(("coding", "pack"), CODINGS)
async def test_a_body_of_exactly_the_limit_is_taken(coding, pack) -> None:
    assert len(await read_body(body_of(pack(b"a" * LIMIT)), {"content-encoding": coding}, LIMIT)) == LIMIT


@pytest.mark.parametrize(("coding", "pack"), CODINGS)
async def test_a_damaged_or_cut_body_is_refused(coding, pack) -> None:
    packed = pack(TEXT)
    for damaged in (packed[:-4], packed[: len(packed) // 2], b"no " + packed, b""):
        error = await refusal(body_of(damaged), {"content-encoding": coding})
        assert (error.status, error.param) == (400, "content-encoding")


async def test_a_large_body_is_decoded_beside_the_event_loop() -> None:
    noise = bytes(range(256)) * 4000
    data = zlib.compress(noise, level=0)
    assert await read_body(body_of(data), {"content-encoding": "deflate"}, 2_000_000) == noise


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
@pytest.mark.parametrize(("size", "beside"), [(4_000_000, False), (5_000_000, True)])
async def test_a_small_body_that_unfolds_to_much_is_decoded_beside_the_event_loop(
    monkeypatch, coding, pack, size, beside
) -> None:
    decode = request_body._DECODERS[coding]
    threads = []

    def watched(data: bytes, limit: int) -> bytes:
        found = decode(data, limit)
        threads.append(threading.current_thread())
        return found

    monkeypatch.setitem(request_body._DECODERS, coding, watched)
    text = b"a" * size
    assert await read_body(body_of(pack(text)), {"content-encoding": coding}, 10_000_000) == text
    assert [thread is not threading.main_thread() for thread in threads] == [beside]


async def test_a_body_too_large_is_refused_by_its_declared_length_alone() -> None:
    error = await refusal(receiving(), {"content-length": str(LIMIT + 1)})
    assert error.status == 413


async def test_a_body_that_turns_out_too_large_is_refused_before_its_end() -> None:
    part = (b"a" * LIMIT, True)
    error = await refusal(receiving(part, part), {"content-length": "not a number"})
    assert error.status == 413


@pytest.mark.parametrize("coding", ["br", "compress", "gzip, br", "gzip, gzip, gzip"])
async def test_other_codings_are_named_as_unsupported(coding) -> None:
    error = await refusal(receiving(), {"content-encoding": coding})
    assert (error.status, error.param) == (415, "content-encoding")


async def test_a_client_that_leaves_before_its_body_is_whole_is_nobody_to_answer() -> None:
    with pytest.raises(ClientLeft):
        await read_body(receiving((b"{", True), LEAVES), {}, LIMIT)
