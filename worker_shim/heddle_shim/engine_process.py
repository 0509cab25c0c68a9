"""One SGLang server as a child process: started, watched, started again with back-off, stopped cleanly.

    starting ─▶ up ─▶ (ended by itself) ─▶ backing off ─▶ starting ...      stop() from anywhere ─▶ stopped

The server runs in a process group of its own. SIGTERM goes to its launcher alone, which stops its children in
order; what is left of the group after the grace is killed. On Linux the server ends when the shim does.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 60.0
STEADY_S: Final = 300.0
"""An engine that lived for so long starts anew with the first delay."""
STOP_GRACE_S: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class EngineProcess:
    """``on_start`` is called before each start, with the number of the start from 1; then ``command``, which
    says this start's command line.
    """

    def __init__(
        self,
        command: Callable[[], Sequence[str]],
        environment: Mapping[str, str],
        log_file: Path | None,
        on_start: Callable[[int], None],
        first_delay_s: float = FIRST_DELAY_S,
    ) -> None:
        self._command = command
        self._environment = dict(environment)
        self._log_file = log_file
        self._on_start = on_start
        self._first_delay_s = first_delay_s
        self._process: Process | None = None
        self._stopping = False
        self.starts = 0
        self._ends = 0
        self._end = asyncio.Event()
        self.last_exit: str | None = None
        """How the last one ended, for people."""

    @property
    def pid(self) -> int | None:
        """None while no server runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def run(self) -> None:
        """Keeps a server running until ``stop``."""
        delay = self._first_delay_s
        while not self._stopping:
            started = time.monotonic()
            await self._start()
            assert self._process is not None
            code = await self._process.wait()
            if self._stopping:
                break
            self._end_group(signal.SIGKILL)
            self.last_exit = _words(code)
            self._ends += 1
            self._end.set()
            if time.monotonic() - started > STEADY_S:
                delay = self._first_delay_s
            log.error("the engine %s; it is started again in %g s", self.last_exit, delay)
            await asyncio.sleep(delay)
            delay = min(LONGEST_DELAY_S, delay * 2)

    async def ended(self, before: int) -> None:
        """Returns once more than ``before`` servers have ended by themselves."""
        while self._ends <= before:
            self._end.clear()
            await self._end.wait()

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM, then SIGKILL for what has not ended. Safe to repeat."""
        self._stopping = True
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await process.wait()
        self._end_group(signal.SIGKILL)
        await process.wait()

    async def _start(self) -> None:
        self.starts += 1
        self._on_start(self.starts)
        command = tuple(self._command())
        output = self._log_file.open("ab") if self._log_file is not None else None
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
            )
        finally:
            if output is not None:
                output.close()
        log.info("engine started, pid %d: %s", self._process.pid, " ".join(command)[:2000])

    def _end_group(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def end_with_parent() -> None:
    """For ``preexec_fn``, on Linux: SIGTERM when the parent ends, however that came about."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _words(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
