"""`heddle plan`: what it prints, and what it says to input that does not fit."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from heddle_planner import cli
from typer.testing import CliRunner

SHORT_FORM = json.dumps(
    {"degrees": {"1": {"T": 0.010, "F": [1.0, 1.1, 1.3]}, "4": {"T": 0.004, "F": [1.0, 1.05, 1.2]}}}
)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, arguments)
    return result.exit_code, result.stdout, result.stderr


def plan(lengths: Path, *arguments: str, profile: str = SHORT_FORM, gpus: int = 8) -> Any:
    code, out, err = run(
        "--lengths", str(lengths), "--gpus", str(gpus), "--profile", profile, "--json", *arguments
    )
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.txt"
    path.write_text("100\n5000\n\n100.5\n99\n")
    return path


def test_numbers_a_line_become_a_plan_by_index(numbers: Path) -> None:
    printed = plan(numbers)
    assert set(printed) == {"makespan", "gpus_used", "seconds", "workers"}
    assert printed["makespan"] == pytest.approx(5000 * 0.004)
    assert printed["gpus_used"] == 8
    assert [worker["members"] for worker in printed["workers"]] == [[1], [2, 0, 3]]
    assert [worker["degree"] for worker in printed["workers"]] == [4, 4]
    assert printed["workers"][1]["cost"] == pytest.approx(100.5 * 0.004 * 1.2)
    assert printed["seconds"] > 0


def test_json_lines_keep_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text(
        '{"id": "a", "predicted": 10}\n'
        '{"id": 7, "predicted": 20, "sigma": 3}\n'
        '{"predicted": 5, "sigma": null}\n'
    )
    printed = plan(path, "--workers", "1", gpus=1)
    assert printed["workers"] == [
        {"degree": 1, "members": [7, "a", 2], "cost": pytest.approx(20 * 0.010 * 1.3)}
    ]


@pytest.mark.parametrize("solver", ["dp", "anneal", "exact"])
def test_fixed_workers_are_kept(numbers: Path, solver: str) -> None:
    printed = plan(numbers, "--workers", "4,1,1,1,1", "--solver", solver)
    assert sorted(worker["degree"] for worker in printed["workers"]) == [1, 1, 1, 1, 4]
    assert printed["gpus_used"] == 8
    assert printed["makespan"] == pytest.approx(20.0)


def test_the_exact_plan_is_never_above_the_others(tmp_path: Path) -> None:
    chance = random.Random(3)
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(str(chance.lognormvariate(7, 1.2)) for _ in range(400)))
    for cost in ("size_only", "simulated"):
        makespans = {
            solver: plan(path, "--solver", solver, "--cost", cost, profile="qwen3-8b-h100", gpus=16)[
                "makespan"
            ]
            for solver in ("dp", "anneal", "exact")
        }
        assert makespans["exact"] <= min(makespans.values())


def test_every_trajectory_is_placed_once_and_the_makespan_is_the_largest_cost(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(str(100 + 37 * (index % 91)) for index in range(1000)))
    printed = plan(path, profile="qwen3-14b-h200", gpus=32)
    members = [member for worker in printed["workers"] for member in worker["members"]]
    assert sorted(members) == list(range(1000))
    assert printed["makespan"] == max(worker["cost"] for worker in printed["workers"])
    assert printed["gpus_used"] == sum(worker["degree"] for worker in printed["workers"]) <= 32


def test_uncertainty_counts_in_the_simulated_cost(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"

    def makespan(sigma: float) -> float:
        lines = (json.dumps({"id": index, "predicted": 1000, "sigma": sigma}) for index in range(64))
        path.write_text("\n".join(lines))
        printed = plan(path, "--cost", "simulated", profile="qwen3-8b-h100", gpus=4)
        return float(printed["makespan"])

    assert makespan(400) > 1.2 * makespan(0)


def test_without_json_it_prints_a_table(numbers: Path) -> None:
    code, out, _ = run("--lengths", str(numbers), "--gpus", "8", "--profile", SHORT_FORM)
    assert code == 0
    assert out.splitlines()[0].split() == ["worker", "degree", "trajectories", "seconds"]
    assert out.splitlines()[-1].startswith("makespan 20.00 s on 8 GPUs")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("12 tokens", "line 2: 12 tokens is neither a number nor JSON"),
        ("-4", "line 2: field predicted: -4 is not a finite number of tokens >= 0"),
        ("NaN", "line 2: field predicted: NaN is not a finite number"),
        ("true", "line 2: field predicted: true is not a finite number"),
        ('{"id": "x"}', "line 2: field predicted: missing; give the number of output tokens"),
        ('{"id": "x", "predicted": "9"}', 'line 2: field predicted: "9" is not a finite number'),
        ('{"id": "x", "predicted": 9, "sigma": -1}', "line 2: field sigma: -1 is not a finite number"),
        ('{"id": [1], "predicted": 9}', "line 2: field id: [1] is neither a string nor an integer"),
        ('{"id": 0, "predicted": 9}', "line 2: field id: 0 is on line 1 already; give each its own"),
    ],
)
def test_a_bad_line_is_named_with_its_field_and_the_fix(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(f"100\n{line}\n")
    code, out, err = run("--lengths", str(path), "--gpus", "8", "--profile", SHORT_FORM)
    assert code == 2
    assert out == ""
    assert f"{path}: {says}" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--degrees", "1,x"], "--degrees: '1,x' is no list of integers >= 1"),
        (["--degrees", "2"], "degrees: the profile has no MP degree 2; it has [1, 4]"),
        (["--workers", "4,4,4"], "workers: their degrees sum to 12, more than the 8 GPUs given"),
        (["--cost", "simulated"], "profile: degrees.4: has only T and F"),
    ],
)
def test_an_option_that_does_not_fit_is_named(numbers: Path, arguments: list[str], says: str) -> None:
    code, _, err = run("--lengths", str(numbers), "--gpus", "8", "--profile", SHORT_FORM, *arguments)
    assert code == 2
    assert says in err


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.txt"
    code, _, err = run("--lengths", str(missing), "--gpus", "8", "--profile", SHORT_FORM)
    assert code == 2
    assert f"{missing}: cannot be read" in err
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    code, _, err = run("--lengths", str(empty), "--gpus", "8", "--profile", SHORT_FORM)
    assert code == 2
    assert f"{empty}: no lengths" in err


def test_a_trajectory_that_fits_no_worker_is_said(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("100000\n")
    code, _, err = run(
        "--lengths", str(path), "--gpus", "1", "--profile", "qwen3-32b-h100", "--cost", "simulated"
    )
    assert code == 2
    assert "a trajectory of 100000 tokens" in err
