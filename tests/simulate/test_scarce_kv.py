"""Workers whose KV holds a handful of trajectories, where holding it through every tool gap
was slower than no admission at all.
"""

import math

import pytest
from heddle_planner.profiles import load_profile
from heddle_planner.simulate.comparison import Problem, compare
from heddle_planner.simulate.fleet import most_context, truth_of
from heddle_planner.simulate.policies import parse_policies
from heddle_planner.simulate.predictors import parse_prediction
from heddle_planner.simulate.sources import Source

ROWS = "heddle,least_load,verl,autellix"
SEEDS = (0, 1, 2)


def ratio(domain: str, kv_scale: float, prediction: str) -> float:
    """How many times faster than the best simple policy, with 256 trajectories on four workers of degree 4:
    geometric mean over the seeds.
    """
    profile = load_profile("qwen3-8b-h100")
    truth = truth_of(profile, degrees=[4], kv_scale=kv_scale, slots=None)
    logarithms = []
    for seed in SEEDS:
        scripts = Source(domain).draw_within(most_context(truth), trajectories=256, seed=seed).scripts
        problem = Problem(
            scripts=scripts,
            rehearsals=[scripts],
            truth=truth,
            profile=profile,
            gpus=16,
            prediction=parse_prediction(prediction),
            seed=seed,
            plans=False,
        )
        heddle, *simple = (outcome.makespan for outcome in compare(problem, parse_policies(ROWS)).outcomes)
        logarithms.append(math.log(min(simple) / heddle))
    return math.exp(sum(logarithms) / len(SEEDS))


@pytest.mark.parametrize("domain", ["coding", "search"])
def test_few_trajectories_at_once_are_served_about_as_fast_as_by_the_best_simple_policy(domain: str) -> None:
    ratios = [
        ratio(domain, kv_scale, prediction)
        for kv_scale in (0.05, 0.1)
        for prediction in ("calibrated", "noise", "none")
    ]
    assert min(ratios) > 0.93, ratios
    assert math.prod(ratios) > 1, ratios
