"""Follows an engine's KV events, and so knows which pages lie in which of its memories.

Source: SGLang 0.5.23, ``disaggregation/kv_events.py``: PUB frames ``[topic, sequence, batch]``, batches
``[time, events, rank]``, events as maps by ``type``. A gap in the sequence is filled from the replay socket;
where that cannot be, everything is forgotten: what is not known is taken as not there.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

log = logging.getLogger(__name__)

DEVICE: Final = "GPU"
HOST: Final = "CPU_PINNED"
REPLAY_S: Final = 5.0
LAST: Final = (-1).to_bytes(8, "big", signed=True)
"""Ends an answer of the replay socket."""


class ResidentPages:
    """Pages by memory, as the events told. Pages have the event's names: see ``page_hashes.event_hash``."""

    def __init__(self) -> None:
        self._pages: defaultdict[str, set[int]] = defaultdict(set)

    def apply(self, event: dict[str, Any]) -> None:
        medium = event.get("medium") or DEVICE
        match event.get("type"):
            case "BlockStored":
                self._pages[medium].update(event["block_hashes"])
            case "BlockRemoved":
                self._pages[medium].difference_update(event["block_hashes"])
            case "AllBlocksCleared":
                self._pages.clear()

    def forget(self) -> None:
        self._pages.clear()

    def prefix(self, medium: str, pages: Sequence[int]) -> int:
        """How many pages from the first on lie in a memory, without a hole."""
        there = self._pages[medium]
        return next((index for index, page in enumerate(pages) if page not in there), len(pages))

    def count(self, medium: str) -> int:
        return len(self._pages[medium])


class KvEvents:
    """One engine's events. ``start`` in an event loop, ``close`` before it ends."""

    def __init__(self, address: str, replay: str | None, topic: str = "") -> None:
        self.resident: Final = ResidentPages()
        self._address, self._replay, self._topic = address, replay, topic.encode()
        self._context = zmq.asyncio.Context()
        self._task: asyncio.Task[None] | None = None
        self._next: int | None = None
        self.lost: int = 0
        """Times that events were missed for good."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="KV events")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._context.term()

    async def _follow(self) -> None:
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 100_000)
        socket.setsockopt(zmq.SUBSCRIBE, self._topic)
        try:
            socket.connect(self._address)
            while True:
                _, sequence, batch = await socket.recv_multipart()
                await self._take(int.from_bytes(sequence, "big"), batch)
        finally:
            socket.close()

    async def _take(self, sequence: int, batch: bytes) -> None:
        expected = 0 if self._next is None else self._next
        if self._next is not None and sequence < expected:
            # A smaller number than before: the engine was started again.
            self.resident.forget()
            expected = 0
        if sequence > expected:
            missed = await self._missed(expected, sequence)
            if missed is None:
                self.lost += self._next is not None
                self.resident.forget()
            else:
                for earlier in missed:
                    self._apply(earlier)
        self._apply(batch)
        self._next = sequence + 1

    def _apply(self, batch: bytes) -> None:
        try:
            _, events, *_ = msgspec.msgpack.decode(batch)
        except (msgspec.DecodeError, ValueError):
            log.warning("a batch of KV events could not be read; what the engine holds is taken as unknown")
            self.resident.forget()
            return
        for event in events:
            self.resident.apply(event)

    async def _missed(self, first: int, until: int) -> list[bytes] | None:
        """Batches ``first`` to ``until`` - 1; None where the engine does not have them any more."""
        if self._replay is None:
            return None
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        found: list[bytes] = []
        try:
            socket.connect(self._replay)
            async with asyncio.timeout(REPLAY_S):
                await socket.send_multipart([b"", first.to_bytes(8, "big")])
                while first + len(found) < until:
                    *_, sequence, batch = await socket.recv_multipart()
                    if sequence == LAST:
                        break
                    if int.from_bytes(sequence, "big") == first + len(found):
                        found.append(batch)
        except TimeoutError:
            return None
        finally:
            socket.close()
        return found if first + len(found) == until else None
