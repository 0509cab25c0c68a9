"""Forecasts of a trained predictor, replayed step by step in the simulator."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from heddle_core import SimWorkload
from heddle_planner.predictor.cli import app as predictor_app
from heddle_planner.simulate.cli import app as simulate_app
from heddle_planner.simulate.forecasts import with_forecasts
from heddle_planner.simulate.predictors import parse_prediction, recorded_model
from heddle_planner.simulate.records import draw_scripts, load_records
from heddle_planner.simulate.scripts import Cut, cut_all, to_native
from typer.testing import CliRunner


def write_set(path: Path, tasks: int) -> Path:
    draw = random.Random(1)
    lines: list[dict[str, Any]] = []
    for task in range(tasks):
        count = draw.choice((3, 5, 12))
        for sample in range(2):
            steps = [
                {
                    "input_new_tokens": 20 if index else 0,
                    "output_tokens": draw.randint(20, 90),
                    "tool": "bash",
                }
                for index in range(count)
            ]
            lines.append(
                {
                    "id": f"{task}/{sample}",
                    "task_id": f"{task}",
                    "prompt_tokens0": 100 * count,
                    "steps": steps,
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set.jsonl", 20)


@pytest.fixture
def model(tmp_path: Path, recorded: Path) -> Path:
    folder = tmp_path / "model"
    arguments = ["train", str(recorded), "--model", "prompt_only", "--out", str(folder)]
    result = CliRunner().invoke(predictor_app, arguments)
    assert result.exit_code == 0, result.stderr
    return folder


def test_each_step_carries_what_was_said_before_it(recorded: Path, model: Path) -> None:
    records = with_forecasts(load_records(recorded), recorded, model)
    assert all(len(record.forecasts) == len(record.turns) for record in records)
    scripts = draw_scripts(records, trajectories=80, group_size=4, scale_output=2.0, seed=0)
    own = {(record.task, record.forecasts) for record in records}
    # At twice the length. Of further ones of a group nothing else was said: nobody knew their length.
    doubled = {tuple((2 * mean, sigma) for mean, sigma in said) for _, said in own}
    assert all(script.forecasts in doubled for script in scripts)
    assert len({script.output for script in scripts if script.group == 0}) == 4
    told = to_native(scripts).first_estimates(json.dumps({"kind": "recorded"}), 0)
    assert told == [script.forecasts[0] for script in scripts]


def test_a_script_that_is_cut_keeps_the_forecasts_of_its_steps(recorded: Path, model: Path) -> None:
    records = with_forecasts(load_records(recorded), recorded, model)
    scripts = draw_scripts(records, trajectories=40, group_size=None, scale_output=1.0, seed=0)
    cut: Cut = cut_all(scripts, 900)
    assert cut.shortened
    assert all(len(script.forecasts) == len(script.turns) for script in cut.scripts)


@pytest.mark.parametrize(
    ("forecasts", "message"),
    [
        ([], "1 scripts, forecasts of 0"),
        ([[(5.0, 0.1)]], "1 for 2 steps"),
        ([[(5.0, 0.1), (float("nan"), 0.1)]], "step 1: must have mean"),
        ([[(5.0, -0.1), (5.0, 0.1)]], "step 0: must have mean"),
    ],
)
def test_forecasts_that_do_not_fit_are_refused(
    forecasts: Sequence[Sequence[tuple[float, float]]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SimWorkload([(10, None, 0.0, [(0, 5, 0.0), (1, 5, 0.0)])], forecasts)


def test_the_command_replays_a_model_and_says_what_it_cannot(
    recorded: Path, model: Path, tmp_path: Path
) -> None:
    assert parse_prediction("recorded:somewhere") == {"kind": "recorded"}
    assert recorded_model("oracle") is None
    out = tmp_path / "out.json"
    base = ["--trajectories", "40", "--gpus", "2", "--degrees", "1", "--policies", "heddle,fcfs"]
    arguments = [*base, "--workload", str(recorded), "--prediction", f"recorded:{model}", "--json", str(out)]
    result = CliRunner().invoke(simulate_app, arguments)
    assert result.exit_code == 0, result.stderr
    assert set(json.loads(out.read_text())["policies"]) == {"heddle", "fcfs"}
    for workload, folder, message in (
        ("math", model, "forecasts are of"),
        (str(recorded), tmp_path / "away", "model.json: cannot be read"),
    ):
        result = CliRunner().invoke(
            simulate_app, [*base, "--workload", workload, "--prediction", f"recorded:{folder}"]
        )
        assert result.exit_code == 2
        assert message in result.stderr
