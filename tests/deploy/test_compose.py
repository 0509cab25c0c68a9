"""docker-compose.yml and deploy/Dockerfile, as far as they can be tried without pulling images: what images
copy is there, each image's start command and health check work, nothing runs as root or holds a secret.
"""

import json
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from heddle_shim.engine_process import STOP_GRACE_S

from tests.deploy.dockerfile import ROOT, targets

START_S = 120.0
FILES = ("docker-compose.yml", "docker-compose.sglang.yml")


def services(file: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / file).read_text())["services"]
    return loaded


TARGETS = targets()
OURS = {name: one for name, one in services(FILES[0]).items() if "build" in one}


def command_of(service: str) -> list[str]:
    """What the container runs."""
    stage = TARGETS[OURS[service]["build"]["target"]]
    command: list[str] = OURS[service].get("command") or stage.words("CMD")
    return stage.words("ENTRYPOINT") + command


def check_of(service: str) -> list[str]:
    """The health check's command."""
    text = TARGETS[OURS[service]["build"]["target"]].last("HEALTHCHECK")
    assert text is not None, service
    check: list[str] = json.loads(text.partition("CMD ")[2])
    return check


@pytest.mark.parametrize("name", ["gateway", "planner", "worker", "sglang"])
def test_no_image_runs_as_root(name: str) -> None:
    assert TARGETS[name].last("USER") == "10001"
    assert TARGETS[name].last("HEALTHCHECK") is not None


def test_what_the_images_copy_is_there_and_not_ignored() -> None:
    rules = (ROOT / ".dockerignore").read_text().split()
    assert rules[0] == "**"
    let_in = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    for stage in TARGETS.values():
        for name, text in stage.instructions:
            if name == "COPY" and "--from" not in text:
                for source in shlex.split(text)[:-1]:
                    assert (ROOT / source).exists(), source
                    assert any(fnmatch(source, rule) for rule in let_in), f"{source} is ignored"


@pytest.mark.parametrize("name", ["gateway", "planner", "worker", "sglang"])
def test_images_install_our_parts_by_file_with_all_of_ours_that_they_need(name: str) -> None:
    """By name, pip would take a part from the index, whoever put it there."""
    [line] = [text for how, text in TARGETS[name].instructions if how == "RUN" and "pip install" in text]
    installed = set(re.findall(r"/wheels/heddle_(\w+)-\*\.whl", line))
    assert "--find-links" not in line
    assert "cli" in installed
    for part in installed:
        folder = {"core": "router_rs", "shim": "worker_shim"}.get(part, part)
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        assert project["name"] == f"heddle-{part}"
        needed = {one.removeprefix("heddle-") for one in project.get("dependencies", []) if "heddle-" in one}
        assert needed <= installed, part


def test_every_service_is_hardened_and_holds_no_secret() -> None:
    for name, service in services(FILES[0]).items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service.get("user") or name in OURS, name
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|KEY|DATABASE", variable):
                assert "${" in value, f"{name}: {variable} is written out"
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} listens to the world"


@pytest.mark.parametrize("file", FILES)
def test_services_name_what_exists(file: str) -> None:
    base = services(FILES[0])
    for name, service in services(file).items():
        assert name in base, f"{file}: {name} overrides nothing"
        if "build" in service:
            assert service["build"]["target"] in TARGETS, name
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        for needed in service.get("depends_on", {}):
            checked = "healthcheck" in base[needed] or needed in OURS
            assert checked, f"{name} waits for the health of {needed}, which has no check"
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            named = yaml.safe_load((ROOT / FILES[0]).read_text())["volumes"]
            assert source in named or source.startswith(("$", "/", ".")), volume


def test_the_gateways_settings_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    from heddle_gateway.settings import load_settings

    for variable, value in OURS["gateway"]["environment"].items():
        filled = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value)
        monkeypatch.setenv(variable, re.sub(r"\$\{\w+:\?.*?\}", "secret", filled))
    settings = load_settings()
    hosts = {name for name in OURS if name.startswith("worker")}
    assert {re.split("[/:]+", worker.url)[1] for worker in settings.workers} == hosts
    assert settings.planner == "http://planner:8100"


# ------------------------------------------------------------------------------------------- as they start


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(command: list[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_S)


@pytest.mark.system
@pytest.mark.parametrize("service", ["gateway", "planner", "worker-1"])
def test_the_start_command_serves_and_the_health_check_sees_it(service: str, tmp_path: Path) -> None:
    command, check = command_of(service), check_of(service)
    assert command[0] == "heddle"
    inside = re.search(r"127\.0\.0\.1:(\d+)", check[-1])
    assert inside is not None
    port = free_port()
    if inside[1] in command:
        command[command.index(inside[1])] = str(port)
    else:
        command += ["--port", str(port)]
    check[0] = sys.executable
    check[-1] = check[-1].replace(inside[1], str(port))
    with started([sys.executable, "-m", "heddle_cli", *command[1:]], tmp_path) as process:
        deadline = time.monotonic() + START_S
        while subprocess.run(check, capture_output=True, check=False).returncode:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
    assert process.returncode == 0, "SIGTERM ends it cleanly"


def test_the_shims_command_is_one_that_heddle_takes() -> None:
    for name, service in services(FILES[1]).items():
        if "command" not in service:
            continue
        shown = subprocess.run(
            [sys.executable, "-m", "heddle_cli", service["command"][0], "--help"],
            capture_output=True,
            text=True,
            env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
            check=True,
        ).stdout
        drains_s = float(service["command"][service["command"].index("--drain-timeout") + 1])
        assert float(service["stop_grace_period"].removesuffix("s")) > drains_s + STOP_GRACE_S, name
        for option in service["command"]:
            if option.startswith("--") and " " not in option:
                assert option in shown, f"{name}: {option}"
        # Where the gateways have keys, a shim without one is refused for ever.
        assert service["environment"]["HEDDLE_ADMIN_KEYS"] == "${HEDDLE_ADMIN_KEYS:-}", name
        assert "HEDDLE_ADMIN_KEYS" in shown, name
