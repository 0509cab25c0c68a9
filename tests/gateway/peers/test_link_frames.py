"""What comes to the port for other gateways from somebody who is none."""

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
from heddle_gateway.peers.frames import MAX_HELLO, BadFrame, Frame, FrameReader, written
from heddle_gateway.peers.link import Link

WAIT_S = 10.0


def frame_of(head: bytes) -> bytes:
    return struct.pack(">II", 4 + len(head), len(head)) + head


@pytest.fixture
async def stranger() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    def heard(link: Link, frame: Frame) -> None:
        raise KeyError(frame.kind)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Link(heard, lambda link: None, max_frame=MAX_HELLO), "127.0.0.1"
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    yield reader, writer
    writer.close()
    server.close()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", MAX_HELLO + 1, 8),
        frame_of(b"[" * 10_000),
        frame_of(b'{"k":1}'),
        written("arrive", k=1),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["too long", "nested", "no kind", "unknown", "HTTP"],
)
async def test_a_stranger_is_hung_up_on(
    stranger: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    data: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also before the whole of a long frame is there."""
    reader, writer = stranger
    writer.write(data)
    async with asyncio.timeout(WAIT_S):
        await reader.read()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].exc_info is None


def test_a_known_gateway_may_send_more() -> None:
    long = written("arrive", b"x" * (2 * MAX_HELLO), k=1)
    reader = FrameReader(MAX_HELLO)
    with pytest.raises(BadFrame):
        list(reader.feed(long[: MAX_HELLO // 2]))
    assert [frame.kind for frame in FrameReader().feed(long)] == ["arrive"]
