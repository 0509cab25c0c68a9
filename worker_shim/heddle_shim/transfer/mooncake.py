"""Pages moved by Mooncake's transfer engine (extra ``mooncake``), over RDMA or its own TCP mode.

Source: Mooncake 0.3.13, ``mooncake.engine.TransferEngine``: initialize, register_memory,
``transfer_sync_write``.
"""

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from heddle_shim.transfer.mover import Memory, SlotPool, TransportMissing
from heddle_shim.transfer.page_file import PageBytes


class MooncakeMover:
    """One transfer engine. ``protocol``: "rdma", or "tcp" where there is no RDMA device."""

    name: Final = "mooncake"

    def __init__(self, host: str, *, protocol: str = "rdma", device: str = "") -> None:
        """``host``: the address others reach this one at; ``device``: RDMA devices, empty for all.

        Raises:
            TransportMissing: not installed, or it does not start here.
        """
        try:
            module = import_module("mooncake.engine")
        except ImportError as error:
            raise TransportMissing(
                "mooncake: cannot be loaded; pip install 'heddle-shim[mooncake]' and the system's libibverbs1"
                f" and librdmacm1, or use the tcp transport ({error})"
            ) from error
        self._engine = module.TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", protocol, device) != 0:
            raise TransportMissing(
                f"mooncake: no {protocol} transport on {host} (device {device or 'any'}); see its log, or use"
                " the tcp transport"
            )
        self._session = f"{host}:{self._engine.get_rpc_port()}"
        self._pool = SlotPool(self)

    def note(self, slots: Sequence[Memory]) -> dict[str, Any]:
        return {"session": self._session, "slots": [memory.address for memory in slots]}

    def register(self, memory: Memory) -> None:
        if self._engine.register_memory(memory.address, memory.size) != 0:
            raise OSError(f"mooncake does not register {memory.size} bytes")

    def writer(self, note: Mapping[str, Any], size: int) -> "MooncakeWriter":
        try:
            session, slots = str(note["session"]), [int(slot) for slot in note["slots"]]
        except (KeyError, TypeError, ValueError) as error:
            raise OSError(f"a mooncake receiver that cannot be read: {error}") from error
        return MooncakeWriter(self._engine, self._pool, session, slots, size)


class MooncakeWriter:
    """Into one receiver."""

    def __init__(self, engine: Any, pool: SlotPool, session: str, slots: list[int], size: int) -> None:
        self._engine, self._pool, self._session, self._slots = engine, pool, session, slots
        self._staging = pool.take(size)

    async def write(self, slot: int, parts: Sequence[PageBytes]) -> None:
        await asyncio.to_thread(self._write, self._staging[slot], self._slots[slot], parts)

    def _write(self, staging: Memory, target: int, parts: Sequence[PageBytes]) -> None:
        staging.fill(parts)
        if self._engine.transfer_sync_write(self._session, staging.address, target, staging.size) != 0:
            raise ConnectionError(f"mooncake could not write to {self._session}")

    def close(self) -> None:
        if self._staging:
            self._pool.give_back(self._staging)
            self._staging = []
