"""Source and sink of a transfer over a page store: what SGLang's side of a shim moves."""

import asyncio
from collections.abc import Sequence
from typing import Final

from heddle_contracts.kv import KvNamespace, MigrationFault

from heddle_shim.transfer.engine_side import Offer
from heddle_shim.transfer.faults import TransferFault
from heddle_shim.transfer.page_file import Part, file_size
from heddle_shim.transfer.page_store import PageStore
from heddle_shim.transfer.reshard import reshard

LANDED_PIN_S: Final = 120.0
"""Pages that have arrived are spared for so long: the trajectory's next step, which wants them, is near."""
PIN_MARGIN_S: Final = 30.0


class StoredSource:
    """The longest prefix of ``hashes`` that the store has whole, pinned until ``close``."""

    def __init__(
        self, store: PageStore, namespace: KvNamespace, hashes: Sequence[str], pin: str, seconds: float
    ) -> None:
        """Raises TransferFault (NOTHING_TO_MOVE) where not even the first page is there."""
        self.namespace: Final = namespace
        self._store = store
        self._shelf = store.shelf(namespace)
        self._parts = range(namespace.layout.parts)
        self._pin = f"source/{pin}"
        size = namespace.layout.rank_page_bytes
        self._buffers = [[bytearray(size) for _ in self._parts] for _ in range(2)]
        self._turn = 0
        # Pinned before counted: what is found stays.
        store.pin(self._pin, namespace, hashes, seconds + PIN_MARGIN_S)
        self.hashes: Final = tuple(hashes[: self._shelf.prefix(hashes, self._parts)])
        if not self.hashes:
            store.unpin(self._pin)
            raise TransferFault(
                MigrationFault.NOTHING_TO_MOVE,
                f"none of the {len(hashes)} pages of this prefix is in the store of the source",
            )

    async def read(self, index: int) -> Sequence[Part] | None:
        # Two sets of buffers in turn: memory that is new for each page costs more than the copy into it.
        self._turn = 1 - self._turn
        return await asyncio.to_thread(self._read, self.hashes[index], self._buffers[self._turn])

    def _read(self, page_hash: str, buffers: Sequence[bytearray]) -> Sequence[Part] | None:
        current = self._store.weight_version
        if current is not None and current != self.namespace.weight_version:
            raise TransferFault(
                MigrationFault.WEIGHTS_CHANGED,
                f"weight_version: {self.namespace.weight_version} when the move began, {current} now",
            )
        found = [self._shelf.read_part(page_hash, part, buffers[part]) for part in self._parts]
        whole = [part for part in found if part is not None]
        return whole if len(whole) == len(found) else None

    async def close(self) -> None:
        self._store.unpin(self._pin)


class StoredSink:
    """Writes arriving pages into the store, in the layout of its own engine."""

    def __init__(self, store: PageStore, namespace: KvNamespace, offer: Offer) -> None:
        """``namespace``: the engine's own.

        Raises:
            TransferFault: MISMATCH, or TARGET_FULL.
        """
        if (fault := namespace.mismatch(offer.namespace)) is not None:
            raise TransferFault(MigrationFault.MISMATCH, fault)
        self._store = store
        self._namespace = namespace
        self._source = offer.namespace.layout
        self._hashes = offer.hashes
        self._shelf = store.shelf(namespace)
        self._parts = range(namespace.layout.parts)
        self._pin = f"sink/{offer.id}"
        self._closed = False
        store.pin(self._pin, namespace, offer.hashes, offer.deadline_s + PIN_MARGIN_S)
        wanted = self.missing()
        size = len(wanted) * len(self._parts) * file_size(namespace.layout.rank_page_bytes)
        self._promise = store.promise(size)
        if self._promise is None:
            store.unpin(self._pin)
            raise TransferFault(
                MigrationFault.TARGET_FULL,
                f"{size} bytes for {len(wanted)} pages are more than the target's page store"
                f" ({store.budget} bytes) can promise now",
            )

    def missing(self) -> list[int]:
        return [
            index
            for index, page in enumerate(self._hashes)
            if not all(self._shelf.has(page, part) for part in self._parts)
        ]

    async def write(self, index: int, parts: Sequence[Part]) -> None:
        await asyncio.to_thread(self._write, self._hashes[index], parts)

    def _write(self, page_hash: str, parts: Sequence[Part]) -> None:
        current = self._store.weight_version
        if current is not None and current != self._namespace.weight_version:
            raise TransferFault(
                MigrationFault.WEIGHTS_CHANGED,
                f"weight_version: {self._namespace.weight_version} when the move began, {current} now",
            )
        known = {id(one.data): one.crc for one in parts}
        made = reshard(self._source, self._namespace.layout, [one.data for one in parts])
        for part, data in enumerate(made):
            # What re-sharding leaves as it was keeps its checksum.
            if not self._shelf.put(page_hash, part, data, self._promise, known.get(id(data))):
                raise TransferFault(MigrationFault.TARGET_FULL, "the target's shared memory is full")

    async def close(self, complete: int) -> None:
        if self._closed or self._promise is None:
            return
        self._closed = True
        self._promise.close()
        if complete:
            whole = self._hashes[:complete]
            self._store.pin(self._pin, self._namespace, whole, LANDED_PIN_S)
            self._shelf.touch(whole, self._parts)
        else:
            self._store.unpin(self._pin)
