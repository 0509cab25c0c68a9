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
from pathlib import Path
from typing import Any

from heddle_cli.exit_codes import CommandFailed, Exit

# linux/prctl.h
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """One running `heddle` sub-command."""

    def __init__(self, name: str, process: Process, arguments: Sequence[str] = ()) -> None:
        self.name = name
        self._process = process
        self._arguments = tuple(arguments)
        self._url = ""
        self.ended = asyncio.create_task(process.wait(), name=f"{name} ends")
        self._relay: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], *, listens: bool = False, log: Path | None = None
    ) -> "Child":
        """Starts `heddle name arguments...`.

        ``listens``: its standard output is read, not shown. ``log``: its standard error goes to this file.
        """
        stderr = None if log is None else log.open("wb")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "heddle_cli",
            name,
            *arguments,
            stdin=DEVNULL,
            stdout=PIPE if listens else None,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        if stderr is not None:
            stderr.close()  # the child has its own
        return cls(name, process, arguments)

    async def again(self) -> "Child":
        """The same command once more, on the port that a ready planner had."""
        port = ["--port", self._url.rpartition(":")[2]] if self._url else []
        return await Child.start(self.name, [*self._arguments, *port])

    @property
    def pid(self) -> int:
        return self._process.pid

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
                            self._url = str(said.get(self.name, ""))
                            # The rest is for people; left unread it would block the child some day.
                            self._relay = asyncio.create_task(self._relay_output())
                            return said
        except TimeoutError:
            raise CommandFailed(Exit.FAILED, f"{self.name} was not ready within {timeout_s:g} s") from None
        except ValueError as error:
            raise CommandFailed(Exit.FAILED, f"{self.name} said what nobody expects: {error}") from error
        await self.ended
        raise CommandFailed(Exit.FAILED, f"{self.death()}")

    async def _relay_output(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()

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
