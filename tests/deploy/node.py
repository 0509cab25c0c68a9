"""Pods of an overlay as processes of this machine, each pod at a loopback address of its own, so that every
port stays what the manifests say. Services are relays to the pods they select, at addresses of theirs.

What a container would see is written over in its command and environment and nowhere else: its pod's address
for 0.0.0.0, folders of the test for its volumes, addresses for the names that the cluster's DNS knows.
"""

import asyncio
import os
import random
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.deploy.kustomization import Resource, containers, pod_of
from tests.deploy.manifests import Overlay, command_of, port_of
from tests.system.conftest import wait_until

CHUNK: Final = 65536
STARTUP: Final = ("startupProbe", "readinessProbe")


@dataclass
class Container:
    """One process. ``probe`` asks what the kubelet would."""

    name: str
    spec: Resource
    command: list[str]
    environment: Mapping[str, str]
    ip: str
    folder: Path
    process: Process | None = None

    async def start(self) -> None:
        """Again after a kill: what its volumes hold is still there."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
        command = self.command
        if command[0] == "heddle":
            command = [sys.executable, "-m", "heddle_cli", *command[1:]]
        elif command[0] == "redis-server":
            command = [*command, "--bind", self.ip]  # In a container it has all addresses for itself.
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=inherited | self.environment,
            )

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def url(self, port: str) -> str:
        return f"http://{self.ip}:{port_of(self.spec, port)}"

    async def probe(self, kind: str) -> bool:
        """Whether the probe succeeds; True where there is none."""
        probe = self.spec.get(kind)
        assert self.process is not None
        assert self.process.returncode is None, self.log.read_text()
        if probe is None:
            return True
        if "exec" in probe:
            asked = await asyncio.create_subprocess_exec(
                *probe["exec"]["command"],
                *("-h", self.ip),
                stdout=DEVNULL,
                stderr=DEVNULL,
                env=os.environ | self.environment,
            )
            return await asked.wait() == 0
        path, url = probe["httpGet"]["path"], self.url(probe["httpGet"]["port"])
        try:
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10.0) as http:
                return (await http.get(path)).is_success
        except httpx.TransportError:
            return False

    async def listens(self) -> bool:
        """On each port that the manifest names."""
        for port in self.spec.get("ports", []):
            try:
                _, writer = await asyncio.open_connection(self.ip, port["containerPort"])
            except OSError:
                return False
            writer.close()
            await writer.wait_closed()
        return True

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            return await self.process.wait()


@dataclass
class Pod:
    name: str
    ip: str
    owner: Resource
    containers: list[Container] = field(default_factory=list)

    def __getitem__(self, name: str) -> Container:
        [found] = [one for one in self.containers if one.name == name]
        return found

    async def start(self) -> None:
        """One container after another: a sidecar serves before the next one begins."""
        for one in self.containers:
            await one.start()
            await wait_until(lambda one=one: one.probe("startupProbe"), f"{self.name}: {one.name} to start")

    async def ready(self) -> bool:
        return all([await one.probe("readinessProbe") for one in self.containers])

    async def delete(self) -> list[int]:
        """As Kubernetes does: sidecars end last. The exit codes, in that order."""
        return [await one.stop() for one in reversed(self.containers)]


class Node:
    """``outside``: (host, port) of a Service's pods that run elsewhere. Leaving it ends what was started."""

    def __init__(self, overlay: Overlay, folder: Path, outside: Mapping[str, tuple[str, int]]) -> None:
        self._overlay = overlay
        self._folder = folder
        self._outside = dict(outside)
        # One network a test: others may run beside it.
        network = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
        self._addresses = (f"{network}.{number}" for number in range(1, 255))
        self._names: dict[str, str] = {}
        self.pods: list[Pod] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Node":
        for service in self._overlay.of_kind("Service"):
            if service["spec"].get("clusterIP") != "None":
                await self._serve(service)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(one.stop() for pod in self.pods for one in pod.containers if one.process))
        await self._stack.aclose()

    def address(self, name: str) -> str:
        """Of a Service."""
        return self._names[name]

    def of(self, owner: str) -> list[Pod]:
        return [pod for pod in self.pods if pod.owner["metadata"]["name"] == owner]

    def plan(self, owner: Resource, replicas: int) -> list[Pod]:
        """Its pods, with addresses and names that the others can look up; none runs yet."""
        name = owner["metadata"]["name"]
        pods = [Pod(f"{name}-{number}", next(self._addresses), owner) for number in range(replicas)]
        for pod in pods:
            if owner["kind"] == "StatefulSet":
                self._names[f"{pod.name}.{owner['spec']['serviceName']}"] = pod.ip
        self.pods += pods
        return pods

    def make(self, pod: Pod) -> None:
        """Its containers, once all names are known."""
        spec = pod_of(pod.owner)
        assert spec is not None
        folder = self._folder / pod.name
        for container in containers(pod.owner):
            mounts = {one["mountPath"]: folder / one["name"] for one in container.get("volumeMounts", [])}
            for place in (folder, *mounts.values()):
                place.mkdir(parents=True, exist_ok=True)
            told = self._overlay.environment(pod.owner, container, pod.name, pod.ip)
            command = command_of(container, told)
            pod.containers.append(
                Container(
                    container["name"],
                    container,
                    [self._written_over(one, pod, mounts) for one in command],
                    {name: self._written_over(value, pod, mounts) for name, value in told.items()},
                    pod.ip,
                    mounts.get("/data", folder),
                )
            )

    def _written_over(self, text: str, pod: Pod, mounts: Mapping[str, Path]) -> str:
        text = text.replace("0.0.0.0", pod.ip)
        for path, folder in mounts.items():
            if text == path or text.startswith(f"{path}/"):
                text = f"{folder}{text.removeprefix(path)}"
        for name in sorted(self._names, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", self._names[name], text)
        return text

    # ---------------------------------------------------------------- services

    async def _serve(self, service: Resource) -> None:
        name, spec = service["metadata"]["name"], service["spec"]
        address = self._names[name] = next(self._addresses)
        for port in spec["ports"]:
            accept = self._relay(lambda port=port: self._behind(name, spec["selector"], port["targetPort"]))
            server = await asyncio.start_server(accept, address, port["port"])
            self._stack.callback(server.close)

    def _behind(self, name: str, selector: Mapping[str, str], port: str) -> list[tuple[str, int]]:
        """Who may be asked, in the order in which it is tried."""
        if name in self._outside:
            return [self._outside[name]]
        found = [
            (pod.ip, port_of(one.spec, port))
            for pod in self.pods
            if selector.items() <= pod.owner["spec"]["template"]["metadata"]["labels"].items()
            for one in pod.containers
            if port in {named["name"] for named in one.spec.get("ports", [])}
        ]
        return random.sample(found, len(found))

    def _relay(self, backends: Callable[[], list[tuple[str, int]]]) -> Any:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for far_reader, far_writer in _first(backends()):
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
                return
            writer.close()

        return accept


async def _first(backends: list[tuple[str, int]]) -> Any:
    """The first that takes a connection."""
    for host, port in backends:
        try:
            yield await asyncio.open_connection(host, port)
        except OSError:
            continue
        return


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def probes(pod: Pod) -> Iterator[tuple[Container, str]]:
    """Each probe that the pod's containers have."""
    for one in pod.containers:
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            if kind in one.spec:
                yield one, kind
