"""Real services for tests: servers of our own, from the machine's programs, on free ports.

A machine's standard ports are left alone: what runs there belongs to somebody else.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

START_S = 60.0
_databases = count()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _program(name: str) -> str:
    """The path of a server's program; Debian keeps PostgreSQL's out of PATH."""
    found = shutil.which(name)
    if found is None:
        places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
        found = str(places[0]) if places else None
    assert found is not None, f"{name} is not installed: run .ci/services"
    return found


class ServerProcess:
    """A service in a process of its own that a test may stop, kill and start again on the same port."""

    def __init__(self, command: list[str], port: int, log: Path, user: str | None = None) -> None:
        self._command = command
        self._log = log
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    def start(self) -> None:
        """Returns once the port takes connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=self._user
            )
        deadline = time.monotonic() + START_S
        while not self.answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, f"{self._command[0]} does not start: {self._log.read_text()}"
            time.sleep(0.02)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def stop(self, how: int = signal.SIGINT) -> None:
        """Both servers leave at once on SIGINT, whoever is connected. Stopping twice is fine."""
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.wait(START_S)
        self._process = None


class PostgreSQL(ServerProcess):
    """What it commits survives a killed server; a power cut with ``fsync`` only, which no test needs."""

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        # The server refuses to run as root.
        user = "postgres" if os.geteuid() == 0 else None
        data = folder / "data"
        data.mkdir()
        if user is not None:
            owner = pwd.getpwnam(user)
            for place in (folder, data):
                os.chown(place, owner.pw_uid, owner.pw_gid)
        made = subprocess.run(
            [_program("initdb"), "-D", str(data), "-U", "heddle", "-A", "trust", "-E", "UTF8", "--no-sync"],
            user=user,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        port = _free_port()
        command = [_program("postgres"), "-D", str(data), "-p", str(port), "-k", "", "-h", "127.0.0.1"]
        if not fsync:
            command += ["-c", "fsync=off", "-c", "full_page_writes=off"]
        super().__init__(command, port, folder / "log", user)

    def url(self, database: str) -> str:
        return f"postgresql://heddle@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test_{next(_databases)}"
        subprocess.run(
            [_program("createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "heddle", name],
            check=True,
            capture_output=True,
        )
        return self.url(name)


class Redis(ServerProcess):
    """A Redis that keeps nothing on disk: started again, it is empty."""

    def __init__(self, folder: Path) -> None:
        port = _free_port()
        command = [_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(folder)]
        super().__init__(command, port, folder / "log")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


@pytest.fixture(scope="session")
def service_folder() -> Iterator[Path]:
    """Not pytest's own: another user's server has to reach it."""
    with tempfile.TemporaryDirectory(prefix="heddle-services-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


_Server = TypeVar("_Server", bound=ServerProcess)


@contextmanager
def _running(kind: Callable[[Path], _Server], parent: Path) -> Iterator[_Server]:
    """A server of this kind in a folder of its own below ``parent``."""
    server = kind(Path(tempfile.mkdtemp(dir=parent)))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgresql(service_folder: Path) -> Iterator[PostgreSQL]:
    """One server for all tests; each takes a ``new_database()``."""
    with _running(PostgreSQL, service_folder) as server:
        yield server


@pytest.fixture
def own_postgresql(service_folder: Path) -> Iterator[PostgreSQL]:
    """A server that the test may stop and start."""
    with _running(PostgreSQL, service_folder) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(service_folder: Path) -> Iterator[Redis]:
    """One server for all tests; each uses keys of its own."""
    with _running(Redis, service_folder) as server:
        yield server


@pytest.fixture
def own_redis(service_folder: Path) -> Iterator[Redis]:
    """A server that the test may stop and start; it comes back empty."""
    with _running(Redis, service_folder) as server:
        yield server
