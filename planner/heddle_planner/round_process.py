"""Plans of live trajectories are made in a process of their own, behind everything else on the machine.

A rehearsal keeps a processor busy for seconds. In the service's process its Python parts would hold up
forecasts, which have a tool gap's time; at its priority it would take the processor of gateway and engines.

Invariants: one round at a time; the process ends with the service, however that ends; a process that died
costs one round another start.
"""

import asyncio
import ctypes
import os
import signal
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import Final

from heddle_contracts.planning import Plan, PlanReason

from heddle_planner.round import Window, plan_round

NICENESS: Final = 10
"""Gets about a tenth of a processor that others want as well, all of one that nobody wants."""
# linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1


class RoundProcess:
    """``warm_up`` before the first plan, ``close`` at the end."""

    def __init__(self) -> None:
        self._pool = _pool()
        self._pid: Future[int] | None = None

    def warm_up(self) -> None:
        """Starts the process, so that the first plan does not wait for it; returns at once."""
        self._pid = self._pool.submit(os.getpid)

    async def plan(self, window: Window, now: float, *, reason: PlanReason, ttl_s: float) -> Plan:
        """See ``plan_round``. Raises RoundError."""
        loop = asyncio.get_running_loop()
        pool = self._pool
        try:
            return await loop.run_in_executor(pool, _plan, window, now, reason, ttl_s)
        except BrokenProcessPool:
            if self._pool is pool:
                pool.shutdown(wait=False)
                self._pool = _pool()
                self.warm_up()
            return await loop.run_in_executor(self._pool, _plan, window, now, reason, ttl_s)

    def close(self) -> None:
        """What is being planned is given up. Safe to repeat."""
        pid, self._pid = self._pid, None
        if pid is not None and pid.done() and pid.exception() is None:
            with suppress(ProcessLookupError):
                os.kill(pid.result(), signal.SIGTERM)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _pool() -> ProcessPoolExecutor:
    # Not forked: the service has threads, and a model loaded.
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_stand_back)


def _stand_back() -> None:
    # A Ctrl-C in a terminal reaches the whole group; the service ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.nice(NICENESS)


def _plan(window: Window, now: float, reason: PlanReason, ttl_s: float) -> Plan:
    return plan_round(window, now, reason=reason, ttl_s=ttl_s)
