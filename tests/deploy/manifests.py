"""deploy/kubernetes as a cluster would see it: overlays with their Secrets, and what a container is given."""

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.deploy.dockerfile import ROOT, targets
from tests.deploy.kustomization import Resource, containers, pod_of, render

KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
OVERLAYS: Final = ("emulated", "sglang")
STORES: Final = {
    "HEDDLE_DATABASE": "postgresql://heddle:secret@database.example/heddle",
    "HEDDLE_REDIS_URL": "rediss://:secret@redis.example:6379/0",
}
OURS: Final = ("heddle-gateway", "heddle-planner", "heddle-worker", "heddle-sglang")
TARGETS: Final = targets()


def with_secrets(folder: Path) -> Path:
    """A copy of deploy/kubernetes below ``folder``, with the Secrets that make-secrets writes."""
    copy = folder / "kubernetes"
    shutil.copytree(KUBERNETES, copy, ignore=shutil.ignore_patterns("secrets.env"))
    for overlay in OVERLAYS:
        make_secrets(copy, overlay).check_returncode()
    return copy


def make_secrets(folder: Path, overlay: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], **STORES}
    return subprocess.run(
        [str(folder / "make-secrets"), overlay], env=environment, capture_output=True, text=True, check=False
    )


def key_of(container: Resource) -> str:
    """The image without its tag."""
    name: str = container["image"].partition(":")[0]
    return name


@dataclass(frozen=True)
class Overlay:
    """``resources``: all of it, rendered."""

    name: str
    resources: list[Resource]

    @classmethod
    def rendered(cls, kubernetes: Path, name: str) -> "Overlay":
        return cls(name, render(kubernetes / "overlays" / name))

    def of_kind(self, *kinds: str) -> list[Resource]:
        return [one for one in self.resources if one["kind"] in kinds]

    def named(self, kind: str, name: str) -> Resource:
        [found] = [one for one in self.of_kind(kind) if one["metadata"]["name"] == name]
        return found

    def with_pods(self) -> list[Resource]:
        return [one for one in self.resources if pod_of(one) is not None]

    def ours(self) -> list[tuple[Resource, Resource]]:
        """Each container that runs an image of Heddle, with its Deployment or StatefulSet."""
        return [
            (owner, one) for owner in self.with_pods() for one in containers(owner) if key_of(one) in OURS
        ]

    def selected(self, selector: Mapping[str, str]) -> list[Resource]:
        """Whose pods have these labels."""
        return [
            one
            for one in self.with_pods()
            if selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
        ]

    def environment(self, owner: Resource, container: Resource, pod: str, ip: str) -> dict[str, str]:
        """What the container of the pod of this name and address sees, without the image's own."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            found |= self.named("ConfigMap", source["configMapRef"]["name"])["data"]
        for variable in container.get("env", []):
            found[variable["name"]] = self._value(variable, owner, pod, ip, found)
        return found

    def _value(self, variable: Any, owner: Resource, pod: str, ip: str, known: Mapping[str, str]) -> str:
        if "value" in variable:
            return expanded(variable["value"], known)
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            secret = self.named("Secret", source["secretKeyRef"]["name"])
            return base64.b64decode(secret["data"][source["secretKeyRef"]["key"]]).decode()
        return {
            "metadata.name": pod,
            "metadata.namespace": str(owner["metadata"]["namespace"]),
            "status.podIP": ip,
        }[source["fieldRef"]["fieldPath"]]


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """With $(NAME) as the kubelet fills it in; a name that nobody set stays, and is a mistake."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], text)


def command_of(container: Resource, environment: Mapping[str, str]) -> list[str]:
    """What runs: the manifest's command and arguments, or the image's in their place."""
    stage = TARGETS.get(key_of(container).removeprefix("heddle-"))
    command = container.get("command") or (stage.words("ENTRYPOINT") if stage is not None else [])
    arguments = container.get("args") or (stage.words("CMD") if stage is not None else [])
    return [*command, *(expanded(one, environment) for one in arguments)]


def port_of(container: Resource, port: int | str) -> int:
    """The number of a port that is named, or given."""
    if isinstance(port, int):
        return port
    [found] = [one["containerPort"] for one in container["ports"] if one["name"] == port]
    return int(found)
