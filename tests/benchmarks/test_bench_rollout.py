"""`heddle bench rollout`: the trace that everybody acts out, and a small rollout from end to end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from heddle_cli.bench.rollout_workload import TooFewTasks, make_groups, write_trace
from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import load, load_shipped


def test_groups_are_samples_of_one_task_each_of_another_length() -> None:
    known = load_shipped("vorflux")
    made = make_groups(known, groups=3, samples=4, max_steps=40, seed=2)
    assert len(made) == 12
    assert len({one.id for one in made}) == 12
    for start in range(0, 12, 4):
        group = made[start : start + 4]
        assert len({one.task_id for one in group}) == 1
        assert [one.sample for one in group] == [0, 1, 2, 3]
        assert len({one.output_tokens for one in group}) > 1
        assert len({one.prompt_tokens for one in group}) == 1
    assert made == make_groups(known, groups=3, samples=4, max_steps=40, seed=2)


def test_more_groups_than_tasks_are_refused() -> None:
    with pytest.raises(TooFewTasks, match="25 tasks"):
        make_groups(load_shipped("tau_airline"), groups=26, samples=1, max_steps=1000, seed=1)


def test_a_trace_reads_back_as_what_is_acted_out(tmp_path: Path) -> None:
    settings = ReplaySettings(default_gap_s=1.5, max_gap_s=20.0)
    made = make_groups(load_shipped("vorflux"), groups=4, samples=2, max_steps=60, seed=1)
    path = tmp_path / "trace.jsonl"
    write_trace(made, settings, path)
    for was, read in zip(made, load(path), strict=True):
        assert (was.id, was.task_id, was.prompt_tokens) == (read.id, read.task_id, read.prompt_tokens)
        assert was.output_tokens == read.output_tokens
        for old, new in zip(was.steps, read.steps, strict=True):
            wanted = min(20.0, 1.5 if old.tool_seconds is None else old.tool_seconds)
            assert new.tool_seconds == wanted


@pytest.mark.system
def test_a_small_rollout_is_run_live_and_simulated(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "heddle_cli", "bench", "rollout", "--json", str(report)]
    command += ["--records", "tau_airline", "--groups", "3", "--samples", "2", "--max-steps", "12"]
    command += [
        "--tp",
        "2,1",
        "--speed",
        "50",
        "--policies",
        "heddle,sticky",
        "--keep",
        str(tmp_path / "kept"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(report.read_text())
    assert said["trajectories"] == 6
    assert said["policies"].keys() == {"heddle", "sticky"}
    for row in said["policies"].values():
        assert row["steps_lost"] == 0
        assert row["makespan_s"] > said["lower_bound_s"] * 0.9
        assert row["simulated_makespan_s"] >= said["lower_bound_s"] * 0.99
        assert row["core"]["steps_ended_total"] == said["steps"]
    planner = said["policies"]["heddle"]["planner"]
    assert planner["heddle_planner_forecasts_applied_total"] > 0
    assert planner["heddle_planner_forecasts_refused_total"] == 0
    assert said["policies"]["sticky"]["planner"]["heddle_planner_calls_total"] == 0
    assert "live / simulated" in done.stdout
    journal = (tmp_path / "kept" / "heddle.journal.jsonl").read_text()
    assert '"trajectory_expected"' in journal
    assert '"predicted"' in journal
