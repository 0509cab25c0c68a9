"""What `kubectl apply -k` sends, as far as deploy/kubernetes uses kustomize: resources, namespace, images,
and ConfigMaps and Secrets of files. Names get no hash. A field that is not known here is refused.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

KNOWN: Final = {
    "apiVersion",
    "kind",
    "namespace",
    "resources",
    "configMapGenerator",
    "secretGenerator",
    "images",
}
WITHOUT_NAMESPACE: Final = {"Namespace"}

Resource = dict[str, Any]


def render(folder: Path) -> list[Resource]:
    """The resources of a kustomization. Raises ValueError for what is not understood."""
    spec: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := spec.keys() - KNOWN:
        raise ValueError(f"{folder}: {sorted(unknown)} is not rendered here")
    found: list[Resource] = []
    for name in spec.get("resources", []):
        place = folder / name
        found += render(place) if place.is_dir() else documents(place)
    for one in spec.get("configMapGenerator", []):
        found.append(_generated("ConfigMap", one["name"], {"data": _read(folder, one["envs"])}))
    for one in spec.get("secretGenerator", []):
        read = _read(folder, one["envs"])
        data = {name: base64.b64encode(value.encode()).decode() for name, value in read.items()}
        found.append(_generated("Secret", one["name"], {"data": data, "type": "Opaque"}))
    tags = {one["name"]: one["newTag"] for one in spec.get("images", [])}
    for resource in found:
        if resource["kind"] not in WITHOUT_NAMESPACE and "namespace" in spec:
            resource["metadata"]["namespace"] = spec["namespace"]
        for container in containers(resource):
            if container["image"] in tags:
                container["image"] += f":{tags[container['image']]}"
    return found


def documents(file: Path) -> list[Resource]:
    """Those of one file. What YAML's aliases share is copied."""
    return [json.loads(json.dumps(one)) for one in yaml.safe_load_all(file.read_text())]


def pod_of(resource: Resource) -> Resource | None:
    """The pod's specification, where the resource has pods."""
    if resource["kind"] not in {"Deployment", "StatefulSet"}:
        return None
    spec: Resource = resource["spec"]["template"]["spec"]
    return spec


def containers(resource: Resource) -> list[Resource]:
    """All of them, in the order they start: those of its init phase first."""
    pod = pod_of(resource)
    return [] if pod is None else [*pod.get("initContainers", []), *pod["containers"]]


def _generated(kind: str, name: str, body: dict[str, Any]) -> Resource:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **body}


def _read(folder: Path, files: list[str]) -> dict[str, str]:
    return dict(line for file in files for line in _lines(folder / file))


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    for line in file.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name, value
