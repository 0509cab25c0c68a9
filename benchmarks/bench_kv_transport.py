"""Moving KV pages from one process to another, beside a bare socket copy of as many bytes.

    python benchmarks/bench_kv_transport.py [--rounds N] [--megabytes N] [--json OUT]

Arms, measured in turn in every round, with the receiver in a process of its own:

    socket     sendall into recv_into, from and into one buffer: what the loopback gives
    transport  TcpTransport to TcpReceiver: framing, a checksum at both ends, pages from memory and dropped
    stores     the same from a page store into a page store, both in shared memory: a whole move
    re-shard   stores, from TP 1 to TP 4 in SGLang's page_first order

Bytes are of pages of an 8-billion-parameter model at TP 1: 64 tokens, 9.4 MB. Only ratios to ``socket``
within a round are worth anything on a shared machine.
"""

import argparse
import asyncio
import hashlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from heddle_contracts.kv import EngineFacts, KvLayout, KvNamespace, MigrationRequest
from heddle_shim.transfer.engine_side import EngineState, Offer, PageSink, PageSource
from heddle_shim.transfer.page_file import Part, file_size
from heddle_shim.transfer.page_store import PageStore
from heddle_shim.transfer.stored_pages import StoredSink, StoredSource
from heddle_shim.transfer.tcp import TcpTransport
from heddle_shim.transfer.tcp_receiver import TcpReceiver
from heddle_shim.transfer.transport import Progress

SHARED_MEMORY = "/dev/shm"
ARMS = ("socket", "transport", "stores", "re-shard")
BUFFER = 4 << 20


def namespace_of(tp_size: int) -> KvNamespace:
    layout = KvLayout(
        dtype="bfloat16", item_bytes=2, page_size=64, layers=36, kv_heads=8, head_dim=128, tp_size=tp_size
    )
    return KvNamespace(model="bench", weight_version="1", layout=layout)


class MemorySource:
    """One page again and again."""

    def __init__(self, namespace: KvNamespace, hashes: Sequence[str], page: bytes) -> None:
        self.namespace, self.hashes, self._page = namespace, tuple(hashes), [Part.of(page)]

    async def read(self, index: int) -> Sequence[Part]:
        return self._page

    async def close(self) -> None: ...


class DroppingSink:
    """Keeps nothing."""

    def __init__(self, pages: int) -> None:
        self._missing = dict.fromkeys(range(pages))

    def missing(self) -> list[int]:
        return list(self._missing)

    async def write(self, index: int, parts: Sequence[Part]) -> None:
        del self._missing[index]

    async def close(self, complete: int) -> None: ...


class ReceivingEngine:
    """Where pages go: into a page store, or nowhere."""

    def __init__(self, store: PageStore | None, namespace: KvNamespace) -> None:
        self._store, self._namespace = store, namespace

    def facts(self) -> EngineFacts:
        return EngineFacts()

    def state(self) -> EngineState:
        return "ready"

    def namespace(self) -> KvNamespace:
        return self._namespace

    def cannot_migrate(self) -> None:
        return None

    async def open_source(self, request: MigrationRequest) -> PageSource:
        raise NotImplementedError

    async def open_sink(self, offer: Offer) -> PageSink:
        if self._store is None:
            return DroppingSink(len(offer.hashes))
        return StoredSink(self._store, self._namespace, offer)

    async def release(self, namespace: KvNamespace, hashes: Sequence[str]) -> int:
        return 0


def receive_bare(listener: socket.socket) -> None:
    """Reads what comes; answers one byte when a sender has ended."""
    buffer = bytearray(BUFFER)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            while connection.recv_into(buffer):
                pass
            connection.sendall(b".")


