"""The paper's evaluation as one grid: three domains x three models, so many trajectories on so many GPUs.

A cell has every baseline at its usual MP degree (the paper's setting) and at its best one in hindsight,
Heddle, and Heddle with one part taken out at a time:

* scheduler: steps take turns and everybody is let in, as under Verl;
* placement: a trajectory stays where it began;
* resource manager: all workers at the usual degree.

The first two run on the workers that Heddle itself has chosen. A cell also says what cannot be had: nothing
is faster than a baseline by more than that baseline's makespan over the lower bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from heddle_planner.profiles import load_profile
from heddle_planner.simulate.comparison import Outcome, Problem, compare, on_the_same_workers
from heddle_planner.simulate.fleet import most_context, truth_of
from heddle_planner.simulate.policies import POLICIES, PolicyRow, parse_policies
from heddle_planner.simulate.predictors import parse_prediction
from heddle_planner.simulate.sources import Source

DOMAINS: Final = ("coding", "search", "math")
MODELS: Final = ("qwen3-8b", "qwen3-14b", "qwen3-32b")
BASELINES: Final = ("verl", "verl_hybrid", "slime")
WANTED: Final[Mapping[str, float]] = {"verl": 1.4, "verl_hybrid": 1.1, "slime": 1.2}
"""How many times faster than a baseline, at that one's best degree, Heddle is to be in every cell."""
WITHOUT: Final[Mapping[str, str]] = {
    "scheduler": "heddle;order=round_robin;admission=unlimited;gather_weight=0",
    "placement": "heddle;placement=sticky;migration=never",
}
"""Heddle without a part, on the same workers."""
RESOURCE_MANAGER: Final = "resource_manager"


@dataclass(frozen=True, slots=True)
class CellSpec:
    """One cell; two cells are the same when all of this is."""

    domain: str
    model: str
    gpu: str
    gpus: int
    trajectories: int
    degrees: tuple[int, ...]
    prediction: str
    max_context: int
    seed: int
    plans: bool


def run_cell(spec: CellSpec) -> dict[str, Any]:
    """Runs a cell; times in seconds. ``spec`` is in the result as it was given.

    Raises ValueError where the input does not fit, RuntimeError when a run does not come to its end.
    """
    profile = load_profile(f"{spec.model}-{spec.gpu}")
    degrees = [degree for degree in spec.degrees if degree in profile.degrees]
    truth = truth_of(profile, degrees=degrees, kv_scale=1.0, slots=None)
    source = Source(spec.domain, None, 1.0)
    context = min(spec.max_context, most_context(truth))
    problem = Problem(
        scripts=source.draw_within(context, trajectories=spec.trajectories, seed=spec.seed).scripts,
        rehearsals=source.earlier_within(context, trajectories=spec.trajectories, seed=spec.seed),
        truth=truth,
        profile=profile,
        gpus=spec.gpus,
        prediction=parse_prediction(spec.prediction),
        seed=spec.seed,
        plans=spec.plans,
    )
    comparison = compare(problem, [POLICIES["heddle"], *(POLICIES[name] for name in BASELINES)])
    heddle, *baselines = comparison.outcomes
    return {
        "spec": {**asdict(spec), "degrees": list(spec.degrees)},
        "lower_bound_s": comparison.lower_bound_s,
        "lower_bound_longest_s": comparison.lower_bound_parts_s[0],
        "lower_bound_work_s": comparison.lower_bound_parts_s[1],
        "lower_bound_joint_s": comparison.lower_bound_parts_s[2],
        "heddle": {
            "makespan_s": heddle.makespan,
            "workers": list(heddle.report["degrees"]),
            "plan": heddle.workers,
            "rehearsed_s": dict(heddle.makespan_by_workers),
        },
        "baselines": {outcome.row.name: _baseline(outcome) for outcome in baselines},
        "without": _without(problem, heddle, _usual_degree(baselines)),
    }


def _baseline(outcome: Outcome) -> dict[str, Any]:
    usual = outcome.usual or {}
    return {
        "best_s": outcome.makespan,
        "best_degree": int(outcome.workers),
        "usual_s": usual["makespan_s"],
        "usual_degree": usual["degree"],
    }


def _usual_degree(baselines: Sequence[Outcome]) -> int:
    return int((baselines[0].usual or {})["degree"])


def _without(problem: Problem, heddle: Outcome, usual: int) -> dict[str, float]:
    rows = parse_policies(",".join(WITHOUT.values()))
    fixed = PolicyRow(
        RESOURCE_MANAGER, {}, POLICIES["fix1"].cutting, degree=usual, predicts=True, baseline=False
    )
    parts = zip(WITHOUT, on_the_same_workers(problem, heddle, rows), strict=True)
    [at_usual] = compare(problem, [fixed]).outcomes
    return {**{part: outcome.makespan for part, outcome in parts}, RESOURCE_MANAGER: at_usual.makespan}
