"""Small fleets: what people run first. Few trajectories on one to four GPUs, where single decisions show."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from heddle_planner.simulate.grid_cli import app
from typer.testing import CliRunner

VORFLUX = Path(__file__).parents[2] / "cli/heddle_cli/replay/recorded/vorflux.jsonl.gz"
SIMPLE = ("round_robin", "least_load", "verl", "cache_aware", "autellix")


def ratio(tmp_path: Path, prediction: str, cell: Sequence[str], seeds: int = 4) -> float:
    """How many times faster than the simple policy that is best over all seeds, without a plan: ratio of
    geometric means.
    """
    logarithms = dict.fromkeys(("heddle", *SIMPLE), 0.0)
    for seed in range(seeds):
        path = tmp_path / f"{seed}.json"
        asked = ["--seed", str(seed), "--predictions", prediction, "--no-plans", "--json", str(path)]
        result = CliRunner().invoke(app, [*cell, *asked, "--policies", ",".join(logarithms)])
        assert result.exit_code == 0, result.output
        [found] = json.loads(path.read_text())
        for name in logarithms:
            logarithms[name] += math.log(found["policies"][name]["makespan_s"]) / seeds
    return math.exp(min(logarithms[name] for name in SIMPLE) - logarithms["heddle"])


@pytest.mark.parametrize(
    ("trajectories", "workers", "kv_scale"), [("8", "1,1,1,1", "1"), ("64", "2,2,2,2", "0.25")]
)
def test_sessions_with_large_contexts_do_not_move_to_and_fro(
    tmp_path: Path, trajectories: str, workers: str, kv_scale: str
) -> None:
    cell = ["--workloads", str(VORFLUX), "--trajectories", trajectories, "--workers", workers]
    cell += ["--kv-scales", kv_scale, "--slots", "32"]
    assert ratio(tmp_path, "none", cell) > 0.97


def test_predictions_that_tell_the_opposite_do_not_cost_more_than_none(tmp_path: Path) -> None:
    cell = ["--workloads", "coding", "--trajectories", "128", "--workers", "2,1,1", "--kv-scales", "1"]
    assert ratio(tmp_path, "adversarial", [*cell, "--group", "8"]) > 0.97