async def receive(budget: int) -> None:
    """The receiving process: says its addresses, then serves until its input ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=receive_bare, args=(listener,), daemon=True).start()
    addresses = {"socket": f"127.0.0.1:{listener.getsockname()[1]}"}
    with tempfile.TemporaryDirectory(prefix="heddle-bench-", dir=SHARED_MEMORY) as root:
        same, split = namespace_of(1), namespace_of(4)
        store = PageStore.create(Path(root) / "in", budget)
        engines = {
            "transport": ReceivingEngine(None, same),
            "stores": ReceivingEngine(store, same),
            "re-shard": ReceivingEngine(store, split),
        }
        receivers = {name: TcpReceiver(engine) for name, engine in engines.items()}
        for name, receiver in receivers.items():
            await receiver.start()
            addresses[name] = receiver.address
        print(json.dumps(addresses), flush=True)
        # A line asks for the pages of the round to be dropped.
        while await asyncio.to_thread(sys.stdin.readline):
            for namespace in (same, split):
                store.drop(namespace)
            print("dropped", flush=True)
        for receiver in receivers.values():
            await receiver.close()
        store.close(remove=True)


def send_bare(address: str, page: bytes, pages: int) -> float:
    host, _, port = address.rpartition(":")
    began = time.perf_counter()
    with socket.create_connection((host, int(port))) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        for _ in range(pages):
            sender.sendall(page)
        sender.shutdown(socket.SHUT_WR)
        sender.recv(1)
    return time.perf_counter() - began


def send(address: str, source: PageSource, name: str) -> float:
    async def push() -> float:
        progress = Progress()
        offer = Offer(name, "t", source.namespace, tuple(source.hashes), 600.0)
        began = time.perf_counter()
        await TcpTransport().push(address, offer, source, progress)
        took = time.perf_counter() - began
        if progress.moved != len(source.hashes) or progress.attempts != 1:
            raise SystemExit(f"{name}: not all pages went at once: {progress}")
        await source.close()
        return took

    return asyncio.run(push())


def measure(rounds: int, megabytes: int) -> dict[str, list[float]]:
    """Bytes a second by arm and round."""
    namespace = namespace_of(1)
    size = namespace.layout.page_bytes
    pages = max(2, megabytes * 1_000_000 // size)
    page = hashlib.shake_128(b"page").digest(size)
    hashes = [hashlib.sha256(b"%d" % index).hexdigest() for index in range(pages)]
    budget = 4 * pages * file_size(size)
    command = [sys.executable, __file__, "--receive", str(budget)]
    rates: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with (
        tempfile.TemporaryDirectory(prefix="heddle-bench-", dir=SHARED_MEMORY) as root,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as receiver,
    ):
        assert receiver.stdin is not None
        assert receiver.stdout is not None
        addresses = json.loads(receiver.stdout.readline())
        store = PageStore.create(Path(root) / "out", budget)
        shelf = store.shelf(namespace)
        for name in hashes:
            shelf.put(name, 0, page)
        for turn in range(rounds):
            for arm in ARMS[turn % len(ARMS) :] + ARMS[: turn % len(ARMS)]:
                if arm == "socket":
                    took = send_bare(addresses[arm], page, pages)
                elif arm == "transport":
                    took = send(addresses[arm], MemorySource(namespace, hashes, page), f"{arm}{turn}")
                else:
                    source = StoredSource(store, namespace, hashes, f"{arm}{turn}", 600.0)
                    took = send(addresses[arm], source, f"{arm}{turn}")
                rates[arm].append(pages * size / took)
            receiver.stdin.write("\n")
            receiver.stdin.flush()
            receiver.stdout.readline()
        store.close(remove=True)
        receiver.stdin.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--receive", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive is not None:
        asyncio.run(receive(options.receive))
        return
    rates = measure(options.rounds, options.megabytes)
    found = {}
    print(f"{'arm':<11}{'GB/s':>8}{'ratio':>8}  least..greatest of {options.rounds} rounds")
    for arm in ARMS:
        ratios = [rate / bare for rate, bare in zip(rates[arm], rates["socket"], strict=True)]
        found[arm] = {"gb_s": statistics.median(rates[arm]) / 1e9, "ratio": statistics.median(ratios)}
        print(
            f"{arm:<11}{found[arm]['gb_s']:>8.2f}{found[arm]['ratio']:>8.2f}"
            f"  {min(ratios):.2f}..{max(ratios):.2f}"
        )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
