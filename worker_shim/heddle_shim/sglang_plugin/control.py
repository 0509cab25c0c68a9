"""Rank 0's ear for the shim: a ZeroMQ socket in the page store's folder, read between two batches.

Requests and answers are MessagePack maps with the asker's ``id``. Nothing blocks: what is not there yet is
read before a later batch, and an answer that nobody takes is dropped.
"""

from typing import Any

import msgspec
import zmq

SOCKET = "plugin.sock"
MAX_PER_BATCH = 64
"""Requests read before one batch, so that a flood of them cannot hold up decoding."""


class Control:
    """One per engine."""

    def __init__(self, address: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)

    def close(self) -> None:
        self._socket.close()

    def requests(self) -> list[tuple[bytes, dict[str, Any]]]:
        """What has come, as (asker, request)."""
        found = []
        for _ in range(MAX_PER_BATCH):
            try:
                asker, *_, body = self._socket.recv_multipart(zmq.NOBLOCK)
                request = msgspec.msgpack.decode(body)
            except zmq.Again:
                break
            except (msgspec.DecodeError, ValueError):
                continue  # Not a request; there is no id to answer to.
            if isinstance(request, dict):
                found.append((asker, request))
        return found

    def answer(self, asker: bytes, request: dict[str, Any], **said: Any) -> None:
        body = msgspec.msgpack.encode({"id": request.get("id"), **said})
        try:
            self._socket.send_multipart([asker, body], zmq.NOBLOCK)
        except zmq.ZMQError:
            pass  # The shim went away, or does not read.
