"""Many comparisons at once: loads that fit, contexts cut alike, and what is said at the foot."""

import json
import statistics
from pathlib import Path

import pytest
from heddle_planner.profiles import load_profile
from heddle_planner.simulate.fleet import truth_of
from heddle_planner.simulate.grid import fitting_load, mean_context
from heddle_planner.simulate.grid_cli import app
from heddle_planner.simulate.scripts import Script, Turn
from heddle_planner.simulate.sources import Source
from typer.testing import CliRunner


def test_the_mean_context_weighs_each_token_by_what_stands_before_it() -> None:
    script = Script(prompt=100, turns=(Turn(0, 50, 1.0), Turn(30, 100, 1.0)))
    # 50 tokens at a mean of 125, then 100 at a mean of 100 + 50 + 30 + 50.
    assert mean_context(script) == pytest.approx((50 * 125 + 100 * 230) / 150)


def test_the_load_that_fits_doubles_with_the_gpus_and_halves_with_the_kv() -> None:
    profile = load_profile("qwen3-8b-h100")

    def load(gpus: int, kv_scale: float) -> int:
        truth = truth_of(profile, degrees=[1, 2], kv_scale=kv_scale, slots=None)
        return fitting_load(Source("math"), truth, gpus, 40_000, 0)

    assert load(16, 1.0) == pytest.approx(2 * load(8, 1.0), abs=1)
    assert load(8, 0.5) == pytest.approx(load(8, 1.0) / 2, abs=1)
    assert 100 < load(8, 1.0) < 2000


def call(tmp_path: Path, *arguments: str) -> tuple[int, str, list[dict[str, object]]]:
    path = tmp_path / "cells.json"
    result = CliRunner().invoke(
        app, ["--gpus", "2", "--degrees", "1,2", "--trajectories", "24", "--json", str(path), *arguments]
    )
    return result.exit_code, result.output, json.loads(path.read_text()) if path.exists() else []


def test_every_cell_is_run_and_baselines_once_for_all_predictions(tmp_path: Path) -> None:
    code, output, cells = call(tmp_path, "--workloads", "search,math", "--policies", "heddle,verl,slime")
    assert code == 0, output
    assert len(cells) == 2 * 2 * 2
    of_baselines = {
        (cell["workload"], cell["kv_scale"], cell["policies"][name]["makespan_s"])  # type: ignore[index]
        for cell in cells
        for name in ("verl",)
    }
    assert len(of_baselines) == 4
    assert "any schedule: at most" in output.splitlines()[-1]
    for cell in cells:
        best = min(cell["policies"][name]["makespan_s"] for name in ("verl", "slime"))  # type: ignore[index]
        assert cell["at_most"] == pytest.approx(best / cell["lower_bound_s"])
        assert cell["at_most"] >= cell["policies"]["heddle"]["ratio_to_best_baseline"]  # type: ignore[index]
    ratios = [
        cell["policies"]["heddle"]["ratio_to_best_baseline"]  # type: ignore[index]
        for cell in cells
        if cell["prediction"] == "calibrated"
    ]
    geometric, arithmetic = statistics.geometric_mean(ratios), statistics.fmean(ratios)
    said = f"heddle: calibrated: {geometric:.2f}x the best baseline by geometric mean"
    assert said in output
    assert f", {arithmetic:.2f}x by arithmetic mean" in output
    assert "noise:" in output.splitlines()[-1]


def test_a_policy_slower_than_the_best_baseline_fails_the_check(tmp_path: Path) -> None:
    # Two workers of degree 1, where the baseline may have one of degree 2.
    rows = ("--policies", "fix1,verl", "--kv-scales", "1", "--predictions", "oracle", "--workloads", "math")
    code, output, _ = call(tmp_path, *rows, "--check")
    assert code == 3, output
    code, _, _ = call(tmp_path, *rows, "--check", "--tolerance", "5")
    assert code == 0


def test_all_rows_run_on_the_workers_that_are_given(tmp_path: Path) -> None:
    rows = (
        "--workloads",
        "search",
        "--policies",
        "heddle,verl",
        "--kv-scales",
        "1",
        "--predictions",
        "oracle",
    )
    code, output, [cell] = call(tmp_path, *rows, "--workers", "1,2,1", "--slots", "8")
    assert code == 0, output
    names = {name: set(row["makespan_s_by_workers"]) for name, row in cell["policies"].items()}  # type: ignore[attr-defined]
    assert names == {"heddle": {"given", "given with plan"}, "verl": {"given"}}
    assert cell["policies"]["verl"]["workers"] == [2, 1, 1]  # type: ignore[index]
    code, output, _ = call(tmp_path, *rows, "--workers", "1,x")
    assert (code, "--workers" in output) == (2, True)


def test_trajectories_that_begin_over_a_time_end_after_it(tmp_path: Path) -> None:
    rows = ("--workloads", "search", "--policies", "heddle,verl", "--kv-scales", "1", "--predictions", "none")
    _, _, [at_once] = call(tmp_path, *rows, "--workers", "1")
    _, _, [spread] = call(tmp_path, *rows, "--workers", "1", "--over", "2000")
    assert spread["policies"]["verl"]["makespan_s"] > 1500 > at_once["policies"]["verl"]["makespan_s"]  # type: ignore[index]
    assert spread["lower_bound_s"] > at_once["lower_bound_s"]  # type: ignore[operator]


def test_input_that_does_not_fit_ends_with_2(tmp_path: Path) -> None:
    code, output, _ = call(tmp_path, "--workloads", "poetry")
    assert code == 2
    assert "poetry" in output
