"""The demo's lower bound against the simulator, which runs the same cost model."""

import json
from dataclasses import asdict, replace
from importlib.resources import files
from typing import Any

import pytest
from heddle_cli.bench.rollout_simulated import _worker
from heddle_cli.demo.emulated_cost import WorkerCost, lower_bound_s
from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import RecordedTrajectory, load_shipped
from heddle_core import SimWorkload, simulate
from heddle_shim.emulator.timing import TimingProfile

SETTINGS = ReplaySettings(speed=40.0, default_gap_s=1.0)


def server_info(degree: int) -> dict[str, Any]:
    known = json.loads((files("heddle_cli.demo") / "qwen3_32b_h200.json").read_text())
    return {
        "heddle_timing": asdict(TimingProfile(**known)),
        "tp_size": degree,
        "max_running_requests": 16,
        "max_total_num_tokens": 10_000_000,
    }


def makespan_s(trajectories: list[RecordedTrajectory], degree: int) -> float:
    worker = _worker(server_info(degree), 0.0)
    truth = {str(degree): {name: worker[name] for name in ("costs", "slots", "kv_tokens")}}
    tasks = {one.task_id: number for number, one in enumerate(trajectories)}
    scripts = [
        (
            one.prompt_tokens,
            tasks[one.task_id],
            0.0,
            [
                (step.input_new_tokens if index else 0, step.output_tokens, SETTINGS.gap_s(step))
                for index, step in enumerate(one.steps)
            ],
        )
        for one in trajectories
    ]
    spec = {"truth": truth, "workers": [degree], "policy": {"gather_weight": 0}}
    report, _ = simulate(SimWorkload(scripts), json.dumps({**spec, "prediction": {"kind": "none"}}))
    return float(json.loads(report)["makespan_s"])


@pytest.mark.parametrize("degree", [1, 4])
def test_no_trajectory_is_over_before_the_bound_and_alone_it_is_the_makespan(degree: int) -> None:
    known = [one for one in load_shipped("vorflux") if len(one.steps) <= 100]
    worker = WorkerCost.of(server_info(degree))
    for one in known[:40]:
        bound, took = lower_bound_s([one], [worker], SETTINGS), makespan_s([one], degree)
        assert bound <= took * (1 + 1e-6) < bound * 1.01, one.id


def test_a_prompt_that_a_sibling_computed_is_not_counted_again() -> None:
    known = load_shipped("vorflux")[0]
    short = replace(known, prompt_tokens=20_000, steps=(replace(known.steps[0], output_tokens=2),))
    late = replace(short, id="late", sample=short.sample + 1, prompt_tokens=20_001)
    worker = WorkerCost.of(server_info(1))
    alone = lower_bound_s([late], [worker], SETTINGS)
    both = lower_bound_s([short, late], [worker], SETTINGS)
    assert both < 0.2 * alone
    assert makespan_s([short, late], 1) > both
    assert lower_bound_s([short, replace(late, task_id="other")], [worker], SETTINGS) == alone
