"""The `heddle` command finds its parts, and survives a broken one."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from heddle_cli.main import registered
from heddle_cli.part import load


@pytest.fixture
def broken_part(tmp_path: Path) -> Path:
    """A folder that offers `shattered`, whose import fails, and `absent`, whose module is missing."""
    (tmp_path / "shattered_part.py").write_text("raise RuntimeError('no such engine')\n")
    info = tmp_path / "shattered_part-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shattered-part\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[heddle.commands]\nshattered = shattered_part:app\nabsent = not_installed.cli:app\n"
    )
    return tmp_path


def test_the_version_is_that_of_the_distribution(heddle: Any) -> None:
    assert heddle("--version").stdout == f"heddle {version('heddle-cli')}\n"


def test_help_lists_the_commands_of_all_parts(heddle: Any) -> None:
    done = heddle("--help")
    assert done.returncode == 0
    for name in ("emulate", "gateway", "policy", "trajectories", "up", "workers"):
        assert name in done.stdout


def test_help_of_a_part_is_its_own(heddle: Any) -> None:
    assert "--base-port" in heddle("emulate", "--help").stdout


def test_a_command_that_has_sub_commands_offers_no_completion_of_its_own() -> None:
    """It would install one for a program of its name."""
    wrong = [
        (entry.name, option)
        for entry in registered().values()
        for parameter in load(entry).params
        for option in parameter.opts
        if "completion" in option
    ]
    assert wrong == []


def test_a_broken_part_costs_its_own_command_only(heddle: Any, broken_part: Path) -> None:
    path = {"PYTHONPATH": str(broken_part)}
    done = heddle("shattered", "--some-option", **path)
    assert done.returncode == 1
    assert done.stderr == (
        "heddle: shattered: shattered-part cannot be loaded: RuntimeError: no such engine\n"
    )
    assert "not_installed" in heddle("absent", **path).stderr
    listed = heddle("--help", **path)
    assert listed.returncode == 0
    assert "no such engine" in listed.stdout
    assert "workers" in listed.stdout
    assert heddle("emulate", "--help", **path).returncode == 0
