"""What was buffered for a stream that broke off goes with it, not with some later garbage collection.

The gateway collects rarely (serving.GC_THRESHOLDS), so a cycle that holds a buffer is a leak in all but name.
"""

import gc
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from heddle_gateway.asgi.server_protocol import GatewayProtocol

# More than the buffers of two sockets, of the gateway and of its connections take.
STREAM = 40_000_000


@contextmanager
def garbage_of_ours() -> Iterator[list[str]]:
    """Fills up, at its end, with what only a collection would have freed."""
    left: list[str] = []
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        kinds = (type(one) for one in gc.garbage)
        left += [kind.__qualname__ for kind in kinds if kind.__module__.startswith(("heddle", "httptools"))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def more_than_anybody_reads(request: Any, line: Any) -> None:
    await line.begin_stream()
    for _ in range(STREAM // 20_000):
        await line.chat_event({"content": "x" * 20_000})


async def test_a_client_that_reads_nothing_and_leaves_takes_its_buffers_along(
    gateway: Any, worker: Any, until: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    worker.script = more_than_anybody_reads
    with garbage_of_ours() as left:
        for number in range(3):
            line = await connect(gateway.url)
            line.writer.transport.pause_reading()
            line.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await line.send(make_request(chat_body(stream=True), f"/t/{number}/v1/chat/completions"))
            await until(lambda: gateway.parts.upstream.stats()["connections_busy"], "the stream to begin")
            await until(lambda: _is_paused(gateway), "the gateway to stop reading from the worker")
            line.leave()
            await until(gateway.at_rest, "the step to end")
    assert left == []


async def test_an_idle_connection_keeps_nothing_of_the_body_it_carried(
    new_gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    gateway = await new_gateway(worker, policy={"admission": "unlimited"})
    line = await connect(gateway.url)
    await line.send(make_request(chat_body("x" * 1_000_000)))
    assert (await line.answer())[0] == 200
    ours = [one for one in gc.get_objects() if type(one) is GatewayProtocol]
    assert ours
    kept = {
        name
        for one in ours
        for name, value in vars(one).items()
        if type(value) is bytes and len(value) > 9999
    }
    assert kept == set()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_lost_worker_leaves_nothing_behind(
    gateway: Any, worker: Any, until: Any, stream: bool
) -> None:
    async def script(request: Any, line: Any) -> None:
        if stream:
            await line.begin_stream()
            await line.chat_event({"content": "x" * 100_000})
        line.reset()

    worker.script = script
    with garbage_of_ours() as left:
        for number in range(3):
            await gateway.chat(f"task {number}", stream=stream)
            await until(gateway.at_rest, "the step to end")
            await until(lambda: gateway.parts.fleet.active() == 1, "the worker in service")
    assert left == []


def _is_paused(gateway: Any) -> bool:
    """Whether a connection to a worker is not read because its client does not read."""
    pools = gateway.parts.upstream._pools.values()
    return any(connection._paused for pool in pools for connection in pool._busy)
