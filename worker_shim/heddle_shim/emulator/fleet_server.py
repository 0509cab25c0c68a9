"""Serves many emulated workers, one port each, from one process and one event loop."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from heddle_shim.emulator.clock import Clock, ScaledClock
from heddle_shim.emulator.http import worker_app
from heddle_shim.emulator.timing import StepCosts, TimingProfile
from heddle_shim.emulator.tokens import TokenMemo
from heddle_shim.emulator.worker import EmulatedWorker, WorkerSettings
from heddle_shim.emulator.worker_migrations import WorkerMigrations

KEEP_ALIVE_S: Final = 5
"""Idle connections are closed after this, as SGLang's uvicorn does; clients must cope with it."""


class PortTakenError(OSError):
    """A port of the workers cannot be listened on."""


def build_workers(
    degrees: Sequence[int],
    *,
    settings: WorkerSettings,
    kv_tokens: int | None,
    profile: TimingProfile,
    speed: float = 1.0,
    clock: Clock | None = None,
) -> list[EmulatedWorker]:
    """One worker per MP degree; they share a clock and the memory of tokenised texts.

    Without ``kv_tokens`` each has the KV pool that fits its GPUs. Without ``clock`` time runs at ``speed``.
    """
    shared = clock if clock is not None else ScaledClock(speed)
    memo = TokenMemo()
    workers: list[EmulatedWorker] = []
    for degree in degrees:
        costs = StepCosts(profile, degree)
        pool = kv_tokens if kv_tokens is not None else costs.kv_capacity
        own = replace(settings, engine=replace(settings.engine, max_total_num_tokens=pool))
        workers.append(EmulatedWorker(own, costs, shared, memo))
    return workers


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process has one handler for all workers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one.

    Raises:
        PortTakenError: the address cannot be bound; the message names it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PortTakenError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Base URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class FleetServer:
    """``async with`` serves the workers; on leaving, requests in flight are aborted and ports closed."""

    def __init__(self, workers: Sequence[EmulatedWorker], host: str, base_port: int) -> None:
        """Binds the ports at once: worker i on ``base_port + i``, or each on a free one if ``base_port`` is
        0.
        """
        self.workers: Final = tuple(workers)
        self._listeners: list[socket.socket] = []
        try:
            for index in range(len(workers)):
                self._listeners.append(listen(host, base_port + index if base_port else 0))
        except PortTakenError:
            self._close_listeners()
            raise
        self.urls: Final = tuple(url_of(listener) for listener in self._listeners)
        self._moves = [
            WorkerMigrations(worker.shim_side, worker.driver.clock, worker.engine.costs.transfer_token, host)
            for worker in workers
        ]
        self._servers = [
            _QuietServer(_config(worker_app(worker, moves.routes)))
            for worker, moves in zip(workers, self._moves, strict=True)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "FleetServer":
        for moves in self._moves:
            await moves.start()
        for server, listener in zip(self._servers, self._listeners, strict=True):
            self._tasks.append(asyncio.create_task(server.serve(sockets=[listener])))
        while not all(server.started for server in self._servers):
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.driver.abort("")
        for moves in self._moves:
            await moves.close()
        for server in self._servers:
            server.should_exit = True
        await asyncio.gather(*self._tasks)
        for worker in self.workers:
            worker.driver.close()
        self._close_listeners()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
        server_header=False,
        proxy_headers=False,
    )
