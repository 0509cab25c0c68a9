"""Plans that the solver makes for a rollout, and the clusters that Heddle chooses among."""

from dataclasses import replace

import pytest
from heddle_planner.profiles import load_profile
from heddle_planner.simulate.comparison import MIX, WITH_PLAN, Problem, compare
from heddle_planner.simulate.domains import DOMAINS, make_scripts
from heddle_planner.simulate.fleet import truth_of
from heddle_planner.simulate.planning import Cluster, Forecast, Solver
from heddle_planner.simulate.policies import parse_policies

PROFILE = load_profile("qwen3-8b-h100")
TRUTH = truth_of(PROFILE, degrees=[1, 2, 4], kv_scale=1.0, slots=None)
PAST = make_scripts(DOMAINS["search"], trajectories=64, group_size=16, scale_output=1.0, seed=9)
SOLVER = Solver(PROFILE, TRUTH, gpus=8)
FORECAST = Forecast([(script.output, 0.3) for script in PAST], PAST)


def test_a_plan_takes_every_rank_once_and_all_gpus() -> None:
    mixed = SOLVER.mixed(FORECAST)
    fixed = SOLVER.fixed(FORECAST, [2, 2, 2, 2])
    assert mixed is not None
    assert mixed.partition is not None
    assert fixed is not None
    assert fixed.partition is not None
    assert sum(mixed.degrees) == 8
    assert sum(mixed.partition) == sum(fixed.partition) == 64
    assert list(fixed.degrees) == [2, 2, 2, 2]
    assert list(fixed.partition) == sorted(fixed.partition), "the longest are few on a worker"


def test_workers_without_a_share_are_left_out_of_the_plan() -> None:
    cluster = Cluster([4, 2, 2], [3, 0, 5])
    assert cluster.plan == {
        "version": 1,
        "partition": [{"worker": 0, "size": 3}, {"worker": 2, "size": 5}],
    }
    assert Cluster([4]).plan is None


def test_lengths_that_no_worker_can_hold_have_no_plan() -> None:
    forecast = Forecast([(1e9, 0.0)] * 4, PAST)
    assert SOLVER.mixed(forecast) is None
    assert SOLVER.fixed(forecast, [4, 4]) is None


def test_heddle_runs_on_what_did_best_in_rehearsal() -> None:
    problem = Problem(
        scripts=make_scripts(DOMAINS["search"], trajectories=64, group_size=16, scale_output=1.0, seed=1),
        rehearsals=[PAST],
        truth=TRUTH,
        profile=PROFILE,
        gpus=4,
        prediction={"kind": "calibrated", "first": 1.0, "least": 0.5},
        seed=1,
    )
    [heddle, told_nothing] = compare(problem, parse_policies("heddle,verl")).outcomes
    tried = heddle.makespan_by_workers
    singles = {"1", "2", "4"}
    assert set(tried) == singles | {f"{name}{WITH_PLAN}" for name in (*singles, MIX)} | {MIX}
    assert tried[heddle.workers] == min(tried.values())
    assert sum(heddle.report["degrees"]) == 4
    assert set(told_nothing.makespan_by_workers) == singles
    assert told_nothing.makespan == pytest.approx(min(told_nothing.makespan_by_workers.values()))

    [by_itself] = compare(replace(problem, plans=False), parse_policies("heddle")).outcomes
    assert set(by_itself.makespan_by_workers) == singles


@pytest.mark.parametrize("kv_scale", [1.0, 0.2], ids=["KV fits", "KV is short"])
@pytest.mark.parametrize("kind", ["none", "noise", "calibrated"])
def test_without_a_plan_heddle_is_not_slower_than_the_best_baseline(kind: str, kv_scale: float) -> None:
    noise = {"first": 1.2, "least": 0.6} if kind == "calibrated" else {}
    draw = {"group_size": 16, "scale_output": 1.0}
    problem = Problem(
        scripts=make_scripts(DOMAINS["search"], trajectories=256, seed=1, **draw),
        rehearsals=[make_scripts(DOMAINS["search"], trajectories=256, seed=2, **draw)],
        truth=truth_of(PROFILE, degrees=[2], kv_scale=kv_scale, slots=None),
        profile=PROFILE,
        gpus=8,
        prediction={"kind": kind, **noise},
        seed=1,
        plans=False,
    )
    comparison = compare(problem, parse_policies("heddle,verl,verl_hybrid,slime,autellix"))
    best = comparison.best_baseline
    assert best is not None
    assert comparison.outcomes[0].makespan <= 1.02 * best.makespan
