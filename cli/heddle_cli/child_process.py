"""A part of Heddle as a child process: started, listened to, stopped.

A child runs in a session of its own, so that a Ctrl-C in the terminal reaches `heddle up` alone, which stops
its children in order. On Linux a child also ends when its parent does, however that came about.
"""

import asyncio
import ctypes
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from typing import Any

from heddle_cli.exit_codes import CommandFailed, Exit

# linux/prctl.h
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """One running `heddle` sub-command."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self._process = process
        self.ended = asyncio.create_task(process.wait(), name=f"{name} ends")

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], *, listens: bool = False) -> "Child":
        """Starts `heddle name arguments...`. ``listens``: its standard output is read, not shown."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "heddle_cli",
            name,
            *arguments,
            stdin=DEVNULL,
            stdout=PIPE if listens else None,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        return cls(name, process)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number where one killed it."""
        return self._process.returncode

    async def ready_line(self, timeout_s: float) -> dict[str, Any]:
        """The JSON object with "ready" that the child prints; raises CommandFailed if it does not."""
        assert self._process.stdout is not None, "started without listens"
        try:
            async with asyncio.timeout(timeout_s):
                async for line in self._process.stdout:
                    if line.startswith(b"{"):
                        said: dict[str, Any] = json.loads(line)
                        if said.get("ready"):
                            return said
        except TimeoutError:
            raise CommandFailed(Exit.FAILED, f"{self.name} was not ready within {timeout_s:g} s") from None
        except ValueError as error:
            raise CommandFailed(Exit.FAILED, f"{self.name} said what nobody expects: {error}") from error
        await self.ended
        raise CommandFailed(Exit.FAILED, f"{self.death()}")

    def death(self) -> str:
        """How it ended, for people."""
        code = self.exit_code
        if code is not None and code < 0:
            return f"{self.name} was killed by {signal.Signals(-code).name}"
        return f"{self.name} ended with exit code {code}"

    async def stop(self, grace_s: float) -> None:
        """SIGTERM; SIGKILL for what has not ended after ``grace_s``."""
        if self.exit_code is None:
            self._process.terminate()
            _, late = await asyncio.wait({self.ended}, timeout=grace_s)
            if late:
                print(f"heddle: {self.name} does not end, killing it", file=sys.stderr)
                self._process.kill()
        await self.ended

    def kill(self) -> None:
        if self.exit_code is None:
            self._process.kill()
