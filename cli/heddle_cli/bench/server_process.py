"""A server of the benchmark: started, waited for, looked at, stopped."""

import json
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from heddle_cli.bench.conversation import first_step
from heddle_cli.bench.errors import BenchError
from heddle_cli.bench.process_usage import Usage, usage

_STOP_TIMEOUT_S = 15.0
_LOG_TAIL_LINES = 15


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """Runs `command` for the time of a `with` block; its output goes to a log file in `folder`.

    Entering waits until a chat completion through `url` succeeds: no arm is measured without a worker.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        url: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
        ready_timeout_s: float = 90.0,
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.url = url
        self._folder = folder
        self._env = env
        self._ready_timeout_s = ready_timeout_s
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ServerProcess":
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._env,
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def usage(self) -> Usage:
        """CPU time and peak memory so far."""
        return usage(self._running().pid)

    def check_alive(self) -> None:
        """Raises BenchError, with the end of the log, when the process has ended by itself."""
        code = self._running().poll()
        if code is not None:
            raise BenchError(f"{self.name} ended with {code}. The end of its log:\n{self._log_tail()}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BenchError(f"{self.name} was not started.")
        return self._process

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        last = "nothing listened"
        body = json.dumps(first_step(streamed=False)).encode()
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while time.monotonic() < deadline:
                self.check_alive()
                try:
                    answer = client.post(
                        f"{self.url}/v1/chat/completions",
                        content=body,
                        headers={"content-type": "application/json"},
                    )
                    if answer.status_code == httpx.codes.OK:
                        return
                    last = f"status {answer.status_code}: {answer.text[:200]}"
                except httpx.TransportError as error:
                    last = str(error)
                time.sleep(0.1)
        raise BenchError(
            f"{self.name} gave no answer within {self._ready_timeout_s:g} s ({last}). "
            f"The end of its log:\n{self._log_tail()}"
        )

    def _stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])
