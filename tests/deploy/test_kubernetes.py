"""deploy/kubernetes without a cluster: valid by the API's schemas, true of the commands and settings there
are, hardened, and of one piece. Its processes are started in test_kubernetes_as_started.py.
"""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from heddle_cli.main import registered
from heddle_cli.part import load
from heddle_contracts.keys import first_key
from heddle_gateway.settings import load_settings
from heddle_shim.cli import parse_size
from heddle_shim.engine_flags import Options, engine_arguments
from heddle_shim.engine_process import STOP_GRACE_S

from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomization import Resource, containers, pod_of
from tests.deploy.manifests import (
    KUBERNETES,
    OVERLAYS,
    TARGETS,
    Overlay,
    command_of,
    key_of,
    make_secrets,
    port_of,
    with_secrets,
)

# Native sidecars are on from 1.29.
OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()
CLOSING_S = 30
"""What a gateway may take after its running steps: lease given back, links closed, history written."""
IP = "10.1.2.3"


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_secrets(tmp_path_factory.mktemp("deploy"))


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, kubernetes: Path) -> Overlay:
    return Overlay.rendered(kubernetes, request.param)


def started(overlay: Overlay) -> Iterator[tuple[Resource, Resource, list[str], dict[str, str]]]:
    """Each container of ours with its owner, its command and what it is told by the environment."""
    for owner, container in overlay.ours():
        pod = f"{owner['metadata']['name']}-0"
        environment = overlay.environment(owner, container, pod, IP)
        yield owner, container, command_of(container, environment), environment


