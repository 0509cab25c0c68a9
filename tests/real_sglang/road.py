"""A road between two shims that a test can block: the target's handshake, with a TCP relay as its address."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .workers import Worker

CHUNK = 16 * 1024


class Road:
    """``url`` is what a migration is told as its target.

    Of the bytes from the sender, ``blocked_after`` pass; then nothing does until ``open``. The byte at
    ``flipped_at`` of the first connection arrives inverted.
    """

    def __init__(self, target: Worker, blocked_after: int | None, flipped_at: int | None) -> None:
        self._target = target
        self._blocked_after, self._flipped_at = blocked_after, flipped_at
        self._opened = threading.Event()
        self.blocked = threading.Event()
        self.connections = 0
        self._relay = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._relay]
        road = self

        class Handshake(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                said: dict[str, Any] = road._target.handshake()
                road._address = said["transports"]["tcp"]
                said["transports"] = {"tcp": f"127.0.0.1:{road._relay.getsockname()[1]}"}
                body = json.dumps(said).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._address = ""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handshake)
        self._threads = [
            threading.Thread(target=self._http.serve_forever),
            threading.Thread(target=self._accept),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def open(self) -> None:
        self._opened.set()

    def close(self) -> None:
        self.open()
        self._http.shutdown()
        self._http.server_close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._relay.accept()
            except OSError:
                return
            self._sockets.append(near)
            host, _, port = self._address.rpartition(":")
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:
                near.close()
                continue
            self._sockets.append(far)
            flip = self._flipped_at if self.connections == 0 else None
            self.connections += 1
            for work in (
                lambda n=near, f=far, flip=flip: self._forward(n, f, flip),
                lambda n=near, f=far: self._back(f, n),
            ):
                thread = threading.Thread(target=work)
                self._threads.append(thread)
                thread.start()

    def _forward(self, near: socket.socket, far: socket.socket, flip: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := near.recv(CHUNK):
                if flip is not None and passed <= flip < passed + len(data):
                    at = flip - passed
                    data = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
                passed += len(data)
                if self._blocked_after is not None and passed > self._blocked_after:
                    self.blocked.set()
                    self._opened.wait()
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(CHUNK):
                near.sendall(data)
            near.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def road_to(
    target: Worker, *, blocked_after: int | None = None, flipped_at: int | None = None
) -> Iterator[Road]:
    road = Road(target, blocked_after, flipped_at)
    try:
        yield road
    finally:
        road.close()
