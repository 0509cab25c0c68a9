"""How an engine comes to run on some GPUs of this machine: emulated here, or SGLang with its shim."""

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import httpx

from heddle_shim.emulator.clock import Clock
from heddle_shim.emulator.fleet_server import FleetServer, build_workers
from heddle_shim.emulator.timing import TimingProfile
from heddle_shim.emulator.worker import WorkerSettings
from heddle_shim.engine_flags import Options
from heddle_shim.engine_process import end_with_parent

ADMIN_KEY_VARIABLE: Final = "HEDDLE_ADMIN_KEYS"
"""Of `heddle shim --gateway-key`."""
POLL_S: Final = 0.5
STOP_S: Final = 60.0


class LaunchFailed(Exception):
    """The engine did not come up; the message says how it ended."""


class Running(Protocol):
    """An engine that was launched."""

    @property
    def url(self) -> str: ...
    @property
    def shim_url(self) -> str | None: ...
    @property
    def registers_itself(self) -> bool:
        """Its own shim tells the gateways of it."""

    async def ready(self) -> None:
        """Returns when it serves. Raises LaunchFailed."""

    async def stop(self) -> None:
        """Ends it, whatever it does. Safe to repeat."""


class Launcher(Protocol):
    async def launch(self, degree: int, gpus: Sequence[int]) -> Running:
        """Raises LaunchFailed."""


class _Emulated:
    registers_itself = False

    def __init__(self, server: FleetServer) -> None:
        self._server = server
        self._is_up = True
        self.url = server.urls[0]
        self.shim_url = server.urls[0]

    async def ready(self) -> None:
        return

    async def stop(self) -> None:
        if self._is_up:
            self._is_up = False
            await self._server.__aexit__()


class EmulatedLauncher:
    """Engines in this process; they share a clock. ``start_s``: real seconds that a start takes."""

    def __init__(
        self,
        settings: WorkerSettings,
        profile: TimingProfile,
        clock: Clock,
        host: str,
        kv_tokens: int | None = None,
        start_s: float = 0.0,
    ) -> None:
        self._settings = settings
        self._profile = profile
        self._clock = clock
        self._host = host
        self._kv_tokens = kv_tokens
        self._start_s = start_s

    async def launch(self, degree: int, gpus: Sequence[int]) -> Running:
        workers = build_workers(
            [degree],
            settings=self._settings,
            kv_tokens=self._kv_tokens,
            profile=self._profile,
            clock=self._clock,
        )
        await asyncio.sleep(self._start_s)
        server = FleetServer(workers, self._host, 0)
        await server.__aenter__()
        return _Emulated(server)


class _Shimmed:
    registers_itself = True

    def __init__(self, process: Process, url: str, shim_url: str, start_timeout_s: float) -> None:
        self._process = process
        self._start_timeout_s = start_timeout_s
        # Keeps the pipe from filling up: the shim says one line and then hardly anything.
        self._reading = asyncio.create_task(_drain(process), name="shim's output")
        self.url = url
        self.shim_url = shim_url

    async def ready(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            try:
                async with asyncio.timeout(self._start_timeout_s):
                    while not await self._is_ready(http):
                        if self._process.returncode is not None:
                            raise LaunchFailed(f"its shim ended with code {self._process.returncode}")
                        await asyncio.sleep(POLL_S)
            except TimeoutError:
                raise LaunchFailed(f"not ready after {self._start_timeout_s:g} s; see its log") from None

    async def _is_ready(self, http: httpx.AsyncClient) -> bool:
        with contextlib.suppress(httpx.TransportError, ValueError):
            answer = await http.get(f"{self.shim_url}/shim/v1/report")
            return answer.is_success and answer.json().get("engine") == "ready"
        return False

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


async def _drain(process: Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(65536):
        pass


class ShimLauncher:
    """One `heddle shim --launch` a child process, which starts and watches its SGLang.

    ``options``: SGLang's own, without degree and port. ``shim_options``: passed to the shim as they are
    (``--gateway``, ``--advertise``, ``--engine-command``, ...). Engine of the lowest GPU g listens on
    ``base_port + g`` of ``listen``, unless the options say another address. ``gateway_key``: what the shims
    register with. ``devices``: what CUDA calls the host's GPUs, from the first on.
    """

    def __init__(
        self,
        options: str,
        shim_options: Sequence[str],
        *,
        listen: str,
        gateway_key: str | None,
        base_port: int,
        log_folder: Path,
        start_timeout_s: float,
        devices: Sequence[str],
    ) -> None:
        self._devices = tuple(devices)
        self._options = options
        self._shim_options = tuple(shim_options)
        self._listen = listen
        self._gateway_key = gateway_key
        self._base_port = base_port
        self._log_folder = log_folder
        self._start_timeout_s = start_timeout_s

    async def launch(self, degree: int, gpus: Sequence[int]) -> Running:
        port = self._base_port + min(gpus)
        engine = f"{self._options} --tp {degree} --port {port}"
        if "--host" not in Options.parse(self._options):
            engine += f" --host {self._listen}"
        # Not as an option, which all users of the machine could read.
        keys = {ADMIN_KEY_VARIABLE: self._gateway_key} if self._gateway_key else {}
        visible = ",".join(self._devices[gpu] for gpu in gpus)
        with (self._log_folder / f"engine-{port}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "heddle_cli", "shim", "--launch", engine, "--port", "0"),
                *self._shim_options,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": visible} | keys,
                # A host that is killed does not leave engines on GPUs that the next one takes for free.
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
            )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._start_timeout_s):
                said = json.loads(await process.stdout.readline())
            return _Shimmed(process, said["engine"], said["shim"], self._start_timeout_s)
        except (ValueError, KeyError, TimeoutError) as error:
            if process.returncode is None:
                process.kill()
            await process.wait()
            raise LaunchFailed(f"its shim does not start; see {log.name}") from error