# ---------------------------------------------------------------------- as the API takes it


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_resource_is_valid_by_the_schemas_of_kubernetes(overlay: Overlay, version: str) -> None:
    for resource in overlay.resources:
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_would_be_found(overlay: Overlay) -> None:
    gateway = overlay.named("Deployment", "heddle-gateway")
    gateway["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(gateway, NEWEST, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_renders_the_same(overlay: Overlay, kubernetes: Path) -> None:
    said = subprocess.run(
        ["kubectl", "kustomize", str(kubernetes / "overlays" / overlay.name)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for one in overlay.of_kind("ConfigMap"):
        said = re.sub(rf"\b({one['metadata']['name']})-[0-9a-z]{{10}}\b", r"\1", said)
    for secret in overlay.of_kind("Secret"):
        # It breaks long lines.
        for value in secret["data"].values():
            said = re.sub("(\n *)?".join(re.escape(letter) for letter in value), value, said)
    rendered = {_name(one): one for one in yaml.safe_load_all(said)}
    ours = {_name(one): one for one in overlay.resources}
    for secret in rendered.values():
        if secret["kind"] == "Secret":
            secret["data"] = {name: "".join(value.split()) for name, value in secret["data"].items()}
    assert rendered == ours


def _name(resource: Resource) -> tuple[str, str]:
    return resource["kind"], resource["metadata"]["name"]


# ---------------------------------------------------------------------- as the code takes it


def test_heddle_takes_every_command_and_knows_every_variable(overlay: Overlay) -> None:
    for _, container, command, environment in started(overlay):
        entry, name, *arguments = command
        assert entry == "heddle"
        parser = load(registered()[name])
        with parser.make_context(name, list(arguments)) as context:
            assert "cannot be loaded" not in (context.command.help or ""), name
        if name == "gateway":
            continue  # All of its variables are settings: below.
        known = {one.envvar for one in parser.params} | set(re.findall(r"HEDDLE_\w+", parser.help or ""))
        used = {one for one in environment if one.startswith("HEDDLE_")}
        assert used <= known, f"{container['name']}: {used - known}"


def test_an_option_that_heddle_does_not_have_would_be_found() -> None:
    parser = load(registered()["shim"])
    with pytest.raises(Exception, match="No such option: --drain-tiemout"):
        parser.make_context("shim", ["--drain-tiemout=600"])


def test_the_gateways_settings_exist(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    [(owner, container, command, environment)] = [
        one for one in started(overlay) if one[1]["name"] == "gateway"
    ]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(host=command[command.index("--host") + 1])
    # A pod's own name is what nobody else can look up.
    assert settings.peer_host == IP
    assert settings.peer_port == port_of(container, "peers")
    assert settings.namespace == owner["metadata"]["namespace"]
    assert settings.redis_url is not None
    assert settings.database.startswith("postgresql://")
    assert settings.history_spill is not None
    [shim] = [told for _, one, _, told in started(overlay) if one["name"] == "shim"]
    assert first_key(shim["HEDDLE_ADMIN_KEYS"]) in {key.get_secret_value() for key in settings.admin_keys}
    assert settings.api_keys
    [planner] = [told for _, one, _, told in started(overlay) if one["name"] == "planner"]
    assert settings.planner_key is not None
    assert settings.planner_key.get_secret_value() == planner["HEDDLE_PLANNER_KEY"]


def test_the_engines_options_are_ones_that_the_shim_takes(kubernetes: Path) -> None:
    overlay = Overlay.rendered(kubernetes, "sglang")
    [(owner, container, command, environment)] = [one for one in started(overlay) if one[1]["name"] == "shim"]
    given = dict(one.split("=", 1) for one in command if one.startswith("--"))
    options = Options.parse(given["--launch"])
    assert engine_arguments(options, None)[: len(options.arguments)] == list(options.arguments)
    assert options["--model-path"] == environment["MODEL"]
    assert options.number("--port", 0) == port_of(container, "engine")
    assert options["--host"] == "0.0.0.0"
    assert options["--api-key"] == environment["HEDDLE_ENGINE_KEY"]
    assert options.number("--tp", 1) == container["resources"]["limits"]["nvidia.com/gpu"]
    # The page store lies in the pod's own shared memory.
    pod = pod_of(owner)
    assert pod is not None
    [name] = [one["name"] for one in container["volumeMounts"] if one["mountPath"] == "/dev/shm"]
    [shm] = [one["emptyDir"] for one in pod["volumes"] if one["name"] == name]
    assert shm["medium"] == "Memory"
    assert parse_size(given["--store-bytes"]) < parse_size(shm["sizeLimit"].removesuffix("i"))


def test_a_pod_that_is_stopped_has_the_time_that_its_steps_have(overlay: Overlay) -> None:
    for owner, container, command, environment in started(overlay):
        pod = pod_of(owner)
        assert pod is not None
        has_s = pod["terminationGracePeriodSeconds"]
        if container["name"] == "gateway":
            [_, waits_s] = container["lifecycle"]["preStop"]["exec"]["command"]
            needs_s = float(waits_s) + float(environment["HEDDLE_SHUTDOWN_GRACE_S"]) + CLOSING_S
            assert has_s >= needs_s, owner["metadata"]["name"]
        if container["name"] == "shim":
            [drains_s] = [one.partition("=")[2] for one in command if one.startswith("--drain-timeout=")]
            assert has_s >= float(drains_s) + STOP_GRACE_S, owner["metadata"]["name"]


# ---------------------------------------------------------------------- of one piece


def numbers(owner: Resource) -> dict[str, int]:
    """The ports of its pods by name."""
    return {port["name"]: port["containerPort"] for one in containers(owner) for port in one.get("ports", [])}


def test_services_policies_and_budgets_select_pods_and_name_their_ports(overlay: Overlay) -> None:
    for service in overlay.of_kind("Service"):
        [owner] = overlay.selected(service["spec"]["selector"])
        known = numbers(owner)
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in known.keys() | known.values(), service["metadata"]["name"]
    for policy in overlay.of_kind("NetworkPolicy"):
        chosen = overlay.selected(policy["spec"]["podSelector"]["matchLabels"])
        assert chosen, policy["metadata"]["name"]
        for rule in policy["spec"].get("ingress", []):
            ports = {number for own in chosen for number in numbers(own).values()}
            assert {port["port"] for port in rule["ports"]} <= ports, policy["metadata"]["name"]
            for peer in rule.get("from", []):
                assert overlay.selected(peer["podSelector"]["matchLabels"]), policy["metadata"]["name"]
    for budget in overlay.of_kind("PodDisruptionBudget"):
        [owner] = overlay.selected(budget["spec"]["selector"]["matchLabels"])
        assert owner["spec"]["replicas"] > 1, "a budget of one pod would keep its node from being emptied"
    for owner in overlay.of_kind("StatefulSet"):
        overlay.named("Service", owner["spec"]["serviceName"])
    for owner in overlay.with_pods():
        template = owner["spec"]["template"]["metadata"]["labels"]
        assert owner["spec"]["selector"]["matchLabels"] == template


def test_who_is_asked_is_a_service_with_that_port_and_lets_the_asker_in(overlay: Overlay) -> None:
    for owner, container, command, environment in started(overlay):
        for text in [*command, *environment.values()]:
            for url in re.findall(r"\w+://[^\s,]+", text):
                parts = urlsplit(url)
                if str(parts.hostname).endswith(".example"):
                    continue  # It was there before.
                name = str(parts.hostname).rpartition(".")[2]
                service = overlay.named("Service", name)
                [target] = [one for one in service["spec"]["ports"] if one["port"] == parts.port]
                [asked] = overlay.selected(service["spec"]["selector"])
                assert owner is asked or _lets_in(overlay, asked, owner, target["targetPort"]), (
                    f"{container['name']} may not reach {url}"
                )


def _lets_in(overlay: Overlay, asked: Resource, asker: Resource, port: int | str) -> bool:
    """Whether a network policy lets the pods of ``asker`` reach this port."""
    number = numbers(asked).get(str(port), port)
    for policy in overlay.of_kind("NetworkPolicy"):
        if asked not in overlay.selected(policy["spec"]["podSelector"]["matchLabels"]):
            continue
        for rule in policy["spec"].get("ingress", []):
            peers = rule.get("from")
            may = peers is None or any(
                asker in overlay.selected(one["podSelector"]["matchLabels"]) for one in peers
            )
            if may and number in {one["port"] for one in rule["ports"]}:
                return True
    return False


def test_gateways_and_shims_are_let_to_each_other(overlay: Overlay) -> None:
    gateway = overlay.named("Deployment", "heddle-gateway")
    worker = overlay.named("StatefulSet", "heddle-worker")
    assert _lets_in(overlay, gateway, gateway, "peers")
    assert not _lets_in(overlay, gateway, worker, "peers")
    assert all(_lets_in(overlay, worker, gateway, port) for port in ("engine", "shim"))
    assert all(_lets_in(overlay, worker, worker, port) for port in ("shim", "transfer"))


def test_workers_register_at_gateways_that_are_not_ready_yet(overlay: Overlay) -> None:
    """/ready is 503 without a worker: by a Service of ready gateways alone no first worker would come."""
    [gateway] = [one for _, one, _, _ in started(overlay) if one["name"] == "gateway"]
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/ready"
    [command] = [words for _, one, words, _ in started(overlay) if one["name"] == "shim"]
    [url] = [one.partition("=")[2] for one in command if one.startswith("--gateway=")]
    service = overlay.named("Service", str(urlsplit(url).hostname))
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in overlay.named("Service", "heddle-gateway")["spec"]


def test_probes_ask_ports_that_are_there(overlay: Overlay) -> None:
    for owner in overlay.with_pods():
        for container in containers(owner):
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                if "httpGet" in container.get(kind, {}):
                    assert port_of(container, container[kind]["httpGet"]["port"]), container["name"]
        assert any("readinessProbe" in one for one in containers(owner)), owner["metadata"]["name"]


# ---------------------------------------------------------------------- safe


def test_every_pod_meets_the_restricted_standard(overlay: Overlay) -> None:
    labels = overlay.named("Namespace", "heddle")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for owner in overlay.with_pods():
        pod = pod_of(owner)
        assert pod is not None
        name = owner["metadata"]["name"]
        # A Service heddle-gateway would give each pod a variable HEDDLE_GATEWAY_PORT, which is no setting.
        assert pod["enableServiceLinks"] is False, name
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(owner):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            # SGLang compiles kernels at start.
            assert own["readOnlyRootFilesystem"] is (key_of(container) != "heddle-sglang"), name
            assert "memory" in container["resources"]["limits"], name
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name


def test_images_are_those_that_the_dockerfile_builds_in_this_version(overlay: Overlay) -> None:
    version = tomllib.loads((ROOT / "cli" / "pyproject.toml").read_text())["project"]["version"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    built = {one["image"] for one in compose.values() if "build" in one}
    for owner, container in overlay.ours():
        assert container["image"] == f"{key_of(container)}:{version}"
        stage = TARGETS[key_of(container).removeprefix("heddle-")]
        pod = pod_of(owner)
        assert pod is not None
        assert str(pod["securityContext"]["runAsUser"]) == stage.last("USER")
        if overlay.name == "emulated":
            assert container["image"] in built
    assert all(":" in one["image"] for owner in overlay.with_pods() for one in containers(owner))


def test_secrets_are_drawn_once_and_lie_in_no_commit(kubernetes: Path) -> None:
    file = kubernetes / "overlays" / "emulated" / "secrets.env"
    before = file.read_text()
    lines = dict(line.split("=", 1) for line in before.splitlines())
    assert file.stat().st_mode & 0o077 == 0
    assert len(set(lines.values())) == len(lines)
    assert make_secrets(kubernetes, "emulated").returncode == 1
    assert file.read_text() == before
    for overlay in OVERLAYS:
        asked = subprocess.run(
            ["git", "check-ignore", "-q", str(KUBERNETES / "overlays" / overlay / "secrets.env")],
            cwd=ROOT,
            check=False,
        )
        assert asked.returncode == 0


def test_no_manifest_holds_a_secret(overlay: Overlay) -> None:
    for owner in overlay.with_pods():
        for container in containers(owner):
            for variable in container.get("env", []):
                if re.search("PASS|KEY|AUTH|DATABASE|REDIS", variable["name"]):
                    assert "secretKeyRef" in variable["valueFrom"], variable["name"]


def test_prometheus_finds_the_metrics_and_the_key(kubernetes: Path) -> None:
    overlay = Overlay.rendered(kubernetes, "sglang")
    monitor = yaml.safe_load((KUBERNETES / "components" / "prometheus" / "podmonitor.yaml").read_text())
    [owner] = overlay.selected(monitor["spec"]["selector"]["matchLabels"])
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [gateway] = containers(owner)
    assert endpoint["path"] == "/metrics"
    assert port_of(gateway, endpoint["port"]) == port_of(gateway, "http")
    asked = endpoint["authorization"]["credentials"]
    assert asked["key"] in overlay.named("Secret", asked["name"])["data"]
