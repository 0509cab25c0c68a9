"""What a gateway knows when a request gets no answer, as text: for whoever reads the failed test."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from heddle_gateway.lifetime import Gateway
from heddle_gateway.running_step import Run

from .fake_worker import FakeWorker

BEAT_S = 0.05


class Heartbeat:
    """Notes how long the event loop has stood still at most. One process hosts client, gateway and workers:
    on a machine that stalls, a request may be late without anybody's fault.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()
        self.longest_s = 0.0
        self._beat()

    def stop(self) -> None:
        self._handle.cancel()

    def _beat(self) -> None:
        now = self._loop.time()
        self.longest_s = max(self.longest_s, now - self._due)
        self._due = now + BEAT_S
        self._handle = self._loop.call_at(self._due, self._beat)


def state_of(parts: Gateway, workers: Sequence[FakeWorker], heartbeat: Heartbeat) -> str:
    """Counts, workers, each live step and where it waits, and where each task of the process does."""
    driver = parts.driver
    lines = [
        f"event loop stood still for {heartbeat.longest_s:.2f} s at most",
        f"core: { {name: count for name, count in driver.stats().items() if count} }",
        f"audit: {driver.audit()}",
        f"policy: {driver.policy()}",
        f"connections by worker (busy, idle): {parts.upstream.connections()}",
        f"planner: {parts.planning.stats()}",
        *(f"worker in the core: {view}" for view in driver.worker_views()),
        *(f"worker in the fleet: {view}" for view in parts.fleet.list()),
        *(
            f"fake worker {worker.url}: {len(worker.received)} steps received, {worker.open_lines} lines open"
            for worker in workers
        ),
        *(_told_of(run, parts) for run in parts.steps.running),
        *_tasks(),
    ]
    return "\n".join(lines)


def _told_of(run: Run, parts: Gateway) -> str:
    live = run.call.live
    return (
        f"step {run.ticket.step} of {run.call.who.trajectory_id!r}: decision {run.ticket.decision},"
        f" attempt {run.attempt}, last failure {run.last_failure!r}, client left {run.left},"
        f" trajectory {None if live is None else parts.driver.trajectory_view(live)}"
    )


def _tasks() -> Iterator[str]:
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        yield f"task {task.get_name()}: " + " > ".join(_awaits(task.get_coro()))


def _awaits(waiting: Any) -> Iterator[str]:
    """From a coroutine down to what it waits for. A task's own stack ends at its outermost coroutine."""
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            yield repr(waiting)[:200]
            return
        yield f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
