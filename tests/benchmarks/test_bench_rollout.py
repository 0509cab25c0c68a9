"""`heddle bench rollout`: the trace that everybody acts out, and a small rollout from end to end."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from heddle_cli.bench.rollout_history import History, LandedMove
from heddle_cli.bench.rollout_journal import Shares, summarise
from heddle_cli.bench.rollout_lateness import lateness_of
from heddle_cli.bench.rollout_report import ReportMismatch, merged
from heddle_cli.bench.rollout_workload import TooFewTasks, make_groups, write_trace
from heddle_cli.exit_codes import CommandFailed
from heddle_cli.replay.agent import ReplaySettings, StepResult, TrajectoryResult
from heddle_cli.replay.loader import RecordedStep, RecordedTrajectory, load, load_shipped
from heddle_cli.replay.rollout import RolloutReport


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


def test_answers_are_scaled_and_nothing_else() -> None:
    known = load_shipped("vorflux")
    once = make_groups(known, groups=3, samples=1, max_steps=40, seed=2)
    twice = make_groups(known, groups=3, samples=1, max_steps=40, seed=2, scale_output=2.0)
    for one, other in zip(once, twice, strict=True):
        assert [2 * step.output_tokens for step in one.steps] == [step.output_tokens for step in other.steps]
        assert [step.input_new_tokens for step in one.steps] == [
            step.input_new_tokens for step in other.steps
        ]


def journal_of(path: Path, events: list[dict[str, Any]]) -> Path:
    lines = [{"format": 1, "policy": {}}, *({"now": now, "event": event} for now, event in enumerate(events))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_journal_tells_re_ranks_and_what_was_known_before_each_step(tmp_path: Path) -> None:
    def expected(trajectory: int, mean: float) -> dict[str, Any]:
        return {"trajectory_expected": {"trajectory": trajectory, "group": None, "mean": mean, "sigma": 1.0}}

    def predicted(trajectory: int, mean: float) -> dict[str, Any]:
        return {"predicted": {"trajectory": trajectory, "mean": mean, "sigma": 0.5}}

    def arrived(trajectory: int, step: int) -> dict[str, Any]:
        return {"step_arrived": {"step": step, "trajectory": trajectory, "prompt_tokens": 9}}

    summary = summarise(
        journal_of(
            tmp_path / "journal",
            [
                expected(7, 100.0),
                expected(3, 200.0),
                arrived(3, 0),
                arrived(7, 1),
                {"install_plan": {"version": 1, "partition": [{"worker": 2, "size": 5}], "ttl_ms": 9000}},
                predicted(3, 190.0),  # still the longest
                arrived(3, 2),
                predicted(7, 300.0),  # overtakes
                arrived(7, 3),
                {"migration_landed": {"migration": 1, "tokens": 5}},
            ],
        )
    )
    assert summary.counts() == {
        "events": 10,
        "predictions": 2,
        "re_ranks": 1,
        "plans": 1,
        "moves_landed": 1,
        "moves_failed": 0,
    }
    assert summary.told == [[(100.0, 1.0), (300.0, 0.5)], [(200.0, 1.0), (190.0, 0.5)]]
    # Events are a microsecond apart; the first step is the third of them.
    assert summary.shares == [Shares(2e-6, 9.0, [(2, 5)])]


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"format": 1}\n{"event": {"predicted": {}}}\n')
    with pytest.raises(CommandFailed, match="journal"):
        summarise(path)


def result_of(name: str, *, ends: float, engine_s: float) -> TrajectoryResult:
    steps = tuple(RecordedStep(0, 10, "bash", gap) for gap in (4.0, 99.0))
    record = RecordedTrajectory(name, name, 0, "coding", 100, steps)
    answered = [StepResult(0.0, 1.0, 100, 0, 10, "stop", engine_s) for _ in steps]
    return TrajectoryResult(record, 0.0, ends, answered)


def test_what_neither_tools_nor_engines_nor_decisions_took_is_the_machines() -> None:
    # At speed 10 a trajectory of 2 real seconds has 20 emulated ones: 4 in its one gap (nothing follows the
    # second), 2 x 5 in engines, 10 x 0.5 held; one is left.
    settings = ReplaySettings(speed=10.0)
    results = result_of("a", ends=2.0, engine_s=5.0), result_of("b", ends=1.4, engine_s=5.0)
    report = RolloutReport(results, 20.0, 10.0)
    late = lateness_of(report, settings, {"a": 0.5, "b": 0.0})
    assert late.last_s == pytest.approx(1.0)
    assert late.mean_s == pytest.approx(0.5)
    assert late.per_step_s == pytest.approx(0.25)
    assert late.share == pytest.approx(0.05)
    assert not late.valid


def test_what_a_move_took_beside_its_transfer_is_the_median_over_those_that_landed() -> None:
    moves = [LandedMove(0.3, 1000), LandedMove(0.2, 500), LandedMove(0.9, 4000), LandedMove(0.1, 9000)]
    assert History({}, moves).move_setup_s(10_000.0) == pytest.approx(0.175)
    assert History({}, []).move_setup_s(10_000.0) == 0.0


def test_reports_of_parts_are_one_if_they_are_of_the_same_setting(tmp_path: Path) -> None:
    def report(name: str, speed: float, arm: str) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({"setting": {"speed": speed}, "runs": [{"arm": arm}]}))
        return path

    one, two = report("one", 20.0, "heddle"), report("two", 20.0, "sticky")
    assert [row["arm"] for row in merged([one, two])["runs"]] == ["heddle", "sticky"]
    with pytest.raises(ReportMismatch, match=r"three: speed is 10\.0, in .*one it is 20\.0"):
        merged([one, report("three", 10.0, "sticky")])


@pytest.mark.system
def test_a_small_rollout_is_run_live_and_simulated(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "heddle_cli", "bench", "rollout", "--json", str(report)]
    command += ["--records", "tau_airline", "--groups", "3", "--samples", "2", "--max-steps", "12"]
    command += ["--tp", "2,1", "--speed", "50", "--arms", "heddle,sticky", "--keep", str(tmp_path / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(report.read_text())
    assert said["setting"]["trajectories"] == 6
    rows = {row["arm"]: row for row in said["runs"]}
    assert rows.keys() == {"heddle", "sticky"}
    for row in rows.values():
        assert row["steps_lost"] == 0
        assert row["makespan_s"] > said["lower_bound_s"] * 0.9
        assert row["simulated_makespan_s"] >= said["lower_bound_s"] * 0.99
        assert row["core"]["steps_ended_total"] == said["setting"]["steps"]
        # Whatever the machine is like: it adds time, and no more than there was.
        assert 0 < row["late"]["last_s"] < row["makespan_s"]
        assert all(seconds > 0 for seconds in row["cpu_s"].values())
    heddle, sticky = rows["heddle"], rows["sticky"]
    assert heddle["planner"]["heddle_planner_forecasts_applied_total"] == heddle["journal"]["predictions"] > 0
    assert heddle["planner"]["heddle_planner_forecasts_refused_total"] == 0
    assert heddle["journal"]["moves_landed"] == heddle["moves"]["landed"]
    assert sticky["planner"]["heddle_planner_calls_total"] == 0
    assert sticky["journal"] is None
    assert "live / simulated" in done.stdout
    assert "predictions in tool gaps" in done.stdout
    journal = (tmp_path / "kept" / "1" / "heddle.journal.jsonl").read_text()
    assert '"trajectory_expected"' in journal
    assert '"predicted"' in journal
    merged_again = subprocess.run(
        [*command[:5], "--merge", str(report), "--merge", str(report)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert merged_again.returncode == 0, merged_again.stderr
    assert merged_again.stdout.count("by its journal") == 2
