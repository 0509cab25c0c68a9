"""``heddle simulate`` as it is called: table, JSON, plots, and what it says of input that does not fit."""

import json
from pathlib import Path

import pytest
from heddle_planner.simulate.cli import app
from typer.testing import CliRunner, Result

SMALL = ["--trajectories", "48", "--gpus", "8", "--degrees", "1,2", "--seed", "4"]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_comparison_is_written_with_each_baseline_at_its_best_degree(tmp_path: Path) -> None:
    path = tmp_path / "out" / "comparison.json"
    result = call("--workload", "search", *SMALL, "--policies", "heddle,verl,slime,fix1", "--json", str(path))
    assert result.exit_code == 0, result.output
    comparison = json.loads(path.read_text())
    policies = comparison["policies"]
    assert list(policies) == ["heddle", "verl", "slime", "fix1"]
    assert comparison["best_baseline"] in ("verl", "slime")
    best = policies[comparison["best_baseline"]]
    for name in ("verl", "slime"):
        spans = policies[name]["makespan_s_by_workers"]
        assert set(spans) == {"1", "2"}
        assert policies[name]["makespan_s"] == min(spans.values())
        assert policies[name]["usual_setting"]["makespan_s"] == spans["1"]
        assert policies[name]["degrees"] == [int(policies[name]["workers"])] * (
            8 // int(policies[name]["workers"])
        )
    assert policies["fix1"]["degrees"] == [1] * 8
    for row in policies.values():
        assert row["makespan_s"] >= comparison["lower_bound_s"]
        assert row["ratio_to_best_baseline"] == pytest.approx(best["makespan_s"] / row["makespan_s"])
        assert row["completion_s_percentiles"][-1] == pytest.approx(row["makespan_s"])
        assert row["active"][0][1] == 48
        assert row["active"][-1][1] == 0
        for field in ("tokens_per_s", "queue_s_longest", "recomputed_tokens", "preemptions", "migrations"):
            assert row[field] >= 0


def test_the_same_seed_gives_the_same_comparison(tmp_path: Path) -> None:
    paths = [tmp_path / "one.json", tmp_path / "two.json", tmp_path / "other.json"]
    for path, seed in zip(paths, ("5", "5", "6"), strict=True):
        result = call(
            "--workload",
            "math",
            "--trajectories",
            "24",
            "--gpus",
            "4",
            "--degrees",
            "1,4",
            "--seed",
            seed,
            "--policies",
            "heddle,autellix",
            "--prediction",
            "noise",
            "--json",
            str(path),
        )
        assert result.exit_code == 0, result.output
    assert paths[0].read_text() == paths[1].read_text()
    assert paths[0].read_text() != paths[2].read_text()


def test_less_kv_and_slower_workers_take_longer(tmp_path: Path) -> None:
    def makespan(*more: str) -> float:
        path = tmp_path / "out.json"
        result = call(
            "--workload",
            "coding",
            "--trajectories",
            "64",
            "--gpus",
            "1",
            "--degrees",
            "1",
            "--max-context",
            "60000",
            "--policies",
            "verl",
            "--json",
            str(path),
            *more,
        )
        assert result.exit_code == 0, result.output
        return float(json.loads(path.read_text())["policies"]["verl"]["makespan_s"])

    plain = makespan()
    assert makespan("--kv-scale", "0.25") > 1.02 * plain
    assert makespan("--slowdown", "1.3") > 1.15 * plain


def test_plots_are_written(tmp_path: Path) -> None:
    result = call(
        "--workload", "search", *SMALL, "--policies", "heddle,verl", "--plot", str(tmp_path / "plots")
    )
    assert result.exit_code == 0, result.output
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "plots").iterdir()}
    assert set(sizes) == {"makespan.png", "active.png", "completion.png", "timeline.png"}
    assert all(size > 10_000 for size in sizes.values())


def test_contexts_that_no_worker_holds_are_cut_and_said(tmp_path: Path) -> None:
    result = call("--workload", "math", *SMALL, "--policies", "verl", "--max-context", "4000")
    assert result.exit_code == 0, result.output
    assert "cut to a context of 4000 tokens" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "poetry"], "poetry is no file and none of coding, search, math"),
        (["--workload", "math", "--policies", "best"], "'best' is no policy"),
        (["--workload", "math", "--prediction", "good"], "'good' is no prediction"),
        (["--workload", "math", "--model", "gpt"], "gpt-h100"),
        (["--workload", "math", "--degrees", "3"], "no MP degree 3"),
        (["--workload", "math", "--degrees", "1,x"], "--degrees"),
        (["--workload", "math", "--gpus", "2", "--degrees", "8"], "--gpus: 2 hold no worker"),
        (["--workload", "math", "--policies", "verl;order=lifo"], "verl;order=lifo: order"),
        (
            [
                "--workload",
                "math",
                "--profile",
                '{"degrees": {"1": {"T": 0.01, "F": [1.0]}}}',
                "--degrees",
                "1",
            ],
            "T and F",
        ),
    ],
)
def test_input_that_does_not_fit_is_named_and_ends_with_2(arguments: list[str], said: str) -> None:
    result = call(*arguments, "--trajectories", "4")
    assert result.exit_code == 2, result.output
    assert said in result.stderr
