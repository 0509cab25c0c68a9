"""Messages between two gateways: whole however they are cut, refused where they are none, silence noticed."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from heddle_contracts.steps import Outcome
from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.fleet.events import WorkerEndpoint, WorkerSpec
from heddle_gateway.fleet.features import EngineKind, Features, PrioritySense
from heddle_gateway.peers.frames import MAX_FRAME, BadFrame, Frame, FrameReader, written
from heddle_gateway.peers.link import Link, LinkTuning
from heddle_gateway.peers.messages import of_ended, of_fleet, to_ended, to_endpoints, to_specs

from tests.simulate.virtual_time import run_in_virtual_time

WAIT_S = 30.0
TUNING = LinkTuning()


@pytest.mark.parametrize("cut", [1, 3, 8, 10_000])
def test_frames_are_whole_however_they_come(cut: int) -> None:
    frames = [
        ("is", {"k": 1, "who": ["\ud800 id", None]}, b"blob"),
        ("ping", {}, b""),
        ("go", {"k": 2}, b"\0" * 999),
    ]
    data = b"".join(written(kind, blob, **head) for kind, head, blob in frames)
    reader = FrameReader()
    found = [frame for at in range(0, len(data), cut) for frame in reader.feed(data[at : at + cut])]
    assert found == [Frame(*frame) for frame in frames]


@pytest.mark.parametrize(
    "data",
    [
        (MAX_FRAME + 1).to_bytes(4, "big") + bytes(4),
        (6).to_bytes(4, "big") + (9).to_bytes(4, "big"),
        (6).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"[]",
        (6).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"{]",
        (6).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"{}",
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        list(FrameReader().feed(data))


def test_a_record_and_the_fleet_are_the_same_elsewhere() -> None:
    step = EndedStep(
        "t", "", "g", 1, None, "header", "m", "chat", 3, 0, 1, 0, "w", Outcome.DONE, 200, "stop", ("bash",),
        9, 4, 5, True, 7, 1.0, 2.0, None, 3.0, 0.5,
    )  # fmt: skip
    assert to_ended(json.loads(json.dumps(of_ended(step)))) == step
    features = Features(abort=True, rid=True, priority=PrioritySense.LOWER_FIRST)
    endpoint = WorkerEndpoint(1, 2, "w", "http://w:1", EngineKind.VLLM, features, "key")
    spec = WorkerSpec(
        "http://w:1", kind=EngineKind.SGLANG, slots=4, priority=PrioritySense.NONE, api_key="key"
    )
    head = json.loads(json.dumps(of_fleet([endpoint], [spec, WorkerSpec("http://v:1")])))
    assert to_endpoints(head) == [endpoint]
    assert to_specs(head) == [spec, WorkerSpec("http://v:1")]


class Side:
    def __init__(self, hear: Callable[[Frame], None] = lambda frame: None) -> None:
        self.frames: list[Frame] = []
        self.lost = asyncio.Event()
        self.losses = 0
        self.hear = hear
        self.link = Link(self._on_frame, self._on_lost, TUNING)

    def _on_frame(self, link: Link, frame: Frame) -> None:
        self.frames.append(frame)
        self.hear(frame)

    def _on_lost(self, link: Link) -> None:
        self.losses += 1
        self.lost.set()


@asynccontextmanager
async def joined(near: Side, far: Any) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: far, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await loop.create_connection(lambda: near.link, "127.0.0.1", port)
    try:
        yield
    finally:
        near.link.close()
        server.close()


def test_messages_keep_their_order_and_pings_are_nobodys_business() -> None:
    async def main() -> None:
        near, far = Side(), Side()
        async with joined(near, far.link):
            for number in range(50):
                near.link.send("go", b"x" * number, k=number)
            async with asyncio.timeout(WAIT_S):
                while len(far.frames) < 50:  # noqa: ASYNC110  time is simulated
                    await asyncio.sleep(0.01)
            assert [frame.head["k"] for frame in far.frames] == list(range(50))
            await asyncio.sleep(60 * TUNING.silent_s)
            assert near.link.is_up, "both ping while they have nothing to say"
            assert len(far.frames) == 50
            assert near.frames == []
        async with asyncio.timeout(WAIT_S):
            await far.lost.wait()
        assert (near.losses, far.losses) == (1, 1), "lost once, by either side"
        near.link.send("go", k=51)
        assert not near.link.is_up

    run_in_virtual_time(main())


def test_a_side_that_says_nothing_is_given_up() -> None:
    async def main() -> None:
        near = Side()
        async with joined(near, asyncio.Protocol()):
            assert near.link.is_up
            began = asyncio.get_running_loop().time()
            await near.lost.wait()
            waited = asyncio.get_running_loop().time() - began
        assert TUNING.silent_s < waited <= TUNING.silent_s + 1.1 * TUNING.ping_s
        assert near.losses == 1

    run_in_virtual_time(main())


class Unread(asyncio.Transport):
    """Of a peer that reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.was_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.was_aborted = True


async def test_one_long_message_is_no_peer_that_reads_nothing() -> None:
    """A prompt may be longer than what a link holds unsent; what comes behind it tells."""
    side, transport = Side(), Unread()
    side.link = Link(side._on_frame, side._on_lost, LinkTuning(max_unsent=1000))
    side.link.connection_made(transport)
    side.link.send("arrive", b"x" * 2000)
    side.link.flush()
    assert side.link.is_up
    assert transport.unsent > 2000
    transport.unsent = 0
    side.link.send("arrive", b"x" * 2000)
    side.link.flush()
    assert side.link.is_up
    side.link.send("arrive")
    side.link.flush()
    assert transport.was_aborted
    assert side.losses == 1


async def test_a_message_of_another_release_closes_the_link() -> None:
    def refuse(frame: Frame) -> None:
        frame.head["not there"]

    near, far = Side(), Side(refuse)
    async with joined(near, far.link):
        near.link.send("go", k=1)
        async with asyncio.timeout(WAIT_S):
            await near.lost.wait()
            await far.lost.wait()
