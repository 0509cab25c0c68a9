"""Many comparisons in one table: workloads x models x KV x predictions, a cell each.

A cell's load is given in trajectories, or fits the KV: as many trajectories as all workers of the
smallest degree hold at the mean context of their lives. With the KV scaled to a quarter, that load is
oversubscribed four times. Contexts are cut alike in all cells of a workload, to what the scarcest one can
hold.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle_planner.profiles import load_profile
from heddle_planner.simulate.comparison import Comparison, Problem, compare
from heddle_planner.simulate.fleet import most_context, truth_of
from heddle_planner.simulate.policies import PolicyRow
from heddle_planner.simulate.predictors import parse_prediction
from heddle_planner.simulate.scripts import Script
from heddle_planner.simulate.sources import Source

SAMPLE = 400
"""Trajectories from which the load that fits is worked out."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What is compared. ``trajectories`` None: as many as fit the KV. ``predictions`` are words of the
    command line (`predictors.parse_prediction`).
    """

    sources: Sequence[Source]
    profiles: Sequence[str]
    kv_scales: Sequence[float]
    predictions: Sequence[str]
    gpus: int
    degrees: Sequence[int]
    trajectories: int | None
    max_context: int
    seed: int
    plans: bool = True
    """See `comparison.Problem.plans`."""
    workers: Sequence[int] = ()
    """See `comparison.Problem.workers`; ``degrees`` and ``gpus`` must be theirs."""
    slots: int | None = None
    """Requests that a worker runs at once; None: the profile's."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison and what it was of."""

    source: str
    profile: str
    kv_scale: float
    prediction: str
    comparison: Comparison

    def ratio(self, name: str) -> float:
        """How many times faster than the best baseline at that one's best degree."""
        best = self.comparison.best_baseline
        [outcome] = [one for one in self.comparison.outcomes if one.row.name == name]
        return best.makespan / outcome.makespan if best is not None else math.nan

    def over_bound(self, name: str) -> float:
        """Makespan over lower bound."""
        [outcome] = [one for one in self.comparison.outcomes if one.row.name == name]
        return self.comparison.over_bound(outcome)

    @property
    def most(self) -> float:
        """The most that anything can be faster than the best baseline."""
        best = self.comparison.best_baseline
        return self.comparison.over_bound(best) if best is not None else math.nan


def run_grid(grid: Grid, rows: Sequence[PolicyRow]) -> Iterator[Cell]:
    """Every cell as it is done. Baselines are told nothing, so they run once for all predictions."""
    for source in grid.sources:
        for name in grid.profiles:
            profile = load_profile(name)
            scarcest = truth_of(profile, degrees=grid.degrees, kv_scale=min(grid.kv_scales), slots=grid.slots)
            full = truth_of(profile, degrees=grid.degrees, kv_scale=1.0, slots=grid.slots)
            context = min(grid.max_context, most_context(scarcest))
            load = grid.trajectories or fitting_load(source, full, grid.gpus, context, grid.seed)
            drawn = source.draw_within(context, trajectories=load, seed=grid.seed).scripts
            rehearsals = source.earlier_within(context, trajectories=load, seed=grid.seed)
            for kv_scale in grid.kv_scales:
                truth = truth_of(profile, degrees=grid.degrees, kv_scale=kv_scale, slots=grid.slots)
                told_nothing: Comparison | None = None
                for prediction in grid.predictions:
                    problem = Problem(
                        scripts=drawn,
                        rehearsals=rehearsals,
                        truth=truth,
                        profile=profile,
                        gpus=grid.gpus,
                        prediction=parse_prediction(prediction),
                        seed=grid.seed,
                        plans=grid.plans,
                        workers=grid.workers,
                    )
                    if told_nothing is None:
                        told_nothing = compare(problem, [row for row in rows if not row.predicts])
                    told = compare(problem, [row for row in rows if row.predicts])
                    both = {one.row.name: one for one in (*told_nothing.outcomes, *told.outcomes)}
                    comparison = Comparison(
                        problem=problem,
                        lower_bound_parts_s=told.lower_bound_parts_s,
                        outcomes=[both[row.name] for row in rows],
                    )
                    yield Cell(source.name, name, kv_scale, prediction, comparison)


def fitting_load(source: Source, truth: Mapping[str, Any], gpus: int, context: int, seed: int) -> int:
    """Trajectories that fit the KV of all workers of the smallest degree at the mean context of their
    lives.
    """
    sample = source.draw_within(context, trajectories=SAMPLE, seed=seed).scripts
    mean = sum(map(mean_context, sample)) / len(sample)
    smallest = min(truth, key=int)
    return max(1, int(gpus // int(smallest) * truth[smallest]["kv_tokens"] / mean))


def mean_context(script: Script) -> float:
    """Mean over its output tokens of the context at which each is generated."""
    held, weighted = float(script.prompt), 0.0
    for index, turn in enumerate(script.turns):
        held += turn.input if index else 0
        weighted += turn.output * (held + turn.output / 2)
        held += turn.output
    return weighted / script.output
