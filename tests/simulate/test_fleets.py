"""What workers are in a simulation: truth from a profile, GPUs cut into workers, GPUs lost."""

import json
from pathlib import Path

import pytest
from heddle_planner.profiles import load_profile
from heddle_planner.simulate.cli import app
from heddle_planner.simulate.fleet import (
    FleetError,
    GpuLoss,
    most_context,
    parse_loss,
    single_degree,
    truth_of,
    usual_degree,
)
from typer.testing import CliRunner


def test_the_truth_is_the_profiles_with_kv_scaled_and_slots_overridden() -> None:
    profile = load_profile("qwen3-8b-h100")
    truth = truth_of(profile, degrees=[1, 8], kv_scale=0.5, slots=17)
    known = profile.degrees[8]
    assert set(truth) == {"1", "8"}
    assert truth["8"]["kv_tokens"] == round(known.kv_tokens / 2)  # type: ignore[union-attr]
    assert truth["8"]["slots"] == 17
    assert truth["8"]["costs"]["step_seconds"] == list(known.step_seconds)  # type: ignore[union-attr]
    assert truth["8"]["costs"]["prefill_fixed_s"] == known.step_seconds[0]  # type: ignore[union-attr]
    assert most_context(truth) == int(0.9 * truth["1"]["kv_tokens"])


def test_the_usual_degree_is_the_smallest_with_room_for_four() -> None:
    truth = {str(degree): {"kv_tokens": 100_000 * degree} for degree in (1, 2, 4)}
    assert [usual_degree(truth, context) for context in (25_000, 25_001, 100_000, 500_000)] == [1, 2, 4, 4]


def test_a_lost_gpu_takes_its_whole_worker_along() -> None:
    loss = GpuLoss(5, 10.0, 20.0)
    assert loss.of_worker(single_degree(8, 1))["worker"] == 5
    assert loss.of_worker(single_degree(8, 4)) == {"worker": 1, "at_s": 10.0, "back_s": 20.0}
    assert loss.of_worker([4, 1, 1, 2])["worker"] == 2
    with pytest.raises(FleetError, match="no GPU 8"):
        GpuLoss(8, 1.0).of_worker([8])


@pytest.mark.parametrize("text", ["3", "x@5", "3@x", "3@5:4", "-1@5", "3@-5"])
def test_losses_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(FleetError, match="--lose"):
        parse_loss(text)


def test_a_lost_worker_costs_time_and_is_reported(tmp_path: Path) -> None:
    def policy(*more: str) -> dict[str, float]:
        path = tmp_path / "out.json"
        arguments = ["--workload", "search", "--trajectories", "64", "--gpus", "2", "--degrees", "1"]
        result = CliRunner().invoke(app, [*arguments, "--policies", "verl", "--json", str(path), *more])
        assert result.exit_code == 0, result.output
        found: dict[str, float] = json.loads(path.read_text())["policies"]["verl"]
        return found

    whole, half = policy(), policy("--lose", "1@5")
    assert half["makespan_s"] > 1.2 * whole["makespan_s"]
    assert half["lost_attempts"] > 0
    assert half["refused_trajectories"] == 0


def test_a_cluster_lost_whole_ends_with_1_and_says_so() -> None:
    arguments = ["--workload", "search", "--trajectories", "8", "--gpus", "1", "--degrees", "1"]
    result = CliRunner().invoke(app, [*arguments, "--policies", "verl", "--lose", "0@1"])
    assert result.exit_code == 1
    assert "trajectories left" in result.stderr
