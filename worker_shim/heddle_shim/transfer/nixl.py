"""Pages moved by NIXL (extra ``nixl``), by default over UCX, which takes RDMA where there is some.

Source: NIXL 1.5, ``nixl._api.nixl_agent`` (register_memory, get_agent_metadata, initialize_xfer, transfer).
"""

import asyncio
import base64
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from heddle_shim.transfer.mover import Memory, SlotPool, TransportMissing
from heddle_shim.transfer.page_file import PageBytes

MODULES: Final = ("nixl._api", "nixl_cu12._api", "nixl_cu13._api")
POLL_S: Final = 50e-6
DEVICE: Final = 0


class NixlMover:
    """One agent with one backend."""

    name: Final = "nixl"

    def __init__(self, *, backend: str = "UCX") -> None:
        """Raises TransportMissing where NIXL is not installed or has no such backend."""
        module = _load()
        # An agent is not safe to use from several threads at once.
        self._lock = threading.Lock()
        try:
            config = module.nixl_agent_config(backends=[backend])
            self._agent = module.nixl_agent(f"heddle-{uuid.uuid4().hex}", config)
        except Exception as error:
            raise TransportMissing(
                f"nixl: backend {backend} does not start here; use the tcp transport ({error})"
            ) from error
        self._pool = SlotPool(self)

    def note(self, slots: Sequence[Memory]) -> dict[str, Any]:
        with self._lock:
            metadata = self._agent.get_agent_metadata()
        return {
            "agent": base64.b64encode(metadata).decode(),
            "slots": [memory.address for memory in slots],
        }

    def register(self, memory: Memory) -> None:
        with self._lock:
            self._agent.register_memory([(memory.address, memory.size, DEVICE, "")], "DRAM")

    def writer(self, note: Mapping[str, Any], size: int) -> "NixlWriter":
        try:
            metadata, slots = base64.b64decode(note["agent"]), [int(slot) for slot in note["slots"]]
        except (KeyError, TypeError, ValueError) as error:
            raise OSError(f"a nixl receiver that cannot be read: {error}") from error
        # The staging memory must be registered before the peer is met.
        staging = self._pool.take(size)
        with self._lock:
            peer = self._agent.add_remote_agent(metadata)
        name = peer.decode() if isinstance(peer, bytes) else str(peer)
        return NixlWriter(self._agent, self._lock, self._pool, name, staging, slots)


class NixlWriter:
    """Into one receiver."""

    def __init__(
        self,
        agent: Any,
        lock: threading.Lock,
        pool: SlotPool,
        peer: str,
        staging: list[Memory],
        slots: list[int],
    ) -> None:
        self._agent, self._lock, self._pool, self._peer = agent, lock, pool, peer
        self._staging, self._slots = staging, slots

    async def write(self, slot: int, parts: Sequence[PageBytes]) -> None:
        await asyncio.to_thread(self._write, self._staging[slot], self._slots[slot], parts)

    def _write(self, staging: Memory, target: int, parts: Sequence[PageBytes]) -> None:
        staging.fill(parts)
        with self._lock:
            here = self._agent.get_xfer_descs([(staging.address, staging.size, DEVICE)], "DRAM")
            there = self._agent.get_xfer_descs([(target, staging.size, DEVICE)], "DRAM")
            handle = self._agent.initialize_xfer("WRITE", here, there, self._peer, b"")
            state = self._agent.transfer(handle)
        try:
            while state not in {"DONE", "ERR"}:
                time.sleep(POLL_S)
                with self._lock:
                    state = self._agent.check_xfer_state(handle)
        finally:
            with self._lock:
                self._agent.release_xfer_handle(handle)
        if state == "ERR":
            raise ConnectionError(f"nixl could not write to {self._peer}")

    def close(self) -> None:
        if self._staging:
            self._pool.give_back(self._staging)
            self._staging = []


def _load() -> Any:
    faults = []
    for name in MODULES:
        try:
            return import_module(name)
        except ImportError as error:
            faults.append(str(error))
    raise TransportMissing(
        "nixl: cannot be loaded; pip install 'heddle-shim[nixl]', or use the tcp transport"
        f" ({'; '.join(faults)})"
    )
