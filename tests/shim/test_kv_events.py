"""An engine's KV events over real ZeroMQ sockets, with gaps, replays and restarts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from heddle_shim.kv_events import DEVICE, HOST, KvEvents, ResidentPages


def stored(*pages: int, medium: str | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {"type": "BlockStored", "block_hashes": list(pages), "token_ids": []}
    return event | ({"medium": medium} if medium else {})


class Engine:
    """Publishes as SGLang does: PUB, and a ROUTER that sends old batches again."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self._pub = context.socket(zmq.PUB)
        self._router = context.socket(zmq.ROUTER)
        for socket in (self._pub, self._router):
            socket.setsockopt(zmq.LINGER, 0)
        self.address = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self.batches: list[bytes] = []
        self.keeps = True
        self._serving = asyncio.create_task(self._serve())

    def keep(self, *events: dict[str, Any]) -> bytes:
        """A batch that nobody hears of, but that can be asked for."""
        self.batches.append(msgspec.msgpack.encode([0.0, list(events), 0]))
        return self.batches[-1]

    async def publish(self, *events: dict[str, Any]) -> None:
        batch = self.keep(*events)
        number = len(self.batches) - 1
        await self._pub.send_multipart([b"", number.to_bytes(8, "big"), batch])

    async def send(self, number: int, batch: bytes) -> None:
        await self._pub.send_multipart([b"", number.to_bytes(8, "big"), batch])

    async def _serve(self) -> None:
        while True:
            asker, _, first = await self._router.recv_multipart()
            if self.keeps:
                for number in range(int.from_bytes(first, "big"), len(self.batches)):
                    frames = [asker, b"", b"", number.to_bytes(8, "big"), self.batches[number]]
                    await self._router.send_multipart(frames)
            end = (-1).to_bytes(8, "big", signed=True)
            await self._router.send_multipart([asker, b"", b"", end, b""])

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._pub.close()
        self._router.close()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    context = zmq.asyncio.Context()
    engine = Engine(context)
    yield engine
    await engine.close()
    context.term()


@asynccontextmanager
async def following(engine: Engine) -> AsyncIterator[KvEvents]:
    events = KvEvents(engine.address, engine.replay)
    events.start()
    yield events
    await events.close()


async def until(condition: Callable[[], bool], nudge: Callable[[], Any]) -> None:
    """A subscriber hears only what is published after it has joined: ``nudge`` publishes again."""
    async with asyncio.timeout(60):
        while not condition():
            await nudge()
            await asyncio.sleep(0.02)


async def test_stored_and_removed_pages_are_followed_by_memory(engine: Engine) -> None:
    async with following(engine) as events:
        await until(lambda: events.resident.count(DEVICE) > 0, lambda: engine.publish(stored(1, 2, 3)))
        await engine.publish(stored(1, 2, medium=HOST))
        await engine.publish({"type": "BlockRemoved", "block_hashes": [2], "medium": DEVICE})
        await until(lambda: events.resident.prefix(DEVICE, [1, 2, 3]) == 1, lambda: engine.publish())
        assert events.resident.prefix(HOST, [1, 2, 3]) == 2
        await engine.publish({"type": "AllBlocksCleared"})
        await until(lambda: events.resident.count(HOST) == 0, lambda: engine.publish())


async def test_who_comes_late_gets_what_was_before_from_the_replay(engine: Engine) -> None:
    engine.keep(stored(1))
    engine.keep(stored(2))
    async with following(engine) as events:
        await until(lambda: events.resident.prefix(DEVICE, [1, 2, 3]) == 3, lambda: engine.publish(stored(3)))
        assert events.lost == 0


async def test_a_gap_in_the_middle_is_filled(engine: Engine) -> None:
    async with following(engine) as events:
        await until(lambda: events.resident.count(DEVICE) > 0, lambda: engine.publish(stored(1)))
        engine.keep(stored(2))
        await until(lambda: events.resident.prefix(DEVICE, [1, 2, 3]) == 3, lambda: engine.publish(stored(3)))


async def test_what_cannot_be_replayed_makes_the_rest_unknown(engine: Engine) -> None:
    async with following(engine) as events:
        await until(lambda: events.resident.count(DEVICE) > 0, lambda: engine.publish(stored(1)))
        engine.keeps = False
        engine.keep(stored(2))
        await engine.publish(stored(3))
        await until(lambda: events.lost == 1, lambda: engine.publish())
        assert events.resident.prefix(DEVICE, [1]) == 0
        assert events.resident.prefix(DEVICE, [3]) == 1


async def test_an_engine_that_was_started_again_has_nothing(engine: Engine) -> None:
    async with following(engine) as events:
        for page in range(5):
            await until(
                lambda page=page: events.resident.prefix(DEVICE, [page]) == 1,
                lambda page=page: engine.publish(stored(page)),
            )
        again = msgspec.msgpack.encode([0.0, [stored(77)], 0])
        engine.batches = [again]
        await engine.send(0, again)
        await until(lambda: events.resident.prefix(DEVICE, [77]) == 1, lambda: engine.publish())
        assert events.resident.prefix(DEVICE, [0]) == 0


async def test_a_batch_that_cannot_be_read_makes_all_unknown(engine: Engine) -> None:
    async with following(engine) as events:
        await until(lambda: events.resident.count(DEVICE) > 0, lambda: engine.publish(stored(1)))
        engine.batches.append(b"\xc1")
        await engine.send(len(engine.batches) - 1, b"\xc1")
        await until(lambda: events.resident.count(DEVICE) == 0, lambda: engine.publish())


def test_a_hole_ends_a_prefix() -> None:
    pages = ResidentPages()
    pages.apply(stored(1, 3))
    assert pages.prefix(DEVICE, [1, 2, 3]) == 1
    assert pages.prefix(HOST, [1]) == 0
