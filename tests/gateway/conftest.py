"""Fixtures of the gateway's tests: fake workers over real sockets, and whole gateways. Their parts are in
``kit/``.
"""

import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from .kit.fake_worker import FakeWorker
from .kit.running_gateway import NewGateway, RunningGateway, gateways
from .kit.waiting import wait_until


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """``await until(lambda: ..., "what")``: waits, bounded, until it holds."""
    return wait_until


@pytest.fixture
async def new_worker() -> AsyncIterator[Callable[[], Awaitable[FakeWorker]]]:
    workers: list[FakeWorker] = []

    async def start() -> FakeWorker:
        worker = FakeWorker()
        await worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        await worker.stop()


@pytest.fixture
async def worker(new_worker: Callable[[], Awaitable[FakeWorker]]) -> FakeWorker:
    return await new_worker()


@pytest.fixture
async def new_gateway(tmp_path: Path) -> AsyncIterator[NewGateway]:
    """``await new_gateway(*workers, **settings)``: serves, with the given fake workers active."""
    async with gateways(tmp_path) as start:
        yield start


@pytest.fixture
async def gateway(new_gateway: NewGateway, worker: FakeWorker) -> AsyncIterator[RunningGateway]:
    """One gateway with one worker. Afterwards nothing may be live and the core must be sound."""
    running = await new_gateway(worker)
    yield running
    await wait_until(running.at_rest, "all steps to end", running.says)
    assert running.parts.driver.audit() == []


@pytest.fixture
def no_more_files() -> Callable[[], AbstractContextManager[None]]:
    """``with no_more_files():`` nothing in this process opens a file or a socket."""

    @contextmanager
    def limit() -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_unused = os.dup(0)
        os.close(lowest_unused)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_unused, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return limit
